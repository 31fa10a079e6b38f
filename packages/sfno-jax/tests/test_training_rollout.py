"""Rollouts against closed forms; stabilisers keep what they promise; reports tell planets from noise."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sfno_jax.losses import loss_weights
from sfno_jax.models import SFNO, SFNOConfig
from sfno_jax.training.rollout import (
    PlausibilityLimits,
    Stepper,
    evaluate_leads,
    evaluate_stability,
    rollout,
    rollout_chunks,
)
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.transforms import InverseRealSHT, RealSHT

NLAT, NLON, GRID = 8, 16, "legendre-gauss"
WEIGHTS = loss_weights(NLAT, NLON, GRID)


def smooth(samples, channels=2, lmax=5, seed=0):
    """Random band-limited fields of unit variance, zero mean."""
    rng = np.random.default_rng(seed)
    shape = (samples, channels, lmax, lmax)
    coeffs = np.tril(rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    coeffs[..., 0, 0] = 0
    fields = np.asarray(InverseRealSHT(NLAT, NLON, lmax=lmax, mmax=lmax, grid=GRID)(coeffs))
    variance = (WEIGHTS * fields**2).sum((-2, -1), keepdims=True)
    return (fields / np.sqrt(variance)).astype(np.float32)


def turning(samples=3, times=30, seed=0):
    """True trajectories: solid turning by one column a step, (sample, time, channel, lat, lon)."""
    first = smooth(samples, seed=seed)
    return np.stack([np.roll(first, t, -1) for t in range(times)], 1)


def scaled(factor, shift=0):
    return jax.tree_util.Partial(lambda c, x: c * jnp.roll(x, shift, -1), jnp.float32(factor))


def test_rollout_equals_a_loop_whatever_the_chunk():
    x = smooth(2)
    want = np.stack([0.9 ** (n + 1) * np.roll(x, n + 1, -1) for n in range(7)])
    for chunk in (1, 3, 7, 50):
        got = np.concatenate(list(rollout_chunks(scaled(0.9, 1), x, 7, chunk=chunk)))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(rollout(scaled(0.9, 1), x, 7, every=3), want[[2, 5]], rtol=1e-5)


def test_lead_scores_of_known_errors():
    truth = turning()
    scores = evaluate_leads(scaled(1.0, 1), truth, (1, 5, 16), GRID)
    np.testing.assert_allclose(scores.relative_l2, 0, atol=1e-6)
    np.testing.assert_allclose(scores.acc, 1, rtol=1e-5)
    np.testing.assert_allclose(scores.persistence_l2[2], 0, atol=1e-6)  # once around
    assert np.all(scores.persistence_l2[:2] > 0.1)
    halved = evaluate_leads(scaled(0.5, 1), truth, (1, 2), GRID)
    np.testing.assert_allclose(halved.relative_l2, [[0.5] * 3, [0.75] * 3], rtol=1e-5)
    np.testing.assert_allclose(halved.rmse, [[0.5] * 2, [0.75] * 2], rtol=1e-5)
    np.testing.assert_allclose(halved.acc, 1, rtol=1e-5)
    assert halved.rows()[1]["l2"] == pytest.approx(0.75, rel=1e-5)


def stability(step, **kwargs):
    truth = turning()
    return evaluate_stability(step, truth[:, 0], truth, GRID, steps=60, marks=(10, 30, 100), lmax=5, chunk=7, **kwargs)


def test_a_perfect_rollout_is_plausible():
    mass = partial(lambda w, x: (w * x[:, 0]).sum((-2, -1)), WEIGHTS.astype(np.float32))
    report = stability(scaled(1.0, 1), diagnostics={"mass": mass})
    assert report.marks == (10, 30, 60)
    assert report.plausible.all(), report.reasons
    np.testing.assert_array_equal(report.bounded_for, 60)
    np.testing.assert_allclose(report.variance_ratio.mean((1,)), 1, rtol=1e-4)
    np.testing.assert_allclose(report.tendency_ratio.mean(), 1, rtol=0.2)
    np.testing.assert_allclose(report.mean_drift, 0, atol=1e-6)
    assert np.all(report.spectrum_ratio < 4)
    assert report.diagnostics["mass"].shape == (3, 3)
    json.dumps(report.to_dict())


BROKEN = {
    "blow-up": (scaled(1.2, 1), "exceeds 8 std after 6 steps"),
    "overflow": (scaled(1e10, 1), "exceeds 8 std after 0 steps"),
    "frozen": (scaled(1.0, 0), "frozen: tendencies fall to 0"),
    "dying": (scaled(0.9, 1), "variance falls to"),
    "drift": (
        jax.tree_util.Partial(lambda c, x: jnp.roll(x, 1, -1) + c, jnp.float32(0.01)),
        "means drift by 0.6 std",
    ),
    "other spectrum": (
        jax.tree_util.Partial(lambda n, x: jnp.roll(x, 1, -1) * 0 + n, jnp.cos(jnp.pi * jnp.arange(16) / 2)),
        "spectrum is off by a factor",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_rollouts_are_told_apart(case):
    step, reason = BROKEN[case]
    report = stability(step)
    assert not report.plausible.any()
    assert len(report.reasons) == 3
    assert reason in report.reasons[0]
    wide = stability(scaled(0.99, 1), limits=PlausibilityLimits(spectrum=9.0))
    assert wide.plausible.all(), wide.reasons


def test_time_to_blow_up_is_counted_in_steps():
    truth = turning(samples=1)
    peak = np.abs(truth[:, 0]).max()
    steps = int(np.floor(np.log(8.0 / peak) / np.log(1.2)))
    report = evaluate_stability(scaled(1.2, 1), truth[:, 0], truth, GRID, steps=40, marks=(5,))
    assert report.bounded_for.tolist() == [steps]
    assert report.maximum[0, 0] == pytest.approx(peak * 1.2**5, rel=1e-4)


def model():
    config = SFNOConfig(
        nlat=NLAT, nlon=NLON, in_channels=3, out_channels=3, grid=GRID, embed_dim=4, num_layers=1, scale_factor=1
    )
    return SFNO(config, rngs=nnx.Rngs(0))


def test_stabiliser_keeps_the_means_right_for_a_thousand_steps():
    names = ("geopotential", "vorticity", "divergence")
    mean, std = np.array([9e4, 1e-7, -3e-8]), np.array([2e3, 2e-5, 3e-6])
    stabiliser = Stabiliser.create(
        NLAT, NLON, GRID, names, conserve=names[:1], zero_mean=names[1:], mean=mean, std=std,
        damping=0.05, damping_order=4, lmax=6,
    )  # fmt: skip
    x = smooth(2, channels=3) + np.array([0.3, 0.1, -0.2], np.float32)[:, None, None]
    biased = jax.tree_util.Partial(lambda x: 1.5 * jnp.tanh(jnp.roll(x, 1, -1)) + 0.05)
    steady = jax.tree_util.Partial(lambda fix, f, x: fix(x, f(x)), stabiliser, biased)
    states = rollout(steady, x, 1000, every=250)
    assert np.abs(states).max() > 0.3
    means = (WEIGHTS * states).sum((-2, -1))
    np.testing.assert_allclose(means[..., 0], 0.3, atol=2e-5)
    np.testing.assert_allclose(mean[1:] + std[1:] * means[..., 1:], 0, atol=2e-5 * std[1])
    free = rollout(biased, x, 5)
    assert np.abs((WEIGHTS * free[-1]).sum((-2, -1))[:, 0] - 0.3).min() > 0.05


def test_damping_multiplies_each_degree_and_drops_the_rest():
    sht = RealSHT(NLAT, NLON, grid=GRID)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 1, NLAT, NLON)).astype(np.float32)
    stabiliser = Stabiliser.create(NLAT, NLON, GRID, ("a",), damping=0.7, damping_order=2, lmax=6)
    before, after = np.asarray(sht(x))[0, 0], np.asarray(sht(stabiliser(x, x)))[0, 0]
    factor = np.exp(-0.7 * (np.arange(6) / 5) ** 2)[:, None]
    np.testing.assert_allclose(after[:6, :6], factor * before[:6, :6], atol=1e-5)
    np.testing.assert_allclose(after[6:], 0, atol=1e-5)
    unchanged = Stabiliser.create(NLAT, NLON, GRID, ("a",))
    np.testing.assert_allclose(unchanged(x, x), x, atol=1e-6)


def test_stabiliser_is_differentiable_and_keeps_float64():
    with jax.enable_x64(True):
        stabiliser = Stabiliser.create(NLAT, NLON, GRID, ("a", "b"), conserve=("a",), damping=0.1)
        x = smooth(1).astype(np.float64)
        out, gradient = jax.value_and_grad(lambda y: jnp.sum(stabiliser(x, y) ** 2))(1.1 * x)
        assert out.dtype == gradient.dtype == jnp.float64
        assert np.isfinite(gradient).all()


def test_stepper_travels_as_an_argument_and_adds_no_large_constant():
    step = Stepper.of(model())
    x = smooth(1, channels=3)
    jaxpr = jax.make_jaxpr(lambda s, y: s(y))(step, x)
    assert sum(np.size(c) for c in jaxpr.consts) < 1000
    np.testing.assert_allclose(step(x), model()(x), rtol=1e-5, atol=1e-6)

"""Metrics against closed forms, brute force and properties."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfno_jax.grids import colatitudes
from sfno_jax.losses import loss_weights
from sfno_jax.metrics import (
    StreamingMoments,
    anomaly_correlation,
    bias,
    crps_ensemble,
    crps_gaussian,
    mae,
    mean_power_spectrum,
    rank_histogram,
    relative_l2,
    rmse,
    spread,
    spread_skill_ratio,
)
from sfno_jax.transforms import RealSHT

NLAT, NLON = 12, 24
GRID = "legendre-gauss"
WEIGHTS = loss_weights(NLAT, NLON, GRID)
RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_spatially_constant_errors():
    truth = normal(2, 3, NLAT, NLON)
    forecast = truth - 2
    for metric, want in ((rmse, 2), (mae, 2), (bias, -2)):
        got = metric(forecast, truth, WEIGHTS)
        assert got.shape == (2, 3)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_area_weighting_not_grid_point_weighting():
    """The mean of cos^2(theta) over the sphere is 1/3; over Gauss grid points it is not."""
    field = (np.cos(colatitudes(GRID, NLAT))[:, None] * np.ones(NLON)).astype(np.float32)
    assert rmse(field, 0 * field, WEIGHTS) == pytest.approx(np.sqrt(1 / 3), rel=1e-6)
    assert np.sqrt((field**2).mean()) != pytest.approx(np.sqrt(1 / 3), rel=1e-2)
    assert relative_l2(1.5 * field, field, WEIGHTS) == pytest.approx(0.5, rel=1e-6)


def test_mask_and_weight_shapes():
    truth = normal(NLAT, NLON)
    mask = np.ones((NLAT, NLON))
    mask[3, 4] = 0
    broken = truth.copy()
    broken[3, 4] = np.nan
    assert rmse(broken, truth, WEIGHTS, mask=mask) == 0
    with pytest.raises(ValueError, match="weights must have shape"):
        rmse(truth, truth, WEIGHTS[:, :5])


def test_acc_closed_forms():
    anomaly = normal(4, 2, NLAT, NLON)
    climate = 300 + 5 * normal(2, NLAT, NLON)
    truth = anomaly + climate
    for reduce in ("macro", "micro"):
        same = anomaly_correlation(climate + 0.3 * anomaly, truth, WEIGHTS, climatology=climate, reduce=reduce)
        np.testing.assert_allclose(same, np.ones(2), atol=2e-4)
        opposite = anomaly_correlation(climate - anomaly, truth, WEIGHTS, climatology=climate, reduce=reduce)
        np.testing.assert_allclose(opposite, -np.ones(2), atol=2e-4)
        noise = anomaly_correlation(normal(4, 2, NLAT, NLON), anomaly, WEIGHTS, climatology=0.0, reduce=reduce)
        assert np.all(np.abs(noise) < 0.3)
    # without the climatology two states of one planet look alike
    assert np.all(anomaly_correlation(climate - anomaly, truth, WEIGHTS, climatology=0.0) > 0.99)


def test_macro_and_micro_differ_as_defined():
    truth = np.stack([np.ones((NLAT, NLON)), 10 * np.ones((NLAT, NLON))]).astype(np.float32)
    forecast = np.stack([-truth[0], truth[1]])
    macro = anomaly_correlation(forecast, truth, WEIGHTS, climatology=0.0)
    micro = anomaly_correlation(forecast, truth, WEIGHTS, climatology=0.0, reduce="micro")
    assert macro == pytest.approx(0, abs=1e-6)
    assert micro == pytest.approx(99 / 101, rel=1e-5)


def brute_crps(members, truth, fair):
    count = len(members)
    pairs = np.abs(members[:, None] - members[None]).sum((0, 1))
    return np.abs(members - truth).mean(0) - pairs / (2 * (count * (count - 1) if fair else count**2))


@pytest.mark.parametrize("fair", [True, False])
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), count=st.integers(2, 7))
def test_crps_equals_the_double_sum(fair, seed, count):
    rng = np.random.default_rng(seed)
    members, truth = rng.normal(size=(count, 5)), rng.normal(size=5)
    with jax.enable_x64(True):
        got = crps_ensemble(members, truth, fair=fair)
        np.testing.assert_allclose(got, brute_crps(members, truth, fair), atol=1e-12)


def test_crps_of_many_gaussian_members_tends_to_the_closed_form():
    rng = np.random.default_rng(0)
    truth = np.linspace(-2, 2, 9)
    with jax.enable_x64(True):
        ensemble = 0.5 + 1.5 * rng.normal(size=(40_000, 9))
        got = crps_ensemble(ensemble, truth)
        want = crps_gaussian(0.5 * np.ones(9), 1.5 * np.ones(9), truth)
        np.testing.assert_allclose(got, want, atol=0.02)
        # standard normal at its mean: (sqrt(2) - 1) / sqrt(pi)
        at_mean = crps_gaussian(np.zeros(1), np.ones(1), np.zeros(1))
        assert at_mean[0] == pytest.approx((np.sqrt(2) - 1) / np.sqrt(np.pi), rel=1e-12)


def test_spread_skill_of_a_reliable_ensemble_is_one():
    members = normal(8, 64, NLAT, NLON)
    truth = normal(64, NLAT, NLON)
    ratio = spread_skill_ratio(members, truth, WEIGHTS)
    assert ratio.shape == (64,)
    assert np.mean(ratio) == pytest.approx(1, abs=0.02)
    assert np.mean(spread(members, WEIGHTS)) == pytest.approx(1, abs=0.02)
    assert np.mean(spread_skill_ratio(0.5 * members, truth, WEIGHTS)) < 0.7


def test_rank_histogram_is_flat_for_a_reliable_ensemble_and_shares_ties():
    members, truth = normal(4, 100, NLAT, NLON), normal(100, NLAT, NLON)
    histogram = rank_histogram(members, truth, WEIGHTS)
    assert histogram.shape == (100, 5)
    np.testing.assert_allclose(histogram.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(histogram.mean(0), 0.2, atol=0.01)
    np.testing.assert_allclose(rank_histogram(members, 0 * truth + 99, WEIGHTS)[:, -1], 1)
    tied = rank_histogram(0 * members, 0 * truth, WEIGHTS)
    np.testing.assert_allclose(tied, 0.2, rtol=1e-5)


def test_mean_power_spectrum_obeys_parseval():
    sht = RealSHT(NLAT, NLON, grid=GRID)
    ones = np.ones((3, 2, NLAT, NLON), np.float32)
    spectrum = mean_power_spectrum(ones, sht)
    assert spectrum.shape == (2, sht.lmax)
    np.testing.assert_allclose(spectrum[:, 0], 4 * np.pi, rtol=1e-6)
    np.testing.assert_allclose(spectrum[:, 1:], 0, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 29), max_size=4, unique=True))
def test_streaming_moments_do_not_depend_on_the_cut(seed, cuts):
    rng = np.random.default_rng(seed)
    data = 1e6 + rng.normal(size=(30, 3))  # a large offset: the naive formula loses its digits
    weights = rng.uniform(0, 2, size=(30, 1))
    moments, other = StreamingMoments(), StreamingMoments()
    edges = [0, *sorted(cuts), 30]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        (moments if number % 2 == 0 else other).update(data[start:stop], weights[start:stop])
    moments.merge(other)
    np.testing.assert_allclose(moments.mean, np.average(data, 0, weights[:, 0]), rtol=1e-13)
    variance = np.average((data - moments.mean) ** 2, 0, weights[:, 0])
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-7)


def test_streaming_moments_leave_out_points_of_weight_zero():
    moments = StreamingMoments()
    moments.update(np.array([[1.0, np.nan], [3.0, np.nan]]), np.array([[1, 0], [1, 0]]))
    moments.update(np.array([[5.0, 7.0]]))
    np.testing.assert_allclose(moments.mean, [3, 7])
    np.testing.assert_allclose(moments.std, [np.std([1, 3, 5]), 0])
    with pytest.raises(ValueError, match="earlier batches"):
        moments.update(np.zeros((2, 5)))


def test_metrics_are_jittable_and_keep_float64():
    with jax.enable_x64(True):
        field = np.ones((1, 2, NLAT, NLON))
        got = jax.jit(lambda a, b: rmse(a, b, WEIGHTS))(field, 0 * field)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, 1, rtol=1e-14)

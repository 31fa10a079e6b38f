"""Allen-Cahn and Ginzburg-Landau against their closed forms."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax.physics import AllenCahn, GinzburgLandau
from sfno_jax.physics.reaction_diffusion import etdrk4_coefficients


def grown(square: float, t: float) -> float:
    """1 + r0^2 (e^2t - 1): the solution of r' = r - r^3 is r0 e^t over its square root."""
    return 1 + square * (math.exp(2 * t) - 1)


def test_allen_cahn_uniform_state() -> None:
    with jax.enable_x64(True):
        solver = AllenCahn(12, 24, 0.01)
        spec = solver.from_grid(np.full((12, 24), 0.1))
        end = np.asarray(solver.to_grid(solver.integrate(spec, 300)))
    want = 0.1 * math.exp(3.0) / math.sqrt(grown(0.01, 3.0))
    np.testing.assert_allclose(end, want, rtol=1e-9)


def test_ginzburg_landau_uniform_state() -> None:
    """|A| as in Allen-Cahn; the phase turns by -b log(1 + ...) / 2."""
    start = 0.1 * np.exp(0.3j)
    with jax.enable_x64(True):
        solver = GinzburgLandau(12, 24, 0.01, detuning=1.7)
        spec = solver.from_grid(np.full((12, 24), start))
        end = np.asarray(solver.to_grid(solver.integrate(spec, 300)))
    factor = grown(0.01, 3.0)
    want = start * math.exp(3.0) / math.sqrt(factor) * np.exp(-0.5j * 1.7 * math.log(factor))
    np.testing.assert_allclose(end, want, rtol=1e-8)


@pytest.mark.parametrize("radius", [1.0, 2.0])
def test_small_amplitudes_grow_or_decay_at_their_degree_s_rate(radius: float) -> None:
    """Rates 1 - c l(l+1)/R^2, exact whatever the step: here 20 times the explicit limit."""
    with jax.enable_x64(True):
        solver = AllenCahn(12, 24, 2.0, diffusivity=0.5, radius=radius)
        spec = 1e-9 * solver.random_state(jax.random.key(0))
        end = np.asarray(solver.integrate(spec, 2))
        l = np.arange(solver.lmax)[:, None]
        want = np.asarray(spec) * np.exp(4.0 * (1 - 0.5 * l * (l + 1) / radius**2))
        np.testing.assert_allclose(end, want, rtol=1e-10, atol=1e-27)

        turning = GinzburgLandau(12, 24, 2.0, diffusivity=0.5, dispersion=2.0, radius=radius)
        pair = np.zeros((2, turning.lmax, turning.lmax), complex)
        pair[0, 2, 1], pair[1, 2, 1] = 1e-9, 0.5e-9
        end = np.asarray(turning.integrate(pair, 2))[:, 2, 1]
        rate = 1 - 0.5 * (1 + 2j) * 6 / radius**2
        want = (1e-9 + 0.5e-9j) * np.exp(4.0 * rate)
        np.testing.assert_allclose(end[0].real + 1j * end[1].real, want, rtol=1e-10)
        np.testing.assert_allclose(end.imag, 0, atol=1e-25)


@pytest.mark.parametrize("kind", [AllenCahn, GinzburgLandau])
def test_fourth_order(kind: type[AllenCahn] | type[GinzburgLandau]) -> None:
    with jax.enable_x64(True):

        def run(steps: int) -> np.ndarray:
            solver = kind(12, 24, 2.0 / steps, diffusivity=0.02)
            rng = np.random.default_rng(1)
            field = 0.5 * rng.normal(size=(12, 24))
            if kind is GinzburgLandau:
                field = field + 0.5j * rng.normal(size=(12, 24))
            spec = solver.from_grid(field)
            return np.asarray(solver.integrate(spec, steps))

        truth = run(320)
        errors = [np.abs(run(n) - truth).max() for n in (20, 40)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 3.6).all(), orders
    assert (orders < 4.6).all(), orders


def test_allen_cahn_separates_into_two_phases() -> None:
    """The free energy int c |grad u|^2 / 2 + (1 - u^2)^2 / 4 can only fall."""
    solver = AllenCahn(32, 64, 0.1, diffusivity=0.02)
    spec = solver.random_state(jax.random.key(2), 0.1)
    weights = solver.sht.sphere_grid.area_weights
    l = np.arange(solver.lmax)[:, None]
    twice = np.where(np.arange(solver.lmax) == 0, 1, 2)
    energies = []
    for _ in range(6):
        spec = solver.integrate(spec, 30)
        u = np.asarray(solver.to_grid(spec), np.float64)
        gradient = (0.02 * l * (l + 1) * twice * np.abs(np.asarray(spec)) ** 2).sum() / 2
        energies.append(gradient + (weights * (1 - u**2) ** 2 / 4).sum())
    assert (np.diff(energies) < 1e-5).all(), energies
    assert energies[-1] < 0.5 * math.pi
    assert 0.9 < np.abs(u).max() < 1.1


def test_batches_and_precision() -> None:
    solver = GinzburgLandau(12, 24, 0.1)
    rng = np.random.default_rng(3)
    field = (rng.normal(size=(2, 12, 24)) + 1j * rng.normal(size=(2, 12, 24))).astype(np.complex64)
    spec = solver.from_grid(field)
    both = solver.integrate(spec, 5)
    assert both.dtype == jnp.complex64
    np.testing.assert_allclose(both[1], solver.integrate(spec[1], 5), atol=1e-6)


def test_gradient_against_finite_differences() -> None:
    with jax.enable_x64(True):
        solver = AllenCahn(12, 24, 0.1)
        start = solver.from_grid(np.random.default_rng(4).normal(size=(12, 24)))

        def loss(a: jax.Array) -> jax.Array:
            end = solver.integrate(a * start, 5)
            return (end.real**2 + end.imag**2).sum()

        slope = float(jax.jit(jax.grad(loss))(1.0))
        value = jax.jit(loss)
        want = float((value(1 + 1e-5) - value(1 - 1e-5)) / 2e-5)
    assert slope == pytest.approx(want, rel=1e-8)
    assert abs(slope) > 1e-3


def test_etdrk4_coefficients_near_and_at_zero() -> None:
    rates = np.array([0.0, 1e-9, -1e-3, -5.0, -300.0, 2j])
    whole, half, q, first, middle, last = etdrk4_coefficients(rates, 0.1)
    np.testing.assert_allclose(whole, np.exp(rates * 0.1))
    np.testing.assert_allclose(half**2, whole, rtol=1e-13)
    np.testing.assert_allclose([q[0], first[0], middle[0], last[0]], np.array([3, 1, 2, 1]) * 0.1 / 6, rtol=1e-13)
    z = rates[3:] * 0.1
    np.testing.assert_allclose(q[3:], 0.1 * (np.exp(z / 2) - 1) / z, rtol=1e-12)
    # They integrate a constant reaction exactly: phi_1(z).
    total = (first + 2 * middle + last)[3:]
    np.testing.assert_allclose(total, 0.1 * (np.exp(z) - 1) / z, rtol=1e-11)


BAD: list[tuple[type[Any], dict[str, Any], str]] = [
    (AllenCahn, {"dt": 0.0}, "dt=0.0"),
    (AllenCahn, {"diffusivity": -1.0}, "diffusivity=-1.0"),
    (AllenCahn, {"diffusivity": math.nan}, "diffusivity=nan"),
    (AllenCahn, {"radius": 0.0}, "radius=0.0"),
    (AllenCahn, {"grid": "gauss"}, "grid='gauss'"),
    (AllenCahn, {"lmax": 99}, "lmax=99"),
    (GinzburgLandau, {"dispersion": math.inf}, "dispersion=inf"),
    (GinzburgLandau, {"detuning": math.nan}, "detuning=nan"),
]


@pytest.mark.parametrize(("kind", "change", "message"), BAD)
def test_bad_parameters(kind: type[Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{"nlat": 12, "nlon": 24, "dt": 0.1, **change})


def test_bad_arguments() -> None:
    solver = AllenCahn(12, 24, 0.1)
    with pytest.raises(ValueError, match=r"spec has shape \(3, 3\)"):
        solver.integrate(np.zeros((3, 3), np.complex64), 1)
    with pytest.raises(ValueError, match="nsteps=-1"):
        solver.integrate(solver.random_state(jax.random.key(0)), -1)
    with pytest.raises(TypeError, match="64-bit"):
        solver.from_grid(np.zeros((12, 24)))

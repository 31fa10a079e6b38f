"""Gaussian random fields: their law, their truncation, their errors."""

import jax
import numpy as np
import pytest

from sfno_jax.grids import GRIDS, SphereGrid
from sfno_jax.random_fields import GaussianRandomField
from sfno_jax.spectral import power_spectrum

SAMPLES = 4000


def check_spectrum(field, want):
    """The mean power of each degree lies within five standard errors of its expectation."""
    coeffs = field.coefficients(jax.random.key(1), (SAMPLES,))
    power = np.asarray(power_spectrum(coeffs), dtype=np.float64)
    error = power.std(axis=0) / np.sqrt(SAMPLES)
    np.testing.assert_array_less(np.abs(power.mean(axis=0) - want), 5 * error + 1e-30)
    np.testing.assert_allclose(field.expected_power, want, rtol=1e-12)
    return coeffs


@pytest.mark.parametrize("sigma", [None, 0.7])
def test_isotropic_spectrum(sigma):
    alpha, tau, radius = 2.5, 4.0, 2.0
    field = GaussianRandomField(24, 48, alpha=alpha, tau=tau, sigma=sigma, radius=radius)
    degree = np.arange(field.isht.lmax)
    scale = tau ** (alpha - 1) if sigma is None else sigma
    want = (2 * degree + 1) * scale**2 * (degree * (degree + 1) / radius**2 + tau**2) ** -alpha
    want[0] = 0
    coeffs = np.asarray(check_spectrum(field, want))
    # All orders of a degree share the variance; the fields are real.
    variance = np.mean(np.abs(coeffs[:, 6, :7]) ** 2, axis=0)
    np.testing.assert_allclose(variance, want[6] / 13, rtol=0.12)
    assert np.all(coeffs[:, :, 0].imag == 0)
    assert np.all(coeffs[:, 2, 3:] == 0)


def test_reference_spectrum():
    field = GaussianRandomField(24, 48, convention="torch-harmonics")
    degree = np.arange(field.isht.lmax)
    want = (4 * degree + 1) * 9 * (degree * (degree + 1) + 9.0) ** -2 / (4 * np.pi)
    want[0] = 0
    coeffs = np.asarray(check_spectrum(field, want))
    ratio = np.mean(np.abs(coeffs[:, 6, 1:7]) ** 2) / np.mean(np.abs(coeffs[:, 6, 0]) ** 2)
    np.testing.assert_allclose(ratio, 2, rtol=0.1)


def test_spectrum_test_can_fail():
    field = GaussianRandomField(24, 48)
    with pytest.raises(AssertionError):
        check_spectrum(field, field.expected_power * 1.05)


def test_from_spectrum():
    want = np.array([2.0, 0.0, 3.0, 1.0, 0.5])
    field = GaussianRandomField.from_spectrum(want, 16, 32, grid="legendre-gauss")
    check_spectrum(field, want)
    x = np.asarray(field(jax.random.key(3), (SAMPLES,)))
    # Point variance of an isotropic field is the same everywhere: sum of power over 4 pi.
    np.testing.assert_allclose(x.var(axis=0), want.sum() / (4 * np.pi), rtol=0.15)


@pytest.mark.parametrize(
    ("grid", "shape"), [*((grid, (17, 32)) for grid in GRIDS), ("equiangular", (48, 32)), ("lobatto", (12, 64))]
)
def test_follows_the_truncation_of_its_transform(grid, shape):
    """earth2studio#736: noise code that assumed lmax == nlat broke when the truncation changed."""
    field = GaussianRandomField(*shape, grid=grid)
    x = field(jax.random.key(0), (2, 3))
    assert x.shape == (2, 3, *shape)
    assert x.dtype == np.float32
    coeffs = jax.eval_shape(field.coefficients, jax.random.key(0))
    assert coeffs.shape == (field.isht.lmax, field.isht.mmax)
    assert field.isht.lmax == field.isht.mmax == min(SphereGrid(*shape, grid).default_lmax, shape[1] // 2)
    assert np.all(np.isfinite(x))
    assert np.std(x) > 0.01


def test_zero_mean_seed_and_precision():
    field = GaussianRandomField(16, 32, grid="legendre-gauss")
    x = field(jax.random.key(5))
    weights = SphereGrid(16, 32).area_weights
    assert abs(np.sum(weights * np.asarray(x))) < 1e-5
    np.testing.assert_array_equal(x, field(jax.random.key(5)))
    assert np.abs(x - field(jax.random.key(6))).max() > 0.01
    with jax.enable_x64(True):
        double = field(jax.random.key(5), dtype=np.float64)
        assert double.dtype == np.float64
        assert field(jax.random.key(5), dtype=np.float32).dtype == np.float32


def test_is_a_pytree():
    field = GaussianRandomField(16, 32)
    jitted = jax.jit(lambda f, key: f(key, (2,)))
    key = jax.random.key(0)
    np.testing.assert_allclose(jitted(field, key), field(key, (2,)), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianRandomField(16, 32, alpha=1.0), "alpha=1.0"),
        (lambda: GaussianRandomField(16, 32, tau=0.0), "tau=0.0"),
        (lambda: GaussianRandomField(16, 32, sigma=-1.0), "sigma=-1.0"),
        (lambda: GaussianRandomField(16, 32, radius=float("inf")), "radius=inf"),
        (lambda: GaussianRandomField(16, 32, convention="other"), "torch-harmonics"),
        (lambda: GaussianRandomField(16, 32, grid="gauss"), "gauss"),
        (lambda: GaussianRandomField(32, 32, grid="legendre-gauss", lmax=20), "nlon/2 = 16"),
        (lambda: GaussianRandomField.from_spectrum(np.ones((2, 3)), 16, 32), "shape"),
        (lambda: GaussianRandomField.from_spectrum([1.0, -2.0], 16, 32), r"power\[1\]=-2"),
        (lambda: GaussianRandomField.from_spectrum(np.ones(40), 16, 128), "lmax=40"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Spectra, filters, truncation and regridding."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfno_jax.grids import GRIDS, SphereGrid
from sfno_jax.spectral import (
    apply_filter,
    coherence,
    cross_spectrum,
    exponential_filter,
    gaussian_filter,
    hyperdiffusion_filter,
    power_spectrum,
    regrid,
    resample,
)
from sfno_jax.transforms import InverseRealSHT, RealSHT

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def random_coeffs(seed, shape, lmax):
    rng = np.random.default_rng(seed)
    coeffs = rng.normal(size=(*shape, lmax, lmax)) + 1j * rng.normal(size=(*shape, lmax, lmax))
    coeffs *= np.tri(lmax)
    coeffs[..., 0] = coeffs[..., 0].real
    return coeffs


@pytest.mark.parametrize("grid", GRIDS[:3])
def test_parseval(grid):
    sphere = SphereGrid(40, 40, grid)
    coeffs = random_coeffs(0, (3,), 12)
    field = InverseRealSHT(40, 40, 12, 12, grid)(coeffs)
    integral = np.sum(sphere.area_weights * np.asarray(field) ** 2, axis=(-2, -1))
    np.testing.assert_allclose(power_spectrum(coeffs).sum(-1), integral, rtol=1e-12)


def test_power_of_one_harmonic():
    coeffs = np.zeros((6, 6), complex)
    coeffs[4, 0], coeffs[4, 2], coeffs[5, 5] = 2, 3 - 4j, 1j
    np.testing.assert_allclose(power_spectrum(coeffs), [0, 0, 0, 0, 4 + 2 * 25, 2])


def test_cross_spectrum_is_the_covariance():
    sphere = SphereGrid(16, 32)
    a, b = random_coeffs(1, (2,), 12)
    fields = InverseRealSHT(16, 32, 12, 12, "legendre-gauss")(jnp.stack([a, b]))
    integral = np.sum(sphere.area_weights * np.asarray(fields[0] * fields[1]))
    np.testing.assert_allclose(cross_spectrum(a, b).sum(), integral, rtol=1e-12)
    np.testing.assert_allclose(cross_spectrum(a, a), power_spectrum(a))
    np.testing.assert_allclose(power_spectrum(a + b), power_spectrum(a) + power_spectrum(b) + 2 * cross_spectrum(a, b))


def test_coherence():
    a, b = random_coeffs(2, (2,), 12)
    np.testing.assert_allclose(coherence(a, 3 * a), 1, rtol=1e-12)
    np.testing.assert_allclose(coherence(a, -a), -1, rtol=1e-12)
    assert np.all(np.abs(coherence(a, b))[1:] < 1)
    empty = np.array(a)
    empty[3] = 0
    assert coherence(a, empty)[3] == 0
    slope = jax.grad(lambda x: jnp.sum(coherence(a * x, empty * x)))(1.0)
    assert np.isfinite(slope)
    tiny = coherence((1e-30 * a).astype(np.complex64), (1e-14 * a).astype(np.complex64))
    assert np.all(np.isfinite(tiny))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_resample(l0, m0, l1, m1):
    with jax.enable_x64(True):
        coeffs = np.arange(1, l0 * m0 + 1).reshape(l0, m0) + 0j
        got = np.asarray(resample(coeffs, l1, m1))
    l, m = min(l0, l1), min(m0, m1)
    np.testing.assert_array_equal(got[:l, :m], coeffs[:l, :m])
    assert got.shape == (l1, m1)
    assert np.count_nonzero(got) == l * m


def test_resample_default_is_triangular():
    assert resample(np.zeros((2, 5, 3), np.complex64), 4).shape == (2, 4, 4)


@pytest.mark.parametrize(("source", "target"), list(itertools.pairwise(GRIDS)))
def test_regrid_exact(source, target):
    a, b = SphereGrid(25, 48, source), SphereGrid(34, 70, target)
    coeffs = random_coeffs(3, (2,), 20)
    before, after = (InverseRealSHT(g.nlat, g.nlon, 20, 20, g.kind)(coeffs) for g in (a, b))
    np.testing.assert_allclose(regrid(before, a, b), after, atol=1e-11)
    np.testing.assert_allclose(regrid(before, a, b, lmax=20), after, atol=1e-11)


def test_regrid_keeps_the_mean_and_the_dtype():
    a, b = SphereGrid(24, 48, "equiangular"), SphereGrid(12, 20, "legendre-gauss")
    x = np.random.default_rng(4).normal(size=(3, 24, 48)).astype(np.float32)
    y = regrid(x, a, b)
    assert y.dtype == np.float32
    # The exact integral of the interpolant, as the transform sees it: its l = 0 coefficient.
    mean = RealSHT(24, 48, 23, 23, "equiangular")(x)[:, 0, 0].real * np.sqrt(4 * np.pi)
    np.testing.assert_allclose(np.sum(y * b.area_weights, axis=(-2, -1)), mean, atol=2e-5)
    gauss = SphereGrid(24, 48)
    want = np.sum(x * gauss.area_weights, axis=(-2, -1))
    got = np.sum(regrid(x, gauss, b) * b.area_weights, axis=(-2, -1))
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_regrid_drops_the_nyquist_order():
    a, b = SphereGrid(16, 16), SphereGrid(16, 32)
    stripes = np.where(np.arange(16) % 2, -1.0, 1.0) * np.ones((16, 1))
    np.testing.assert_allclose(regrid(stripes, a, b), 0, atol=1e-13)


def test_regrid_with_response():
    a, b = SphereGrid(16, 32), SphereGrid(24, 48)
    coeffs = random_coeffs(5, (), 12)
    response = np.linspace(1, 0, 12)
    before = InverseRealSHT(16, 32, 12, 12, "legendre-gauss")(coeffs)
    want = InverseRealSHT(24, 48, 12, 12, "legendre-gauss")(coeffs * response[:, None])
    got = jax.jit(lambda x: regrid(x, a, b, lmax=12, response=response))(before)
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_filters():
    f = exponential_filter(20, order=8, attenuation=36, cutoff=5)
    np.testing.assert_array_equal(f[:6], 1)
    np.testing.assert_allclose(f[-1], np.exp(-36))
    assert np.all(np.diff(f[5:]) < 0)
    h = hyperdiffusion_filter(32, dt=150.0)
    np.testing.assert_allclose(h[[0, -1]], [1, np.exp(-150 / 7200)])
    np.testing.assert_allclose(hyperdiffusion_filter(32, 300.0), h**2)  # two half steps are one step
    degree = np.arange(9)
    np.testing.assert_allclose(gaussian_filter(9, 0.2, 2.0), np.exp(-degree * (degree + 1) * 0.01 / 2))
    for one in (exponential_filter(1), hyperdiffusion_filter(1, 1.0), gaussian_filter(1, 0.1)):
        np.testing.assert_allclose(one, 1)


def test_golden_hyperdiffusion():
    golden = np.load(GOLDEN / "swe_galewsky_48x96_lg.npz")
    want = np.ravel(golden["hyperdiff"])[:32]
    np.testing.assert_allclose(hyperdiffusion_filter(32, 150.0), want, rtol=1e-6)
    assert np.abs(hyperdiffusion_filter(32, 150.0, order=3) - want).max() > 1e-4


def test_apply_filter_per_sample():
    coeffs = random_coeffs(6, (2, 3), 8).astype(np.complex64)
    response = np.arange(16.0).reshape(2, 1, 8)
    got = apply_filter(coeffs, response)
    assert got.dtype == np.complex64
    np.testing.assert_allclose(got, coeffs * response[..., None], rtol=1e-6)


def test_golden_era5_power():
    golden = np.load(GOLDEN / "era5_tl31_500hPa.npz")
    field = golden["geopotential"].astype(np.float64)
    coeffs = RealSHT(32, 64, 32, 32, "legendre-gauss")(field)
    want = golden["z_power_per_degree"]
    np.testing.assert_allclose(power_spectrum(coeffs), want, rtol=1e-5)
    shifted = RealSHT(32, 64, 32, 32, "legendre-gauss")(np.roll(field, 1, axis=0))
    assert np.abs(power_spectrum(shifted) / want - 1).max() > 1e-2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_spectrum(np.zeros(4) + 0j), "lmax, mmax"),
        (lambda: cross_spectrum(np.zeros((4, 4)) + 0j, np.zeros((4, 3)) + 0j), "truncations"),
        (lambda: resample(np.zeros((4, 4)) + 0j, 0), "lmax=0"),
        (lambda: resample(np.zeros((4, 4)) + 0j, 4, 0), "mmax=0"),
        (lambda: apply_filter(np.zeros((4, 4)) + 0j, np.ones(3)), "4 degrees"),
        (lambda: regrid(np.zeros((8, 16)), SphereGrid(8, 16), SphereGrid(8, 16), lmax=9), "lmax=9"),
        (
            lambda: regrid(np.zeros((8, 16)), SphereGrid(8, 16), SphereGrid(8, 16), response=np.ones(8)),
            "response",
        ),
        (lambda: regrid(np.zeros((9, 16)), SphereGrid(8, 16), SphereGrid(8, 16)), "nlat"),
        (lambda: exponential_filter(4, cutoff=3), "cutoff=3"),
        (lambda: exponential_filter(0), "lmax=0"),
        (lambda: hyperdiffusion_filter(4, dt=-1.0), "dt=-1"),
        (lambda: gaussian_filter(4, width=-1.0), "width=-1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Derivatives on the sphere against closed forms, finite differences and ERA5 golden values."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax.differential import (
    divergence,
    east_north,
    gradient,
    helmholtz,
    inverse_laplacian,
    laplacian,
    laplacian_eigenvalues,
    theta_lambda,
    vorticity,
    vorticity_divergence,
    wind,
)
from sfno_jax.grids import GRIDS, SphereGrid
from sfno_jax.transforms import InverseRealSHT, InverseRealVectorSHT, RealSHT, RealVectorSHT

GOLDEN = Path(__file__).parent / "golden"
EARTH_RADIUS = 6.37122e6


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def transforms(nlat, nlon, lmax, grid="legendre-gauss", **kwargs):
    make = (RealSHT, InverseRealSHT, RealVectorSHT, InverseRealVectorSHT)
    return tuple(kind(nlat, nlon, lmax, lmax, grid, **kwargs) for kind in make)


def random_coeffs(rng, shape, lmax):
    """Coefficients of a smooth real field of zero mean."""
    coeffs = rng.normal(size=(*shape, lmax, lmax)) + 1j * rng.normal(size=(*shape, lmax, lmax))
    coeffs *= np.tri(lmax)
    coeffs[..., 0] = coeffs[..., 0].real
    coeffs[..., 0, :] = 0
    return coeffs


def mesh(grid):
    return np.meshgrid(grid.colatitudes, grid.longitudes, indexing="ij")


def test_eigenvalues():
    degree = np.arange(7)
    np.testing.assert_allclose(laplacian_eigenvalues(7, 2.0), -degree * (degree + 1) / 4)


def test_laplacian_of_harmonics_and_inverse():
    sht, isht, _, _ = transforms(16, 32, 12)
    theta, lam = mesh(SphereGrid(16, 32))
    # Y_5,3 up to a factor: sin^3 (9 cos^2 - 1) cos 3 lambda
    field = np.sin(theta) ** 3 * (9 * np.cos(theta) ** 2 - 1) * np.cos(3 * lam)
    radius = 3.0
    got = isht(laplacian(sht(field), radius))
    np.testing.assert_allclose(got, -30 / radius**2 * field, atol=1e-13)
    coeffs = random_coeffs(np.random.default_rng(0), (2,), 12)
    np.testing.assert_allclose(laplacian(inverse_laplacian(coeffs, radius), radius), coeffs, atol=1e-13)


def test_inverse_laplacian_drops_the_mean():
    coeffs = np.ones((4, 4)) * np.tri(4) + 0j
    assert np.all(inverse_laplacian(coeffs)[0] == 0)


@pytest.mark.parametrize(("grid", "norm"), [*zip(GRIDS, ["ortho", "schmidt", "unnorm", "ortho"], strict=True)])
def test_gradient_closed_form(grid, norm):
    lmax = 12
    ivsht = InverseRealVectorSHT(33, 40, lmax, lmax, grid, norm=norm)
    sht = RealSHT(33, 40, lmax, lmax, "legendre-gauss", norm=norm)
    theta, lam = mesh(SphereGrid(33, 40))
    coeffs = sht(np.sin(theta) ** 2 * np.cos(theta) * np.sin(2 * lam) + np.cos(theta) ** 2)
    theta, lam = mesh(SphereGrid(33, 40, grid))
    radius = 2.5
    got = gradient(coeffs, ivsht, radius)
    s, c = np.sin(theta), np.cos(theta)
    d_theta = (2 * s * c**2 - s**3) * np.sin(2 * lam) - 2 * c * s
    d_lambda = s * c * 2 * np.cos(2 * lam)
    np.testing.assert_allclose(got, np.stack([d_theta, d_lambda]) / radius, atol=1e-12)


def test_gradient_finite_differences():
    lmax, nlon = 10, 32
    _, isht, _, ivsht = transforms(24, nlon, lmax)
    coeffs = random_coeffs(np.random.default_rng(1), (), lmax)
    got = gradient(coeffs, ivsht)
    # Synthesis on a fine equiangular grid, central differences at its rows and columns.
    nlat = 1025
    fine = np.asarray(InverseRealSHT(nlat, nlon, lmax, lmax, "equiangular")(coeffs))
    h = np.pi / (nlat - 1)
    d_theta = (fine[2:] - fine[:-2]) / (2 * h)
    exact = np.asarray(gradient(coeffs, InverseRealVectorSHT(nlat, nlon, lmax, lmax, "equiangular")))
    scale = np.abs(exact).max()
    assert np.abs(exact[0, 1:-1] - d_theta).max() < 2e-4 * scale
    m = np.fft.rfftfreq(nlon, 1 / nlon)
    along = np.fft.irfft(1j * m * np.fft.rfft(isht(coeffs)), nlon)
    np.testing.assert_allclose(got[1] * np.sin(SphereGrid(24, nlon).colatitudes)[:, None], along, atol=1e-11)


@pytest.mark.parametrize(("grid", "csphase"), [("legendre-gauss", False), ("lobatto", True), ("equiangular", True)])
def test_solid_body_rotation(grid, csphase):
    u0 = 10.0
    _, isht, vsht, _ = transforms(17, 32, 9, grid, csphase=csphase)
    latitude = SphereGrid(17, 32, grid).latitudes[:, None] * np.ones(32)
    flow = np.stack([u0 * np.cos(latitude), np.zeros_like(latitude)])
    vrt, div = isht(vorticity_divergence(flow, vsht, EARTH_RADIUS)) * EARTH_RADIUS
    np.testing.assert_allclose(vrt, 2 * u0 * np.sin(latitude), atol=1e-12)
    np.testing.assert_allclose(div, 0, atol=1e-12)
    np.testing.assert_allclose(isht(vorticity(flow, vsht, EARTH_RADIUS)) * EARTH_RADIUS, vrt, atol=1e-12)
    np.testing.assert_allclose(isht(divergence(flow, vsht, EARTH_RADIUS)) * EARTH_RADIUS, 0, atol=1e-12)


def test_signs_of_northward_wind():
    """A wind towards the north pole converges there: v = cos(latitude) has divergence -2 sin."""
    _, isht, vsht, _ = transforms(16, 32, 9)
    latitude = SphereGrid(16, 32).latitudes[:, None] * np.ones(32)
    flow = np.stack([np.zeros_like(latitude), np.cos(latitude)])
    vrt, div = isht(vorticity_divergence(flow, vsht))
    np.testing.assert_allclose(div, -2 * np.sin(latitude), atol=1e-13)
    np.testing.assert_allclose(vrt, 0, atol=1e-13)


@pytest.mark.parametrize("norm", ["ortho", "schmidt", "unnorm"])
def test_wind_round_trip(norm):
    _, _, vsht, ivsht = transforms(20, 40, 16, norm=norm)
    vrtdiv = random_coeffs(np.random.default_rng(2), (3, 2), 16)
    flow = wind(vrtdiv, ivsht, EARTH_RADIUS)
    back = vorticity_divergence(flow, vsht, EARTH_RADIUS)
    np.testing.assert_allclose(back, vrtdiv, atol=1e-12)


def test_identities():
    """curl grad = 0, div grad = laplacian, div (k x grad) = 0, curl (k x grad) = laplacian."""
    lmax, radius = 14, 3.0
    _, _, vsht, ivsht = transforms(16, 32, lmax)
    coeffs = random_coeffs(np.random.default_rng(3), (), lmax)
    grad = east_north(gradient(coeffs, ivsht, radius))
    turned = jnp.stack([-grad[1], grad[0]])  # k x (u, v) = (-v, u)
    lap = laplacian(coeffs, radius)
    np.testing.assert_allclose(divergence(grad, vsht, radius), lap, atol=1e-12)
    np.testing.assert_allclose(vorticity(grad, vsht, radius), 0, atol=1e-12)
    np.testing.assert_allclose(vorticity(turned, vsht, radius), lap, atol=1e-12)
    np.testing.assert_allclose(divergence(turned, vsht, radius), 0, atol=1e-12)


def test_east_north_and_back():
    v = np.random.default_rng(4).normal(size=(3, 2, 4, 8))
    np.testing.assert_array_equal(theta_lambda(east_north(v)), v)
    np.testing.assert_array_equal(east_north(v)[:, 0], v[:, 1])
    np.testing.assert_array_equal(east_north(v)[:, 1], -v[:, 0])


def test_helmholtz():
    lmax, radius = 14, EARTH_RADIUS
    sht, isht, vsht, ivsht = transforms(16, 32, lmax)
    psi, chi = random_coeffs(np.random.default_rng(5), (2,), lmax) * 1e7
    grad = east_north(gradient(jnp.stack([psi, chi]), ivsht, radius))
    rotational, divergent = jnp.stack([-grad[0, 1], grad[0, 0]]), grad[1]
    parts = helmholtz(rotational + divergent, vsht, isht, ivsht, radius)
    np.testing.assert_allclose(parts.streamfunction, isht(psi), atol=1e-4)
    np.testing.assert_allclose(parts.velocity_potential, isht(chi), atol=1e-4)
    np.testing.assert_allclose(parts.rotational, rotational, atol=1e-10)
    np.testing.assert_allclose(parts.divergent, divergent, atol=1e-10)
    np.testing.assert_allclose(sht(parts.vorticity), laplacian(psi, radius), atol=1e-12 * np.abs(parts.vorticity).max())
    np.testing.assert_allclose(
        sht(parts.divergence), laplacian(chi, radius), atol=1e-12 * np.abs(parts.divergence).max()
    )
    assert np.abs(parts.rotational).max() > 1


def test_golden_era5():
    golden = np.load(GOLDEN / "era5_tl31_500hPa.npz")
    _, isht, vsht, ivsht = transforms(32, 64, 32, csphase=False)
    flow = np.stack([golden["u"], golden["v"]]).astype(np.float64)
    got = np.asarray(vorticity_divergence(flow, vsht, EARTH_RADIUS))
    want = golden["vrtdiv_coeffs_nocs"]
    scale = np.abs(want).max(axis=(1, 2), keepdims=True)
    assert np.max(np.abs(got - want) / scale) < 1e-5
    grids = np.asarray(isht(got))
    for i, name in enumerate(("vrt_grid", "div_grid")):
        assert np.abs(grids[i] - golden[name]).max() < 1e-5 * np.abs(golden[name]).max()
    # The comparison sees a shift of the wind by one column.
    moved = np.asarray(vorticity_divergence(np.roll(flow, 1, axis=-1), vsht, EARTH_RADIUS))
    assert np.max(np.abs(moved - want) / scale) > 1e-2
    # What the truncation keeps of the wind comes back, apart from what T31 removes.
    kept = np.asarray(wind(got, ivsht, EARTH_RADIUS))
    assert np.sqrt(np.mean((kept - flow) ** 2)) < 0.2 * np.sqrt(np.mean(flow**2))
    np.testing.assert_allclose(vorticity_divergence(kept, vsht, EARTH_RADIUS), got, atol=1e-16)


def test_single_precision_and_gradients():
    _, _, vsht, ivsht = transforms(16, 32, 10)
    vrtdiv = random_coeffs(np.random.default_rng(6), (2,), 10).astype(np.complex64)
    flow = wind(vrtdiv, ivsht, EARTH_RADIUS)
    assert flow.dtype == np.float32
    back = vorticity_divergence(flow, vsht, EARTH_RADIUS)
    assert back.dtype == np.complex64
    np.testing.assert_allclose(back, vrtdiv, atol=5e-6)

    def energy(v):
        return jnp.sum(jnp.abs(vorticity_divergence(v, vsht)) ** 2)

    v = np.random.default_rng(7).normal(size=(2, 16, 32))
    step = np.random.default_rng(8).normal(size=v.shape)
    slope = (energy(v + 1e-6 * step) - energy(v - 1e-6 * step)) / 2e-6
    np.testing.assert_allclose(np.vdot(jax.grad(energy)(v), step), slope, rtol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: laplacian(np.zeros(4) + 0j), "lmax, mmax"),
        (lambda t: laplacian(np.zeros((4, 4)) + 0j, radius=0.0), "radius=0.0"),
        (lambda t: laplacian_eigenvalues(0), "lmax=0"),
        (lambda t: inverse_laplacian(np.zeros((4, 4)) + 0j, radius=float("nan")), "radius=nan"),
        (lambda t: vorticity_divergence(np.zeros((16, 32)), t[2]), "two components"),
        (lambda t: vorticity_divergence(np.zeros((3, 16, 32)), t[2]), "two components"),
        (lambda t: wind(np.zeros((10, 10)) + 0j, t[3]), "vorticity and"),
        (lambda t: east_north(np.zeros((3, 16, 32))), "two components"),
        (
            lambda t: helmholtz(np.zeros((2, 16, 32)), t[2], InverseRealSHT(16, 32, 9, 9, "legendre-gauss"), t[3]),
            "agree in lmax",
        ),
        (
            lambda t: helmholtz(
                np.zeros((2, 16, 32)),
                t[2],
                InverseRealSHT(16, 32, 10, 10, "legendre-gauss", csphase=False),
                t[3],
            ),
            "agree in csphase",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(transforms(16, 32, 10))

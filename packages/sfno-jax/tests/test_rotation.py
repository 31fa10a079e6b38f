"""Rotations against closed forms, 3 x 3 matrices, ducc0 golden values and group laws."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax.grids import SphereGrid
from sfno_jax.rotation import (
    Rotation,
    euler_angles,
    quarter_turn_wigner_d,
    random_euler_angles,
    rotate,
    rotation_matrix,
)
from sfno_jax.spectral import power_spectrum
from sfno_jax.transforms import InverseRealSHT, RealSHT

GOLDEN = Path(__file__).parent / "golden"
ANGLES = (0.7, 1.9, -2.3)


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


def points(grid):
    theta, lam = np.meshgrid(grid.colatitudes, grid.longitudes, indexing="ij")
    return np.stack([np.sin(theta) * np.cos(lam), np.sin(theta) * np.sin(lam), np.cos(theta)], -1)


@pytest.mark.parametrize(
    ("angles", "csphase"),
    [(ANGLES, True), (ANGLES, False), ((-1.0, np.pi, 0.2), True), ((0.3, 0.0, 0.0), True)],
)
def test_rotated_plane_wave(angles, csphase):
    """exp(k.x) rotates to exp(k.(R^-1 x)) = exp((R k).x)."""
    lmax = 24
    grid = SphereGrid(lmax, 2 * lmax)
    x, k = points(grid), np.array([0.3, 1.1, -0.8])
    kwargs = {"grid": "legendre-gauss", "csphase": csphase}
    sht = RealSHT(lmax, 2 * lmax, lmax, lmax, **kwargs)
    isht = InverseRealSHT(lmax, 2 * lmax, lmax, lmax, **kwargs)
    got = isht(rotate(sht(np.exp(x @ k)), *angles, csphase=csphase))
    want = np.exp(x @ (np.asarray(rotation_matrix(*angles)) @ k))
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_degree_one_is_the_matrix():
    """z + x a + y b has degree 1 only: the coefficients of the gradient vector turn like a point."""
    isht = InverseRealSHT(8, 16, 4, 4, "legendre-gauss")
    sht = RealSHT(8, 16, 4, 4, "legendre-gauss")
    x = points(SphereGrid(8, 16))
    r = np.asarray(rotation_matrix(*ANGLES))
    for axis in np.eye(3):
        got = isht(rotate(sht(x @ axis), *ANGLES))
        np.testing.assert_allclose(got, x @ (r @ axis), atol=1e-14)


def test_composition_and_inverse():
    coeffs = random_coeffs(0, (2,), 20)
    second = (0.4, 2.2, 1.3)
    both = rotation_matrix(*second) @ rotation_matrix(*ANGLES)
    once = rotate(coeffs, *euler_angles(both))
    np.testing.assert_allclose(rotate(rotate(coeffs, *ANGLES), *second), once, atol=1e-12)
    rotation = Rotation(20)
    back = rotation.inverse(rotation(coeffs, *ANGLES), *ANGLES)
    np.testing.assert_allclose(back, coeffs, atol=1e-12)
    np.testing.assert_allclose(rotate(coeffs, 0, 0, 0), coeffs, atol=1e-13)


def test_power_is_kept_per_degree_to_512():
    coeffs = random_coeffs(1, (), 512)
    rotation = Rotation(512)
    rotated = rotation(coeffs, *ANGLES)
    np.testing.assert_allclose(power_spectrum(rotated), power_spectrum(coeffs), rtol=1e-12)
    np.testing.assert_allclose(rotation.inverse(rotated, *ANGLES), coeffs, atol=1e-11)
    assert np.abs(np.asarray(rotated) - coeffs).max() > 1
    assert np.all(np.asarray(rotated)[np.triu_indices(512, 1)] == 0)


def test_table_size_is_documented():
    rotation = Rotation(128, dtype=np.float32)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(rotation))
    assert 3.2e6 < size < 3.5e6


def test_quarter_turn_closed_forms():
    table = quarter_turn_wigner_d(3)
    np.testing.assert_allclose(table[0, 0, 0], 1)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(table[1, :2, :2], [[0, half], [-half, 0.5]], atol=1e-15)
    q = np.sqrt(6) / 4
    np.testing.assert_allclose(table[2], [[-0.5, 0, q], [0, -0.5, 0.5], [q, -0.5, 0.25]], atol=1e-15)
    np.testing.assert_array_equal(table[1, 2], 0)


def test_golden_ducc0():
    golden = np.load(GOLDEN / "rotation_ducc0.npz")
    coeffs, want = golden["coeffs"], golden["rotated"]
    for (psi, theta, phi), rotated in zip(golden["angles"], want, strict=True):
        got = rotate(coeffs, phi, theta, psi)
        np.testing.assert_allclose(got, rotated, atol=1e-12)
        assert np.abs(rotate(coeffs, phi, theta + 1e-6, psi) - rotated).max() > 1e-8


def test_angles_per_sample_and_traced():
    coeffs = random_coeffs(2, (3, 2), 10)
    a, b, c = np.random.default_rng(3).uniform(0, 3, size=(3, 3, 1))
    together = rotate(coeffs, a, b, c)
    for i in range(3):
        np.testing.assert_allclose(together[i], rotate(coeffs[i], a[i, 0], b[i, 0], c[i, 0]), atol=1e-13)
    rotation = Rotation(10)
    jitted = jax.jit(lambda r, x, *angles: r(x, *angles))
    np.testing.assert_allclose(jitted(rotation, coeffs, a, b, c), together, atol=1e-13)
    mapped = jax.vmap(rotate)(coeffs[:, 0], *(jnp.asarray(x[:, 0]) for x in (a, b, c)))
    np.testing.assert_allclose(mapped, together[:, 0], atol=1e-13)


def test_gradient_in_the_angles():
    coeffs = random_coeffs(4, (2,), 8)

    @jax.jit
    def overlap(angles):
        return jnp.sum(jnp.real(jnp.conj(coeffs[0]) * rotate(coeffs[1], *angles)))

    at, h = np.array(ANGLES), 1e-5
    slopes = [(overlap(at + step) - overlap(at - step)) / (2 * h) for step in h * np.eye(3)]
    np.testing.assert_allclose(jax.grad(overlap)(at), slopes, rtol=1e-7)


def test_single_precision():
    coeffs = random_coeffs(5, (), 64)
    want = rotate(coeffs, *ANGLES)
    got = rotate(coeffs.astype(np.complex64), *ANGLES)
    assert got.dtype == np.complex64
    assert np.abs(got - want).max() < 5e-6 * np.abs(want).max()
    traced = rotate(coeffs.astype(np.complex64), *(jnp.float32(x) for x in ANGLES))
    assert np.abs(traced - want).max() < 5e-5 * np.abs(want).max()


def test_works_without_x64():
    with jax.enable_x64(False):
        coeffs = random_coeffs(6, (), 12).astype(np.complex64)
        assert rotate(coeffs, *ANGLES).dtype == np.complex64
        with pytest.raises(TypeError, match="64-bit"):
            Rotation(4, dtype=np.float64)


def test_random_angles_are_uniform():
    angles = random_euler_angles(jax.random.key(0), (20000,))
    r = np.asarray(rotation_matrix(*angles))
    np.testing.assert_allclose(r @ np.swapaxes(r, -1, -2), np.eye(3) * np.ones((20000, 1, 1)), atol=1e-13)
    # Haar measure: every entry has mean 0 and variance 1/3.
    assert np.abs(r.mean(axis=0)).max() < 5 * np.sqrt(1 / 3 / 20000)
    np.testing.assert_allclose((r**2).mean(axis=0), 1 / 3, atol=0.015)


@pytest.mark.parametrize("angles", [ANGLES, (0.3, 0.0, 0.5), (0.3, np.pi, 0.5), (0.3, 1e-9, 0.5)])
def test_euler_angles_invert_the_matrix(angles):
    r = rotation_matrix(*angles)
    np.testing.assert_allclose(rotation_matrix(*euler_angles(r)), r, atol=1e-8)
    np.testing.assert_allclose(euler_angles(rotation_matrix(0.7, 1.9, 2.3)), (0.7, 1.9, 2.3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rotate(np.zeros((8, 4)) + 0j, *ANGLES), ValueError, "mmax = lmax"),
        (lambda: Rotation(0), ValueError, "lmax=0"),
        (lambda: Rotation(2000), ValueError, "lmax=2000"),
        (lambda: Rotation(4, dtype=np.float16), ValueError, "float16"),
        (lambda: Rotation(4)(np.zeros((5, 5)) + 0j, *ANGLES), ValueError, "lmax=4"),
        (
            lambda: Rotation(4, dtype=np.float32)(np.zeros((4, 4)) + 0j, *ANGLES),
            TypeError,
            "complex128",
        ),
        (
            lambda: jax.jit(lambda x: rotate(x, *ANGLES))(np.zeros((200, 200)) + 0j),
            ValueError,
            "as an argument",
        ),
        (lambda: euler_angles(np.zeros((2, 2))), ValueError, "3, 3"),
        (lambda: setattr(Rotation(2), "lmax", 3), AttributeError, "immutable"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()

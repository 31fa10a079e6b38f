"""Grids and quadratures: reference values, exactness on polynomials, and the two kinds of weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfno_jax.grids import (
    GRIDS,
    SphereGrid,
    area_weights,
    colatitudes,
    latitudes,
    longitudes,
    quadrature,
    resolve_truncation,
)

EXACT_DEGREE = {"legendre-gauss": lambda n: 2 * n - 1, "lobatto": lambda n: 2 * n - 3, "equiangular": lambda n: n - 1}


@pytest.mark.parametrize("grid", sorted(EXACT_DEGREE))
@pytest.mark.parametrize("nlat", [5, 8, 16, 64])
def test_golden_nodes_and_weights(golden, grid, nlat):
    reference = golden("quadrature")
    theta, weights = quadrature(grid, nlat)
    np.testing.assert_allclose(theta, reference[f"{grid}/{nlat}/colat"], atol=1e-14)
    np.testing.assert_allclose(weights, reference[f"{grid}/{nlat}/weights"], atol=1e-13 if grid == "lobatto" else 1e-14)
    perturbed = reference[f"{grid}/{nlat}/weights"] * (1 + 1e-11)
    assert np.abs(weights - perturbed).max() > 1e-13


@pytest.mark.parametrize("grid", sorted(EXACT_DEGREE))
@given(nlat=st.integers(3, 40), degree=st.integers(0, 79))
def test_quadrature_is_exact_up_to_its_degree_and_not_beyond(grid, nlat, degree):
    theta, weights = quadrature(grid, nlat)
    polynomial = np.cos(np.arccos(np.clip(np.cos(theta), -1, 1)) * degree)  # Chebyshev T_degree
    exact = 0.0 if degree % 2 else 2 / (1 - degree**2)
    if degree <= EXACT_DEGREE[grid](nlat):
        assert abs(weights @ polynomial - exact) < 1e-13
    if degree == EXACT_DEGREE[grid](nlat) + 1 and degree % 2 == 0:
        assert abs(weights @ polynomial - exact) > 1e-7


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("nlat", [3, 16, 33, 513])
def test_weights_of_both_kinds_sum_to_what_their_name_says(grid, nlat):
    sphere = SphereGrid(nlat, 2 * nlat, grid)
    assert abs(sphere.quadrature_weights.sum() - 2) < 1e-13
    assert abs(sphere.area_weights.sum() - 4 * np.pi) < 1e-12
    assert sphere.area_weights.shape == sphere.shape == (nlat, 2 * nlat)
    np.testing.assert_array_equal(area_weights(grid, nlat, 2 * nlat), sphere.area_weights)


@pytest.mark.parametrize("grid", GRIDS)
def test_latitudes_are_latitudes_and_run_from_north_to_south(grid):
    lats, theta = latitudes(grid, 17), colatitudes(grid, 17)
    assert lats[0] > 0 > lats[-1]
    assert np.all(np.diff(theta) > 0)
    np.testing.assert_allclose(lats + theta, np.pi / 2)
    np.testing.assert_allclose(theta, np.pi - theta[::-1], atol=5e-16)


def test_names_tell_the_truth():
    np.testing.assert_allclose(np.diff(colatitudes("equiangular", 9)), np.pi / 8)
    np.testing.assert_allclose(np.diff(np.cos(colatitudes("trapezoidal", 9))), -0.25)
    np.testing.assert_array_equal(colatitudes("clenshaw-curtiss", 9), colatitudes("equiangular", 9))
    np.testing.assert_allclose(longitudes(4), [0, np.pi / 2, np.pi, 3 * np.pi / 2])
    with pytest.raises(ValueError, match="equispaced in cos"):
        quadrature("equiangular-trapezoidal", 9)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((16, 32, None, None, "legendre-gauss"), (16, 16)),
        ((17, 32, None, None, "equiangular"), (9, 9)),
        ((17, 32, None, None, "lobatto"), (16, 16)),
        ((48, 64, None, None, "legendre-gauss"), (33, 33)),
        ((48, 64, 40, None, "legendre-gauss"), (40, 33)),
        ((64, 128, 32, 16, "legendre-gauss"), (32, 16)),
        ((64, 128, 16, 32, "legendre-gauss"), (16, 32)),
        ((64, 64, None, None, "legendre-gauss", "rectangular"), (64, 33)),
        ((73, 144, 72, None, "equiangular"), (72, 72)),
    ],
)
def test_truncation_keeps_what_was_asked(arguments, expected):
    assert resolve_truncation(*arguments) == expected

"""Associated Legendre functions: reference values, orthonormality, differential identities, high degree."""

import numpy as np
import pytest

from sfno_jax.grids import quadrature
from sfno_jax.legendre import associated_legendre, associated_legendre_derivatives


def test_golden(golden):
    reference = golden("legendre")
    x = reference.pop("x")
    for key, want in reference.items():
        kind, norm, *rest = key.split("_")
        cs = rest[-1] == "cs"
        if kind == "dP":
            got = associated_legendre_derivatives(10, 8, x, norm, cs)
        else:
            got = associated_legendre(10, 8, x, norm, cs, inverse="inv" in rest)
        np.testing.assert_allclose(got, want, atol=1e-13, err_msg=key)
        assert np.abs(got - want * (1 + 1e-11)).max() > 1e-13, "the comparison must notice a relative change of 1e-11"


@pytest.mark.parametrize("m", [0, 1, 7, 30])
def test_orthonormal(m):
    theta, weights = quadrature("legendre-gauss", 40)
    p = associated_legendre(40, 31, np.cos(theta))[m, m:]
    np.testing.assert_allclose(2 * np.pi * (p * weights) @ p.T, np.eye(40 - m), atol=2e-13)


def test_derivatives_match_finite_differences():
    theta = np.linspace(0.1, 3.0, 13)
    h = 1e-5
    d, e = associated_legendre_derivatives(12, 12, np.cos(theta))
    finite = (associated_legendre(12, 12, np.cos(theta + h)) - associated_legendre(12, 12, np.cos(theta - h))) / (2 * h)
    np.testing.assert_allclose(d, finite, atol=1e-7)
    quotient = np.arange(12)[:, None, None] * associated_legendre(12, 12, np.cos(theta)) / np.sin(theta)
    np.testing.assert_allclose(e, quotient, atol=1e-11)


def test_poles_are_finite_and_right():
    d, e = associated_legendre_derivatives(6, 6, [1.0, -1.0])
    assert np.isfinite(d).all()
    assert np.isfinite(e).all()
    # Only |m| = 1 has a gradient at the pole; there dP/dtheta = m P / sin(theta).
    np.testing.assert_allclose(d[1, :, 0], e[1, :, 0], atol=1e-13)
    assert np.abs(d[2:]).max() < 1e-13
    assert np.abs(d[1, 1:, 0]).min() > 0.1


def test_high_degree_does_not_underflow():
    """Sectoral seeds near the pole underflow float64 from degree 1500; what grows out of them must still be right."""
    lmax, m = 2048, 1600
    theta, weights = quadrature("legendre-gauss", lmax)
    x = np.cos(theta)
    # The three-term recurrence for one order in longdouble is an independent check.
    long = np.longdouble
    p = np.full(x.size, 1 / np.sqrt(4 * np.pi), long)
    sine = np.sqrt((1 - x.astype(long)) * (1 + x.astype(long)))
    for k in range(1, m + 1):
        p = p * sine * np.sqrt(long(2 * k + 1) / long(2 * k))
    before = np.zeros_like(p)
    for degree in range(m + 1, lmax):
        a = np.sqrt(long(4 * degree**2 - 1) / long(degree**2 - m**2))
        b = np.sqrt(long((degree - 1) ** 2 - m**2) / long(4 * (degree - 1) ** 2 - 1))
        before, p = p, a * (x * p - b * before)
    rows = np.linspace(0, lmax - 1, 24).astype(int)
    got = associated_legendre(lmax, m + 1, x[rows], csphase=False)[m, -1]
    np.testing.assert_allclose(got, p[rows].astype(float), atol=1e-9)
    assert abs(2 * np.pi * float((p * p * weights).sum()) - 1) < 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 4, [1.5]), "cos_colatitude"),
        ((4, 4, [np.nan]), "cos_colatitude"),
        ((0, 4, [0.5]), "lmax=0"),
        ((4, 4, [0.5], "backward"), "norm='backward'"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        associated_legendre(*arguments)

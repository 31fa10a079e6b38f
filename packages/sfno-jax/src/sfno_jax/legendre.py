r"""Normalised associated Legendre functions and their derivatives, as tables in float64.

    Pbar_lm(x) = (-1)^m[csphase] sqrt((2l+1)/(4 pi) (l-m)!/(l+m)!) P_lm(x),   x = cos(theta)

built by recurrence (Holmes & Featherstone, J. Geodesy 76 (2002) 279, eqs. 11-13), with a separate exponent for the
sectoral seeds, which underflow float64 near the poles from degree 1500 on:

    Pbar_mm = sqrt((2m+1)/(2m)) sin(theta) Pbar_{m-1,m-1},        Pbar_00 = 1/sqrt(4 pi)
    Pbar_lm = a_lm (x Pbar_{l-1,m} - Pbar_{l-2,m} / a_{l-1,m}),   a_lm = sqrt((4 l^2 - 1)/(l^2 - m^2))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .grids import choose

__all__ = ["NORMS", "associated_legendre", "associated_legendre_derivatives", "degree_norm"]

Array = NDArray[Any]

NORMS = ("ortho", "schmidt", "unnorm")

# One unit of the separate exponent; |value| stays within a few units of 1 between two checks of the recurrence.
_BIG = 2.0**400


def degree_norm(lmax: int, norm: str, inverse: bool = False) -> Array:
    """Factor per degree that turns orthonormal functions into those of another normalisation, shape (lmax,).

    `ortho` is 1; `unnorm` multiplies by sqrt(4 pi); `schmidt` divides that by sqrt(2l+1). The inverse transform uses
    the reciprocal, so that analysis and synthesis stay each other's inverse (torch-harmonics' convention).

    Raises:
        ValueError: unknown norm.
    """
    choose("norm", norm, NORMS)
    factor = np.ones(lmax) if norm == "ortho" else np.full(lmax, np.sqrt(4 * np.pi))
    if norm == "schmidt":
        factor = factor / np.sqrt(2 * np.arange(lmax) + 1)
    return 1 / factor if inverse else factor


def associated_legendre(
    lmax: int, mmax: int, cos_colatitude: ArrayLike, norm: str = "ortho", csphase: bool = True, inverse: bool = False
) -> Array:
    """Normalised associated Legendre functions.

    Args:
        lmax: Number of degrees, l < lmax.
        mmax: Number of orders, m < mmax.
        cos_colatitude: x = cos(theta) in [-1, 1], shape (n,).
        norm: One of `NORMS`.
        csphase: Include the Condon-Shortley phase (-1)^m.
        inverse: Give the functions of the inverse transform (differs from the forward ones unless norm is `ortho`).

    Returns:
        Array of shape (mmax, lmax, n), zero for m > l.

    Raises:
        ValueError: x outside [-1, 1], unknown norm, lmax or mmax < 1.
    """
    x = _abscissae(lmax, mmax, cos_colatitude)
    table: Array = _orthonormal(lmax, mmax, x) * degree_norm(lmax, norm, inverse)[None, :, None]
    return table * _phase(mmax) if csphase else table


def associated_legendre_derivatives(
    lmax: int, mmax: int, cos_colatitude: ArrayLike, norm: str = "ortho", csphase: bool = True, inverse: bool = False
) -> Array:
    """Derivative dPbar/dtheta and the quotient m Pbar / sin(theta), both finite at the poles.

    Both come from the functions of neighbouring orders, without division by sin(theta) (without Condon-Shortley phase):

        dPbar_lm/dtheta      = 1/2 [sqrt((l+m)(l-m+1)) Pbar_{l,m-1} - sqrt((l-m)(l+m+1)) Pbar_{l,m+1}],   m >= 1
        dPbar_l0/dtheta      = -sqrt(l(l+1)) Pbar_l1
        m Pbar_lm/sin(theta) = 1/2 sqrt((2l+1)/(2l+3)) [sqrt((l-m+1)(l-m+2)) Pbar_{l+1,m-1}
                                + sqrt((l+m+1)(l+m+2)) Pbar_{l+1,m+1}]

    Args:
        lmax: Number of degrees, l < lmax.
        mmax: Number of orders, m < mmax.
        cos_colatitude: x = cos(theta) in [-1, 1], shape (n,).
        norm: One of `NORMS`.
        csphase: Include the Condon-Shortley phase (-1)^m.
        inverse: Give the functions of the inverse transform.

    Returns:
        Array of shape (2, mmax, lmax, n): [0] the derivative, [1] the quotient.

    Raises:
        ValueError: x outside [-1, 1], unknown norm, lmax or mmax < 1.
    """
    x = _abscissae(lmax, mmax, cos_colatitude)
    p = _orthonormal(lmax + 1, mmax + 1, x)
    degree = np.arange(lmax, dtype=float)
    out = np.zeros((2, mmax, lmax, x.size))
    out[0, 0] = -np.sqrt(degree * (degree + 1))[:, None] * p[1, :lmax]
    for m in range(1, mmax):
        lo = np.maximum(degree - m, 0)  # zero where m > l: those rows vanish
        up = degree + m
        inside = (degree >= m)[:, None]
        lower = np.sqrt(up * (lo + 1))[:, None] * p[m - 1, :lmax]
        upper = np.sqrt(lo * (up + 1))[:, None] * p[m + 1, :lmax]
        out[0, m] = 0.5 * inside * (lower - upper)
        lower = np.sqrt((lo + 1) * (lo + 2))[:, None] * p[m - 1, 1:]
        upper = np.sqrt((up + 1) * (up + 2))[:, None] * p[m + 1, 1:]
        out[1, m] = 0.5 * inside * np.sqrt((2 * degree + 1) / (2 * degree + 3))[:, None] * (lower + upper)
    out *= degree_norm(lmax, norm, inverse)[None, None, :, None]
    return out * _phase(mmax) if csphase else out


def _phase(mmax: int) -> Array:
    return ((-1.0) ** np.arange(mmax))[:, None, None]


def _abscissae(lmax: int, mmax: int, cos_colatitude: ArrayLike) -> Array:
    x = np.atleast_1d(np.asarray(cos_colatitude, dtype=np.float64))
    if lmax < 1 or mmax < 1:
        raise ValueError(f"lmax={lmax}, mmax={mmax}; both must be at least 1.")
    if x.ndim != 1 or not np.all(np.abs(x) <= 1):
        raise ValueError("cos_colatitude must be one-dimensional with values in [-1, 1]; pass cos(theta), not theta.")
    return x


def _orthonormal(lmax: int, mmax: int, x: Array) -> Array:
    out = np.zeros((mmax, lmax, x.size))
    sine = np.sqrt((1 - x) * (1 + x))
    seed, seed_exponent = np.full(x.size, 1 / np.sqrt(4 * np.pi)), np.zeros(x.size, dtype=np.int64)
    current, previous = np.zeros((mmax, x.size)), np.zeros((mmax, x.size))
    exponent = np.zeros((mmax, x.size), dtype=np.int64)  # true value = current * _BIG**exponent, exponent <= 0
    m = np.arange(mmax, dtype=float)
    for degree in range(lmax):
        orders = min(degree, mmax)  # rows below the diagonal
        if orders:
            b = np.sqrt(np.maximum((degree - 1.0) ** 2 - m[:orders] ** 2, 0) / (4 * (degree - 1.0) ** 2 - 1))[:, None]
            a = np.sqrt((4.0 * degree**2 - 1) / (degree**2 - m[:orders] ** 2))[:, None]
            previous[:orders], current[:orders] = current[:orders], a * (x * current[:orders] - b * previous[:orders])
            grown = (np.abs(current[:orders]) > _BIG**0.5) & (exponent[:orders] < 0)
            if grown.any():
                scale = np.where(grown, 1 / _BIG, 1.0)
                current[:orders] *= scale
                previous[:orders] *= scale
                exponent[:orders] += grown
        if degree < mmax:
            if degree:
                seed = seed * sine * np.sqrt((2.0 * degree + 1) / (2.0 * degree))
                small = (np.abs(seed) < _BIG**-0.5) & (seed != 0)
                seed, seed_exponent = np.where(small, seed * _BIG, seed), seed_exponent - small
            current[degree], exponent[degree] = seed, seed_exponent
        rows = min(degree + 1, mmax)
        out[:rows, degree] = np.where(exponent[:rows] == 0, current[:rows], 0.0)
    return out

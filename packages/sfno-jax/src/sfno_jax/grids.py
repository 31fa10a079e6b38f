"""Grids on the sphere and their quadratures.

Rows run from north to south. Colatitude theta is measured from the north pole, latitude is pi/2 - theta, longitudes
are lambda_j = 2 pi j / nlon. A quadrature integrates over x = cos(theta), sum_k w_k f(x_k) ~ int_{-1}^{1} f(x) dx, so
its weights sum to 2.

| name              | nodes                                   | exact for polynomials in x up to | largest lmax |
| ----------------- | --------------------------------------- | -------------------------------- | ------------ |
| `legendre-gauss`  | roots of P_nlat (no poles)              | 2 nlat - 1                       | nlat         |
| `lobatto`         | poles and roots of P'_{nlat-1}          | 2 nlat - 3                       | nlat - 1     |
| `equiangular`     | theta_k = pi k / (nlat-1), poles inside | nlat - 1 (Clenshaw-Curtis)       | nlat - 1 *   |
| `trapezoidal`     | equispaced in x, poles inside           | 1 (trapezoidal rule)             | nlat         |

(*) Clenshaw-Curtis weights alone are exact only up to lmax = (nlat+1)//2; beyond, the transforms use the exact
analysis of `sfno_jax.equiangular`. "Largest lmax" for `trapezoidal` is a bound on resolution, not on exactness: that
rule is never exact.

Source: torch-harmonics 0.9 for names and defaults; nodes and weights from Abramowitz & Stegun 25.4 and Waldvogel, BIT
46 (2006) 195.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GRIDS",
    "TRUNCATIONS",
    "SphereGrid",
    "area_weights",
    "canonical_grid",
    "colatitudes",
    "latitudes",
    "longitudes",
    "quadrature",
    "resolve_truncation",
]

Array = NDArray[np.float64]

GRIDS = ("legendre-gauss", "lobatto", "equiangular", "trapezoidal")
TRUNCATIONS = ("triangular", "rectangular")
_ALIASES = {"clenshaw-curtiss": "equiangular", "clenshaw-curtis": "equiangular"}


def choose(argument: str, value: object, allowed: tuple[str, ...]) -> str:
    """``value`` if it is one of ``allowed``.

    Raises:
        ValueError: naming the argument, the value, what is allowed and the nearest match.
    """
    if isinstance(value, str) and value in allowed:
        return value
    near = difflib.get_close_matches(str(value), allowed, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{argument}={value!r} is unknown; expected one of {', '.join(map(repr, allowed))}.{hint}")


def canonical_grid(grid: str) -> str:
    """The grid's name in `GRIDS`; `clenshaw-curtiss` is another name of `equiangular`.

    Raises:
        ValueError: unknown name.
    """
    if grid == "equiangular-trapezoidal":
        raise ValueError(
            "grid='equiangular-trapezoidal' (torch-harmonics' name) has nodes equispaced in cos(theta), not in theta; "
            "here it is called 'trapezoidal'."
        )
    return choose("grid", _ALIASES.get(grid, grid), GRIDS)


def quadrature(grid: str, nlat: int) -> tuple[Array, Array]:
    """Nodes and weights of a latitude quadrature.

    Args:
        grid: One of `GRIDS`.
        nlat: Number of latitudes, at least 2 (3 where the poles are nodes).

    Returns:
        Colatitudes [rad], shape (nlat,), north to south, and weights, shape (nlat,), which sum to 2.

    Raises:
        ValueError: unknown grid or too few latitudes.
    """
    theta, weights = _quadrature(canonical_grid(grid), _count("nlat", nlat, 2 if grid == "legendre-gauss" else 3))
    return theta.copy(), weights.copy()


def colatitudes(grid: str, nlat: int) -> Array:
    """Colatitudes [rad] of the rows, shape (nlat,), from 0 (north) to pi."""
    return quadrature(grid, nlat)[0]


def latitudes(grid: str, nlat: int) -> Array:
    """Latitudes [rad] of the rows, shape (nlat,), from pi/2 (north) to -pi/2."""
    return np.pi / 2 - colatitudes(grid, nlat)


def longitudes(nlon: int) -> Array:
    """Longitudes [rad] of the columns, shape (nlon,): 2 pi j / nlon, 0 included, 2 pi not."""
    return 2 * np.pi * np.arange(_count("nlon", nlon, 2)) / nlon


def area_weights(grid: str, nlat: int, nlon: int) -> Array:
    """Area of each grid point on the unit sphere [sr], shape (nlat, nlon); sums to 4 pi."""
    weights = quadrature(grid, nlat)[1]
    return np.repeat(weights[:, None] * (2 * np.pi / _count("nlon", nlon, 2)), nlon, axis=1)


@dataclasses.dataclass(frozen=True)
class SphereGrid:
    """A latitude-longitude grid.

    Attributes:
        nlat: Number of latitudes (rows, north to south).
        nlon: Number of longitudes (columns, even).
        kind: One of `GRIDS`.

    Raises:
        ValueError: unknown kind, nlat too small, odd or too small nlon.
    """

    nlat: int
    nlon: int
    kind: str = "legendre-gauss"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", canonical_grid(self.kind))
        _count("nlat", self.nlat, 2 if self.kind == "legendre-gauss" else 3)
        _even_nlon(self.nlon)

    @property
    def shape(self) -> tuple[int, int]:
        """(nlat, nlon)."""
        return self.nlat, self.nlon

    @property
    def colatitudes(self) -> Array:
        """Colatitudes [rad], shape (nlat,)."""
        return colatitudes(self.kind, self.nlat)

    @property
    def latitudes(self) -> Array:
        """Latitudes [rad], shape (nlat,)."""
        return latitudes(self.kind, self.nlat)

    @property
    def longitudes(self) -> Array:
        """Longitudes [rad], shape (nlon,)."""
        return longitudes(self.nlon)

    @property
    def quadrature_weights(self) -> Array:
        """Quadrature weights in cos(theta), shape (nlat,); sum to 2."""
        return quadrature(self.kind, self.nlat)[1]

    @property
    def area_weights(self) -> Array:
        """Area of each point on the unit sphere [sr], shape (nlat, nlon); sum to 4 pi."""
        return area_weights(self.kind, self.nlat, self.nlon)

    @property
    def max_lmax(self) -> int:
        """Largest number of degrees this grid resolves (exactly, except for `trapezoidal`)."""
        return max_lmax(self.kind, self.nlat)

    @property
    def default_lmax(self) -> int:
        """Number of degrees a transform on this grid uses when none is given."""
        return default_lmax(self.kind, self.nlat)


def max_lmax(grid: str, nlat: int) -> int:
    """Largest lmax (number of degrees) that ``grid`` resolves; see the table of this module."""
    return nlat - 1 if canonical_grid(grid) in ("lobatto", "equiangular") else nlat


def default_lmax(grid: str, nlat: int) -> int:
    """Default lmax: where the plain quadrature is exact; (nlat+1)//2 on grids equispaced in theta or x.

    Source: torch-harmonics 0.9.
    """
    return (nlat + 1) // 2 if canonical_grid(grid) in ("equiangular", "trapezoidal") else max_lmax(grid, nlat)


def resolve_truncation(
    nlat: int,
    nlon: int,
    lmax: int | None,
    mmax: int | None,
    grid: str,
    truncation: str = "triangular",
    allow_aliasing: bool = False,
) -> tuple[int, int]:
    """Numbers of degrees and orders of a transform.

    Both are exclusive bounds: l < lmax, m < mmax, and always m <= l. Explicit values are kept as asked. A missing
    value becomes, for `triangular`, what makes both equal (as far as the grid allows); for `rectangular`, the grid's
    own limit for that axis.

    Args:
        nlat: Number of latitudes.
        nlon: Number of longitudes, even.
        lmax: Number of degrees, or None.
        mmax: Number of orders, or None.
        grid: One of `GRIDS`.
        truncation: One of `TRUNCATIONS`.
        allow_aliasing: Accept an lmax beyond the grid's limit.

    Returns:
        (lmax, mmax).

    Raises:
        ValueError: naming argument, value and limit.
    """
    choose("truncation", truncation, TRUNCATIONS)
    m_limit = _even_nlon(nlon) // 2 + 1
    l_limit = max_lmax(grid, nlat)
    if lmax is not None:
        _count("lmax", lmax, 1)
        if lmax > l_limit and not allow_aliasing:
            raise ValueError(
                f"lmax={lmax} is beyond what a {grid!r} grid with nlat={nlat} resolves; the largest is lmax={l_limit}. "
                "Pass allow_aliasing=True to compute it anyway."
            )
    if mmax is not None:
        _count("mmax", mmax, 1)
        if mmax > m_limit:
            raise ValueError(
                f"mmax={mmax} is beyond what nlon={nlon} longitudes resolve; the largest is nlon//2+1 = {m_limit}."
            )
    degrees = lmax if lmax is not None else default_lmax(grid, nlat)
    orders = mmax if mmax is not None else m_limit
    if truncation == "triangular":
        if lmax is None:
            degrees = min(degrees, orders)
        if mmax is None:
            orders = min(degrees, orders)
    return degrees, min(orders, degrees) if mmax is None else orders


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}={value!r}; expected an integer of at least {least}.")
    return int(value)


def _even_nlon(nlon: int) -> int:
    if _count("nlon", nlon, 2) % 2:
        raise ValueError(f"nlon={nlon} is odd; expected an even number of longitudes, e.g. {nlon + 1}.")
    return nlon


@functools.lru_cache(maxsize=64)
def _quadrature(grid: str, nlat: int) -> tuple[Array, Array]:
    return _RULES[grid](nlat)


def _legendre(n: int, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """P_n and P_{n-1} at x by Bonnet's recurrence, n P_n = (2n-1) x P_{n-1} - (n-1) P_{n-2}."""
    previous, current = np.ones_like(x), x.copy()
    for k in range(2, n + 1):
        previous, current = current, ((2 * k - 1) * x * current - (k - 1) * previous) / k
    return current, previous


def _symmetric(theta: NDArray[Any], weights: NDArray[Any]) -> tuple[Array, Array]:
    """Average nodes and weights with their mirror images."""
    return (theta + (np.pi - theta[::-1])) / 2, (weights + weights[::-1]) / 2


def _legendre_gauss(n: int) -> tuple[Array, Array]:
    # Newton in theta, where the nodes are nearly equispaced, so that polar nodes keep full relative precision; in
    # extended precision, since the recurrence alone would leave 1e-12 in the weights at n = 512.
    theta = np.pi * (np.arange(n, dtype=np.longdouble) + 0.75) / (n + 0.5)
    for _ in range(6):
        x, s = np.cos(theta), np.sin(theta)
        p, q = _legendre(n, x)
        theta = theta + p * s / (n * (q - x * p))  # P_n'(x) = n (P_{n-1} - x P_n) / sin(theta)^2
    x, s = np.cos(theta), np.sin(theta)
    p, q = _legendre(n, x)
    weights = 2 * s**2 / (n * (q - x * p)) ** 2
    return _symmetric(theta.astype(np.float64), weights.astype(np.float64))


def _lobatto(n: int) -> tuple[Array, Array]:
    # Interior nodes are the roots of P'_{N}, N = n-1; (1-x^2) P_N'' = 2 x P_N' - N(N+1) P_N gives Newton's slope.
    degree = n - 1
    x = np.cos(np.pi * np.arange(n) / degree)
    inner = x[1:-1]
    for _ in range(12):
        p, q = _legendre(degree, inner)
        slope = degree * (q - inner * p) / (1 - inner**2)
        curvature = (2 * inner * slope - degree * (degree + 1) * p) / (1 - inner**2)
        inner = inner - slope / curvature
    x[1:-1] = inner
    p = np.concatenate([[1.0], _legendre(degree, inner)[0], [(-1.0) ** degree]])
    return _symmetric(np.arccos(x), 2 / (degree * (degree + 1) * p**2))


def _clenshaw_curtis(n: int) -> tuple[Array, Array]:
    # The weights are the discrete cosine transform of the moments int_0^pi cos(k theta) sin(theta) dtheta = 2/(1-k^2),
    # k even.
    k = np.arange(0, n, 2)
    moments = np.zeros(n)
    moments[::2] = 2 / (1 - k.astype(float) ** 2)
    weights = 2 * np.fft.irfft(moments, 2 * (n - 1))[:n]
    weights[[0, -1]] /= 2
    return _symmetric(np.pi * np.arange(n) / (n - 1), weights)


def _trapezoidal(n: int) -> tuple[Array, Array]:
    weights = np.full(n, 2 / (n - 1))
    weights[[0, -1]] /= 2
    return _symmetric(np.arccos(np.linspace(1, -1, n)), weights)


_RULES: dict[str, Callable[[int], tuple[Array, Array]]] = {
    "legendre-gauss": _legendre_gauss,
    "lobatto": _lobatto,
    "equiangular": _clenshaw_curtis,
    "trapezoidal": _trapezoidal,
}

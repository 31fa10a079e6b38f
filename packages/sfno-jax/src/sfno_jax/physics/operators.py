r"""Winds from vorticity and divergence, and curls and divergences of fluxes, on the sphere.

A pseudo-spectral model spends its time in transforms, so their number is what matters.  With

.. math::
    u = \frac1R\Big(\frac{1}{\sin\theta}\,\partial_\lambda\chi + \partial_\theta\psi\Big),
    \qquad
    v = \frac1R\Big(\frac{1}{\sin\theta}\,\partial_\lambda\psi - \partial_\theta\chi\Big),

(stream function psi, velocity potential chi, eastward u, northward v, colatitude theta) the
products ``u sin(theta)`` and ``v sin(theta)`` are band-limited *scalars* of one degree more than
psi and chi, because

.. math::
    \sin\theta\,\partial_\theta Y_{lm}
      = l\,\epsilon_{l+1,m} Y_{l+1,m} - (l+1)\,\epsilon_{lm} Y_{l-1,m},
    \qquad \epsilon_{lm}^2 = \frac{l^2-m^2}{4l^2-1}.

So a wind costs two scalar syntheses (a vector transform costs as much as four), and by the
adjoint of the same relation the curl and divergence of a flux cost two scalar analyses
(Bourke 1972, Mon. Wea. Rev. 100, 683; Temperton 1991, ibid. 119, 1303).  `ScalarOperators` does
this; it divides by ``sin(theta)``, hence needs a grid without poles.  `VectorOperators` is the
same mathematics through vector harmonics, for grids that hold the poles.  On a Gauss grid both
are the same discrete sums, which the tests use.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sfno_jax.grids import colatitudes
from sfno_jax.transforms import InverseRealSHT, InverseRealVectorSHT, RealSHT, RealVectorSHT

__all__ = ["Operators", "ScalarOperators", "VectorOperators", "make_operators"]


class Operators(Protocol):
    """What the dynamics need from the sphere; every method takes any leading batch axes."""

    def prepared(self, x: jax.Array) -> Self:
        """The same, with the transforms' tables as they suit an array about to be transformed.

        Tables have the precision of `x`; and where `x` is being traced, large ones are dropped
        for a recurrence, or the trace would capture them as constants.
        """

    def synthesis(self, coeffs: jax.Array) -> jax.Array:
        """Scalar coefficients (..., lmax, mmax) to fields (..., nlat, nlon)."""

    def analysis(self, fields: jax.Array) -> jax.Array:
        """Scalar fields (..., nlat, nlon) to coefficients (..., lmax, mmax)."""

    def fields_and_wind(self, scalars: jax.Array, vrtdiv: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Synthesise scalars and the wind of a (vorticity, divergence) pair together.

        Args:
            scalars: (..., k, lmax, mmax).
            vrtdiv: (..., 2, lmax, mmax) vorticity and divergence [s-1].

        Returns:
            Fields (..., k, nlat, nlon) and the wind (..., 2, nlat, nlon) = (u east, v north)
            [m s-1].
        """

    def curl_divergence(self, vectors: jax.Array, scalars: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Analyse vectors into curl and divergence, and scalars, together.

        Args:
            vectors: (..., n, 2, nlat, nlon), components east and north.
            scalars: (..., k, nlat, nlon).

        Returns:
            (..., n, 2, lmax, mmax) = (curl, divergence) [unit of the vector m-1] and the scalar
            coefficients (..., k, lmax, mmax).
        """


def _epsilon(nl: int, nm: int) -> np.ndarray:
    """sqrt((l^2 - m^2)/(4 l^2 - 1)) for l < nl, m < nm, zero where m >= l."""
    l = np.arange(nl, dtype=np.float64)[:, None]
    m = np.arange(nm, dtype=np.float64)[None, :]
    return np.sqrt(np.maximum(l * l - m * m, 0.0) / np.abs(4 * l * l - 1))


def _shift(coeffs: jax.Array, before: int, after: int) -> jax.Array:
    """Pad the degree axis with zero rows."""
    width = [(0, 0)] * (coeffs.ndim - 2) + [(before, after), (0, 0)]
    return jnp.pad(coeffs, width)


@jax.tree_util.register_pytree_node_class
class ScalarOperators:
    """Winds and fluxes through scalar transforms of ``lmax + 1`` degrees (grids without poles).

    Args:
        nlat: Latitudes.
        nlon: Longitudes.
        lmax: Degrees of the state (exclusive bound).
        mmax: Orders of the state (exclusive bound).
        radius: Radius of the sphere [m].
        grid: A grid without points at the poles ("legendre-gauss").
    """

    def __init__(self, nlat: int, nlon: int, lmax: int, mmax: int, radius: float, grid: str) -> None:
        sine = np.sin(colatitudes(grid, nlat))
        if sine.min() < 1e-12:
            msg = f"grid={grid!r} holds the poles, where ScalarOperators would divide by zero"
            raise ValueError(msg)
        # One degree more than the state, and no inner product of that degree is ever relied upon
        # to be exact: allow_aliasing lets the state itself use all degrees of the grid.
        options: dict[str, Any] = {
            "lmax": lmax + 1,
            "mmax": mmax,
            "grid": grid,
            "csphase": False,
            "truncation": "rectangular",
            "allow_aliasing": True,
        }
        self.sht = RealSHT(nlat, nlon, **options)
        self.isht = InverseRealSHT(nlat, nlon, **options)
        l = np.arange(lmax + 1, dtype=np.float64)[:, None]
        m = np.arange(mmax, dtype=np.float64)[None, :]
        epsilon = _epsilon(lmax + 2, mmax)
        self.inverse_sine = (1.0 / sine)[:, None]
        # sin(theta) d/dtheta of the inverse Laplacian of a field, over R, as in the module
        # docstring: degrees 0 and 1 receive nothing from degree 0, whose inverse Laplacian is 0.
        self.wind_below = np.where(l >= 2, -radius * epsilon[:-1] / np.maximum(l, 1), 0.0)
        self.wind_above = radius * epsilon[1:] / (l + 1)
        self.wind_east = -radius * m / np.maximum(l * (l + 1), 1)
        self.flux_below = ((l + 1) * epsilon[:-1] / radius)[:lmax]
        self.flux_above = (l * epsilon[1:] / radius)[:lmax]
        self.flux_east = m / radius

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Transforms and tables are leaves, so that no table is captured as a constant."""
        names = sorted(vars(self))
        return tuple(getattr(self, name) for name in names), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> ScalarOperators:
        """Rebuild from `tree_flatten`."""
        new = object.__new__(cls)
        for name, child in zip(_SCALAR_NAMES, children, strict=True):
            setattr(new, name, child)
        return new

    def prepared(self, x: jax.Array) -> Self:
        """See `Operators.prepared`."""
        return _prepared(self, ("sht", "isht"), x)

    def synthesis(self, coeffs: jax.Array) -> jax.Array:
        """See `Operators.synthesis`."""
        return self.isht(_shift(coeffs, 0, 1))

    def analysis(self, fields: jax.Array) -> jax.Array:
        """See `Operators.analysis`."""
        return self.sht(fields)[..., :-1, :]

    def fields_and_wind(self, scalars: jax.Array, vrtdiv: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Operators.fields_and_wind`."""
        real = scalars.real.dtype
        below, above, east = (jnp.asarray(table, real) for table in (self.wind_below, self.wind_above, self.wind_east))
        # The sign pattern (psi, -chi) of the two meridional derivatives, and (chi, psi) of the
        # two zonal ones, makes one expression of both components.
        meridional = below * _shift(vrtdiv, 1, 0) + above * _shift(vrtdiv[..., 1:, :], 0, 2)
        zonal = 1j * east * _shift(vrtdiv, 0, 1)[..., ::-1, :, :]
        sign = jnp.asarray([1.0, -1.0], real)[:, None, None]
        wind = sign * meridional + zonal
        count = scalars.shape[-3]
        grid = self.isht(jnp.concatenate([_shift(scalars, 0, 1), wind], axis=-3))
        return grid[..., :count, :, :], grid[..., count:, :, :] * jnp.asarray(self.inverse_sine, real)

    def curl_divergence(self, vectors: jax.Array, scalars: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Operators.curl_divergence`."""
        real = vectors.dtype
        below, above, east = (jnp.asarray(table, real) for table in (self.flux_below, self.flux_above, self.flux_east))
        *batch, n, _, nlat, nlon = vectors.shape
        flat = (vectors * jnp.asarray(self.inverse_sine, real)).reshape(*batch, 2 * n, nlat, nlon)
        coeffs = self.sht(jnp.concatenate([flat, scalars], axis=-3))
        pairs = coeffs[..., : 2 * n, :, :].reshape(*batch, n, 2, *coeffs.shape[-2:])
        zonal = 1j * east * pairs[..., ::-1, :-1, :]
        meridional = below * _shift(pairs[..., :-2, :], 1, 0) - above * pairs[..., 1:, :]
        sign = jnp.asarray([1.0, -1.0], real)[:, None, None]
        return zonal + sign * meridional, coeffs[..., 2 * n :, :-1, :]


_SCALAR_NAMES = sorted(
    [
        "sht",
        "isht",
        "inverse_sine",
        "wind_below",
        "wind_above",
        "wind_east",
        "flux_below",
        "flux_above",
        "flux_east",
    ]
)


@jax.tree_util.register_pytree_node_class
class VectorOperators:
    """Winds and fluxes through vector harmonics; any grid.

    The vector transforms take (theta southward, lambda eastward) components; passing (u, v) in
    those slots rotates every vector by a right angle, so that the spheroidal part is the
    vorticity and the toroidal part the divergence (torch-harmonics does the same).

    Args:
        nlat: Latitudes.
        nlon: Longitudes.
        lmax: Degrees of the state (exclusive bound).
        mmax: Orders of the state (exclusive bound).
        radius: Radius of the sphere [m].
        grid: Any grid of `sfno_jax.grids.GRIDS`.
    """

    def __init__(self, nlat: int, nlon: int, lmax: int, mmax: int, radius: float, grid: str) -> None:
        options: dict[str, Any] = {
            "lmax": lmax,
            "mmax": mmax,
            "grid": grid,
            "csphase": False,
            "truncation": "rectangular",
        }
        self.sht = RealSHT(nlat, nlon, **options)
        self.isht = InverseRealSHT(nlat, nlon, **options)
        self.vsht = RealVectorSHT(nlat, nlon, **options)
        self.ivsht = InverseRealVectorSHT(nlat, nlon, **options)
        l = np.arange(lmax, dtype=np.float64)[:, None]
        self.flux = -l * (l + 1) / radius
        self.wind = np.where(l > 0, -radius / np.maximum(l * (l + 1), 1), 0.0)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Transforms and tables are leaves, so that no table is captured as a constant."""
        return (self.sht, self.isht, self.vsht, self.ivsht, self.flux, self.wind), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> VectorOperators:
        """Rebuild from `tree_flatten`."""
        new = object.__new__(cls)
        new.sht, new.isht, new.vsht, new.ivsht, new.flux, new.wind = children
        return new

    def prepared(self, x: jax.Array) -> Self:
        """See `Operators.prepared`."""
        return _prepared(self, ("sht", "isht", "vsht", "ivsht"), x)

    def synthesis(self, coeffs: jax.Array) -> jax.Array:
        """See `Operators.synthesis`."""
        return self.isht(coeffs)

    def analysis(self, fields: jax.Array) -> jax.Array:
        """See `Operators.analysis`."""
        return self.sht(fields)

    def fields_and_wind(self, scalars: jax.Array, vrtdiv: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Operators.fields_and_wind`."""
        wind = jnp.asarray(self.wind, scalars.real.dtype)
        return self.isht(scalars), self.ivsht(wind * vrtdiv)

    def curl_divergence(self, vectors: jax.Array, scalars: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Operators.curl_divergence`."""
        flux = jnp.asarray(self.flux, vectors.dtype)
        return flux * self.vsht(vectors), self.sht(scalars)


_T = TypeVar("_T")


def _prepared(operators: _T, transforms: tuple[str, ...], x: jax.Array) -> _T:
    new = copy.copy(operators)
    for name in transforms:
        setattr(new, name, getattr(operators, name)._for(x))
    return new


def make_operators(nlat: int, nlon: int, lmax: int, mmax: int, radius: float, grid: str) -> Operators:
    """The cheapest operators that the grid allows (see the module docstring)."""
    poles = np.sin(colatitudes(grid, nlat)).min() < 1e-12
    kind = VectorOperators if poles else ScalarOperators
    return kind(nlat, nlon, lmax, mmax, radius, grid)

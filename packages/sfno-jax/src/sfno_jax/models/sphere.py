r"""Transforms of the network's grids: `sfno_jax.transforms`, and two small extensions of it.

A network resamples between grids, so its internal one may have an odd number of longitudes, and
both public SFNOs analyse with the grid's plain quadrature at any truncation. Both extensions reduce
to transforms that exist:

- n longitudes, n odd, are every second one of 2n: synthesis takes those, analysis puts zeros between.
- plain quadrature is the adjoint of the synthesis S: a = (2 pi / nlon) conj(S^T (w f)) / c_m, with
  c_m = 2, or 1 for the orders 0 and nlon/2 that a real field holds once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sfno_jax._dtypes import complex_dtype
from sfno_jax.grids import default_lmax, quadrature
from sfno_jax.transforms import InverseRealSHT, RealSHT

__all__ = ["Analysis", "Synthesis", "sphere_transforms"]

Analysis = Callable[[jax.Array], jax.Array]
Synthesis = Callable[[jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _OddAnalysis:
    """Analysis from an odd number of longitudes."""

    doubled: Analysis  # of 2 nlon longitudes

    def __call__(self, field: jax.Array) -> jax.Array:
        stuffed = jnp.stack([field, jnp.zeros_like(field)], axis=-1)
        return 2.0 * self.doubled(stuffed.reshape(*field.shape[:-1], -1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _OddSynthesis:
    """Synthesis to an odd number of longitudes."""

    doubled: Synthesis  # to 2 nlon longitudes

    def __call__(self, coefficients: jax.Array) -> jax.Array:
        return self.doubled(coefficients)[..., ::2]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _QuadratureAnalysis:
    """Analysis by the grid's plain quadrature, at any truncation, aliased where that is inexact."""

    synthesis: InverseRealSHT

    def __call__(self, field: jax.Array) -> jax.Array:
        s = self.synthesis
        weights = quadrature(s.grid, s.nlat)[1] * (2.0 * np.pi / s.nlon)
        orders = np.arange(s.mmax)
        once = (orders == 0) | (2 * orders == s.nlon)
        shape = (*field.shape[:-2], s.lmax, s.mmax)
        adjoint = jax.linear_transpose(s, jnp.zeros(shape, complex_dtype(field.dtype)))
        (product,) = adjoint(field * jnp.asarray(weights, field.dtype)[:, None])
        return product.conj() * jnp.asarray(np.where(once, 1.0, 0.5), field.dtype)  # type: ignore[no-any-return]


def sphere_transforms(
    nlat: int, nlon: int, modes: tuple[int, int], grid: str, *, exact: bool
) -> tuple[Analysis, Synthesis]:
    """Analysis and synthesis between an nlat x nlon grid, nlon of any parity, and (lmax, mmax) modes.

    Args:
        nlat: Number of latitudes.
        nlon: Number of longitudes.
        modes: (lmax, mmax).
        grid: One of `sfno_jax.grids.GRIDS`.
        exact: Exact analysis also on equiangular grids beyond half their degrees; otherwise the
            plain quadrature, for any lmax.

    Returns:
        Functions of (..., nlat, nlon) and (..., lmax, mmax), both pytrees.
    """
    lmax, mmax = modes
    if nlon % 2:
        analysis, synthesis = sphere_transforms(nlat, 2 * nlon, modes, grid, exact=exact)
        return _OddAnalysis(analysis), _OddSynthesis(synthesis)
    inverse = InverseRealSHT(nlat, nlon, lmax, mmax, grid, allow_aliasing=not exact)
    if not exact and grid == "equiangular" and lmax > default_lmax(grid, nlat):
        return _QuadratureAnalysis(inverse), inverse
    return RealSHT(nlat, nlon, lmax, mmax, grid, allow_aliasing=not exact), inverse

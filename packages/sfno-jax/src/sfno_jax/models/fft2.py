"""The plane's counterpart of the spherical transforms, for the FNO: 2-D FFTs of the lat-lon grid."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

__all__ = ["InverseRealFFT2", "RealFFT2"]


@dataclasses.dataclass(frozen=True)
class _Plane:
    """Grid and kept modes.

    Attributes:
        nlat: Rows.
        nlon: Columns.
        lmax: Kept row wave numbers: ceil(lmax/2) lowest non-negative, floor(lmax/2) negative.
        mmax: Kept column wave numbers 0 <= m < mmax.
    """

    nlat: int
    nlon: int
    lmax: int
    mmax: int

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("lmax", self.lmax, self.nlat),
            ("mmax", self.mmax, self.nlon // 2 + 1),
        ):
            if not 1 <= value <= limit:
                shape = f"{self.nlat} x {self.nlon}"
                raise ValueError(f"{name}={value}; expected 1 to {limit} on a {shape} grid")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RealFFT2(_Plane):
    """Unitary ("ortho") real FFT of (..., nlat, nlon), truncated to (..., lmax, mmax)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Coefficients; rows 0, 1, ..., then the negative wave numbers up to -1."""
        y = jnp.fft.rfft2(x, norm="ortho")[..., : self.mmax]
        low, high = (self.lmax + 1) // 2, self.lmax // 2
        return jnp.concatenate([y[..., :low, :], y[..., self.nlat - high :, :]], axis=-2)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class InverseRealFFT2(_Plane):
    """Inverse of `RealFFT2` where nothing was truncated; dropped modes are zero."""

    def __call__(self, y: jax.Array) -> jax.Array:
        """Fields (..., nlat, nlon) of coefficients (..., lmax, mmax)."""
        low = (self.lmax + 1) // 2
        gap = jnp.zeros((*y.shape[:-2], self.nlat - self.lmax, self.mmax), y.dtype)
        full = jnp.concatenate([y[..., :low, :], gap, y[..., low:, :]], axis=-2)
        return jnp.fft.irfft2(full, s=(self.nlat, self.nlon), norm="ortho")

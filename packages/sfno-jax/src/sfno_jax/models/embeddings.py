"""Position embeddings: what is added to the encoded input so that a network knows where it is.

Fixed ones are buffers, learned ones parameters; all have shape (channels, nlat, nlon or 1), except
the coefficients of `FrequencyEmbedding`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from sfno_jax.models.filters import as_complex
from sfno_jax.models.layers import Buffer, ComplexParam, normal
from sfno_jax.models.sphere import Synthesis
from sfno_jax.transforms import InverseRealSHT

__all__ = ["FixedEmbedding", "FrequencyEmbedding", "LearnedEmbedding", "sequence", "spectral"]


def sequence(channels: int, nlat: int, nlon: int) -> NDArray[np.float64]:
    """The transformer's sines and cosines of the row-major position p.

    Channel k holds sin (even k) or cos (odd k) of p / 10000^(2k / channels).

    Returns:
        Array of shape (channels, nlat, nlon).
    """
    position = np.arange(nlat * nlon).reshape(nlat, nlon)
    k = np.arange(channels)[:, None, None]
    phase = position / 10000.0 ** (2.0 * k / channels)
    return np.where(k % 2 == 0, np.sin(phase), np.cos(phase))


def spectral(channels: int, nlat: int, nlon: int, grid: str) -> jax.Array:
    """The first spherical harmonics, each scaled to a largest absolute value of 1.

    Channel i is the real harmonic of degree l = floor(sqrt(i)) and order m = i - l^2 - l: the
    synthesis of a coefficient 1 at (l, m) for m >= 0, i at (l, -m) otherwise.

    Returns:
        Array of shape (channels, nlat, nlon).

    Raises:
        ValueError: the last channel's degree is not resolved by the grid.
    """
    degrees = math.isqrt(channels - 1) + 1
    synthesis = InverseRealSHT(nlat, nlon, grid=grid)
    if degrees > min(synthesis.lmax, synthesis.mmax):
        raise ValueError(
            f"position_embedding='spectral' with embed_dim={channels} needs degrees up to "
            f"{degrees - 1}, but the {nlat} x {nlon} {grid} grid has lmax={synthesis.lmax}; "
            f"use embed_dim <= {min(synthesis.lmax, synthesis.mmax) ** 2} or another embedding"
        )
    coefficients = np.zeros((channels, synthesis.lmax, synthesis.mmax), np.complex64)
    for i in range(channels):
        l = math.isqrt(i)
        m = i - l * l - l
        coefficients[i, l, abs(m)] = 1.0 if m >= 0 else 1.0j
    fields = synthesis(coefficients)
    return fields / jnp.abs(fields).max((-2, -1), keepdims=True)


class FixedEmbedding(nnx.Module):
    """Adds fixed fields."""

    def __init__(self, fields: Any, dtype: Any) -> None:
        self.fields = Buffer(jnp.asarray(fields, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Add to (batch, channels, nlat, nlon)."""
        return x + self.fields[...]


class LearnedEmbedding(nnx.Module):
    """Adds learned fields of shape (channels, nlat, nlon), or (channels, nlat, 1) per latitude.

    Initial values are zero (torch-harmonics) or normal with deviation `std` (makani, which truncates
    them at 100 deviations).
    """

    def __init__(self, shape: tuple[int, int, int], *, std: float, dtype: Any, rngs: nnx.Rngs) -> None:
        self.fields = nnx.Param(normal(rngs, shape, std, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Add to (batch, channels, nlat, nlon)."""
        return x + self.fields[...]


class FrequencyEmbedding(nnx.Module):
    """Adds the synthesis of learned coefficients, shape (channels, lmax, mmax), stored real."""

    def __init__(self, channels: int, modes: tuple[int, int], *, std: float, dtype: Any, rngs: nnx.Rngs) -> None:
        lower = np.tril(np.ones(modes))[..., None]  # entries m > l belong to no harmonic
        values = normal(rngs, (channels, *modes, 2), std, dtype)
        self.coefficients = ComplexParam(values * jnp.asarray(lower, dtype))

    def __call__(self, x: jax.Array, synthesis: Synthesis) -> jax.Array:
        """Add to (batch, channels, nlat, nlon)."""
        return x + synthesis(as_complex(self.coefficients[...]))

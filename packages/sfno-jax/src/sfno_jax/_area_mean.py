"""Means over the sphere: the arithmetic that losses and metrics share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sfno_jax._dtypes import real_array

__all__ = ["batch_channel_mean", "check_pair", "difference", "integrate", "root", "sphere_mean"]


def check_pair(prediction: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    """Check a pair of fields: same shape, real floating point, not a silent downcast."""
    pair = [real_array("prediction", prediction), real_array("target", target)]
    if pair[0].ndim < 2:
        raise ValueError(f"prediction must have at least 2 axes (..., nlat, nlon), got shape {pair[0].shape}")
    if pair[0].shape != pair[1].shape:
        raise ValueError(f"prediction and target must have the same shape, got {pair[0].shape} and {pair[1].shape}")
    return pair[0], pair[1]


def sphere_mean(values: Array, weights: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """Weighted mean over the last two axes, ``sum(m w x) / sum(m w)``.

    Args:
        values: Array ``(..., nlat, nlon)``.
        weights: Non-negative quadrature weights that broadcast to ``(nlat, nlon)``, of any scale.
        mask: Optional array that broadcasts against ``values``; 0 leaves a point out, and whatever
            stands there (NaN included) has no effect on value or gradient.

    Returns:
        Array ``(...)``.

    Raises:
        ValueError: When the weights do not fit the field or the mask leaves no point.
    """
    nlat, nlon = values.shape[-2:]
    shape = np.shape(weights)
    if len(shape) != 2 or shape[0] not in (1, nlat) or shape[1] not in (1, nlon):
        raise ValueError(
            f"weights must have shape ({nlat}, {nlon}) or broadcast to it like the field's last "
            f"two axes, got {shape}; build them with loss_weights(nlat, nlon, grid)"
        )
    if not isinstance(weights, Array):  # normalise in double precision while that is possible
        weights = np.asarray(weights, np.float64)
        weights = weights / np.broadcast_to(weights, (nlat, nlon)).sum()
    factor = jnp.broadcast_to(jnp.asarray(weights, values.dtype), (nlat, nlon))
    if mask is None:
        return integrate(values, factor) / integrate(jnp.ones_like(factor), factor)
    if isinstance(mask, np.ndarray) and not np.all(np.any(mask != 0, axis=(-2, -1))):
        raise ValueError("mask leaves no grid point; a mean over nothing is not defined")
    kept = jnp.broadcast_to(jnp.asarray(mask, values.dtype), values.shape)
    return integrate(jnp.where(kept != 0, values * kept, 0), factor) / integrate(kept, factor)


def integrate(values: Array, factor: Array) -> Array:
    """``sum_ij w_ij x_ij`` as a matrix-vector product.

    XLA's plain reduction adds in sequence, which costs 5 digits in float32 on 10^3 points; its dot
    product keeps several partial sums and is as fast.
    """
    flat = values.reshape(*values.shape[:-2], -1)
    return jnp.matmul(flat, factor.reshape(-1), precision=jax.lax.Precision.HIGHEST)


def difference(prediction: Array, target: Array, mask: ArrayLike | None) -> Array:
    """``prediction - target``, zero where masked, so that NaN there cannot reach the gradient."""
    gap = prediction - target
    return gap if mask is None else jnp.where(jnp.asarray(mask) != 0, gap, 0)


def root(x: Array, p: float = 2) -> Array:
    """``x**(1/p)`` with gradient 0 (not NaN) at 0; NaN stays NaN."""
    none = x <= 0
    safe = jnp.where(none, 1, x)
    return jnp.where(none, 0, jnp.sqrt(safe) if p == 2 else safe ** (1 / p))


def batch_channel_mean(per_channel: Array, weights: ArrayLike | None) -> Array:
    """Mean over batch; over the last axis (channels) weighted, normalised to sum 1."""
    if weights is None:
        return jnp.mean(per_channel)
    shape = np.shape(weights)
    if per_channel.ndim == 0 or shape != per_channel.shape[-1:]:
        channels = per_channel.shape[-1] if per_channel.ndim else 0
        raise ValueError(f"channel_weights must have shape ({channels},), got {shape}")
    factor = jnp.asarray(weights, per_channel.dtype)
    return jnp.mean(jnp.sum(per_channel * factor, -1) / jnp.sum(factor))

"""The product of one matrix with the channels of every point, y_o = sum_c W_oc x_c, and the order of its gradients.

The gradient of W needs x, that of x does not: found first, it frees x before dx takes its place. XLA, left to itself,
takes them the other way round in a network's last layer, where memory is at its peak.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sfno_jax._joint_gradients import tangent

__all__ = ["HIGHEST", "pointwise_product"]

HIGHEST = jax.lax.Precision.HIGHEST  # on GPUs the default rounds float32 factors to TF32


def _plain(weight: jax.Array, x: jax.Array) -> jax.Array:
    # One product per sample: a contraction over axis 1 would make XLA transpose the field.
    return jnp.matmul(jnp.broadcast_to(weight, (len(x), *weight.shape)), x, precision=HIGHEST)


def _gradients(weight: jax.Array, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    of_weight = jnp.matmul(g, jnp.swapaxes(x, 1, 2), precision=HIGHEST).sum(0)
    g, of_weight = jax.lax.optimization_barrier((g, of_weight))  # type: ignore[no-untyped-call]
    return of_weight, _plain(weight.T, g)


_TANGENT = tangent("pointwise_product", _plain, _gradients)


@jax.custom_jvp
def pointwise_product(weight: jax.Array, x: jax.Array) -> jax.Array:
    """(out, in) and (batch, in, points) to (batch, out, points)."""
    return _plain(weight, x)


@pointwise_product.defjvp
def _(primals: Any, changes: Any) -> tuple[jax.Array, jax.Array]:
    return pointwise_product(*primals), _TANGENT(primals, changes)

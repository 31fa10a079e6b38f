r"""Pointwise network y = W2 gelu(W1 x + b1) + r whose hidden values are never written to memory, by a C++ kernel.

Hidden fields are the largest arrays of a network's training step; XLA writes and keeps three of them per block. The
kernel works on tiles of points that stay in the cache, and computes them again for the gradients.

The map and its gradients are kernels, with the levels of `sfno_jax._joint_gradients`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from sfno_jax import _native, transforms
from sfno_jax._joint_gradients import dense, like, primitive, tangent
from sfno_jax._linear import merge_batch, split_batch
from sfno_jax.models.pointwise_product import pointwise_product

__all__ = ["gelu", "gelu_mlp", "supports"]

_CHANNEL_BLOCK = 16
_WIDEST = 512  # beyond, the weights leave the cache and XLA's products are the faster ones


def gelu(x: jax.Array) -> jax.Array:
    """Exact GELU, x (1 + erf(x / sqrt 2)) / 2; XLA's CPU backend does erf much faster than the usual erfc."""
    return 0.5 * x * (1.0 + jax.lax.erf(math.sqrt(0.5) * x))


def supports(x: jax.Array, hidden: int, out: int) -> bool:
    """Whether the kernel does this: float32 on a CPU, numbers of channels multiples of 16 up to 512."""
    widths = (x.shape[1], hidden, out)
    return (
        x.dtype == jnp.float32
        and x.size > 0
        and all(w % _CHANNEL_BLOCK == 0 and w <= _WIDEST for w in widths)
        and transforms.backend() == "native"
    )


def _plain(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, residual: jax.Array | None = None) -> jax.Array:
    y = pointwise_product(w2, gelu(pointwise_product(w1, x) + b1[:, None]))
    return y if residual is None or residual.size == 0 else y + residual


def _kernel(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, residual: jax.Array) -> jax.Array:
    _native.register()
    out = jax.ShapeDtypeStruct((len(x), len(w2), x.shape[2]), x.dtype)  # type: ignore[no-untyped-call]
    reused = {4: 0} if residual.size else None  # where nothing else needs it
    y: jax.Array = jax.ffi.ffi_call("sfno_jax_mlp", out, input_output_aliases=reused)(x, w1, b1, w2, residual)
    return y


def _gradient_kernel(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    _native.register()
    outs = tuple(like(a) for a in (x, w1, b1, w2))
    call = jax.ffi.ffi_call("sfno_jax_mlp_gradients", outs, input_output_aliases={0: 0})  # dx takes the place of x
    return tuple(call(x, w1, b1, w2, g))


_MLP = primitive("gelu_mlp", _kernel, _plain, multiple=False)
_TANGENT = tangent("gelu_mlp", _plain, _gradient_kernel)


def _jvp(primals: Any, tangents: Any) -> Any:
    *changes, added = (dense(t) for t in tangents)
    change = _TANGENT(primals[:4], changes)
    return _MLP.bind(*primals), change + added if added.size else change  # type: ignore[no-untyped-call]


def _batch(args: Any, axes: Any) -> Any:
    (x, *weights, residual), (axis, *others, residual_axis) = args, axes
    alike = residual.size == 0 or residual_axis is not None
    if axis is None or any(other is not None for other in others) or not alike:
        return jax.vmap(_plain, in_axes=axes)(*args), 0
    if residual_axis is not None:
        residual = merge_batch(residual, residual_axis, 0) if residual.size else residual[:0].reshape(0)
    y = _MLP.bind(merge_batch(x, axis, 0), *weights, residual)  # type: ignore[no-untyped-call]
    return split_batch(y, x.shape[axis], 0), 0


ad.primitive_jvps[_MLP] = _jvp
batching.primitive_batchers[_MLP] = _batch


def gelu_mlp(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, residual: jax.Array | None = None) -> jax.Array:
    """The network at every point.

    Args:
        x: (batch, in, points) float32.
        w1: (hidden, in).
        b1: (hidden,).
        w2: (out, hidden).
        residual: (batch, out, points), or None for zero.

    Returns:
        (batch, out, points).
    """
    residual = jnp.zeros((0,), x.dtype) if residual is None else residual
    return _MLP.bind(x, w1, b1, w2, residual)  # type: ignore[no-any-return, no-untyped-call]

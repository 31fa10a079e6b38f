r"""Pointwise network y = W2 gelu(W1 x + b1) + r whose hidden values are never written to memory, by a C++ kernel.

Hidden fields are the largest arrays of a network's training step; XLA writes and keeps three of them per block. The
kernel works on tiles of points that stay in the cache, and computes them again for the gradients.

The map is a JAX primitive with three levels, so that it differentiates to any order in both modes:

    mlp (kernel)  --jvp-->  tangent of mlp, linear in (dx, dW1, db1, dW2)  --transpose-->  gradients (kernel)

whatever else is asked of it (a tangent, derivatives of gradients, `vmap` over weights) is done by plain JAX.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from sfno_jax import _native, transforms
from sfno_jax._linear import merge_batch, split_batch

__all__ = ["gelu", "gelu_mlp", "supports"]

HIGHEST = jax.lax.Precision.HIGHEST
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
    def product(w: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.matmul(jnp.broadcast_to(w, (len(y), *w.shape)), y, precision=HIGHEST)

    y = product(w2, gelu(product(w1, x) + b1[:, None]))
    return y if residual is None or residual.size == 0 else y + residual


def _plain_tangent(*args: jax.Array) -> jax.Array:
    """Of the four arguments and their tangents."""
    tangent: jax.Array = jax.jvp(_plain, args[:4], args[4:])[1]
    return tangent


def _plain_gradients(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    gradients: tuple[jax.Array, ...] = jax.vjp(_plain, x, w1, b1, w2)[1](g)
    return gradients


def _like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)  # type: ignore[no-untyped-call]


def _kernel(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, residual: jax.Array) -> jax.Array:
    _native.register()
    out = jax.ShapeDtypeStruct((len(x), len(w2), x.shape[2]), x.dtype)  # type: ignore[no-untyped-call]
    reused = {4: 0} if residual.size else None  # where nothing else needs it
    y: jax.Array = jax.ffi.ffi_call("sfno_jax_mlp", out, input_output_aliases=reused)(x, w1, b1, w2, residual)
    return y


def _gradient_kernel(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    _native.register()
    outs = tuple(_like(a) for a in (x, w1, b1, w2))
    return tuple(jax.ffi.ffi_call("sfno_jax_mlp_gradients", outs)(x, w1, b1, w2, g))


def _dense(tangent: Any) -> Any:
    """A tangent as an array, also where it is symbolically zero."""
    return ad.instantiate_zeros(tangent)  # type: ignore[no-untyped-call]


def _primitive(name: str, lowered: Any, plain: Any, multiple: bool) -> Primitive:
    """A primitive that runs `lowered`, and differentiates and maps like `plain`."""
    primitive = Primitive(name)
    primitive.multiple_results = multiple
    primitive.def_impl(jax.jit(lowered))  # type: ignore[no-untyped-call]

    def abstract(*args: Any) -> Any:
        out = jax.eval_shape(plain, *(_like(a) for a in args))
        return (
            [jax.core.ShapedArray(o.shape, o.dtype) for o in out]
            if multiple
            else jax.core.ShapedArray(out.shape, out.dtype)
        )

    def batch(args: Any, axes: Any) -> Any:
        out = jax.vmap(plain, in_axes=axes)(*args)
        return (list(out), [0] * len(out)) if multiple else (out, 0)

    def jvp(primals: Any, tangents: Any) -> Any:
        out, tangent = jax.jvp(plain, primals, tuple(_dense(t) for t in tangents))
        return (list(out), list(tangent)) if multiple else (out, tangent)

    primitive.def_abstract_eval(abstract)  # type: ignore[no-untyped-call]
    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=multiple))
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    return primitive


_MLP = _primitive("gelu_mlp", _kernel, _plain, False)
_TANGENT = _primitive("gelu_mlp_tangent", _plain_tangent, _plain_tangent, False)
_GRADIENTS = _primitive("gelu_mlp_gradients", _gradient_kernel, _plain_gradients, True)


def _jvp(primals: Any, tangents: Any) -> Any:
    *changes, added = (_dense(t) for t in tangents)
    tangent = _TANGENT.bind(*primals[:4], *changes)  # type: ignore[no-untyped-call]
    return _MLP.bind(*primals), tangent + added if added.size else tangent  # type: ignore[no-untyped-call]


def _batch(args: Any, axes: Any) -> Any:
    (x, *weights, residual), (axis, *others, residual_axis) = args, axes
    alike = residual.size == 0 or residual_axis is not None
    if axis is None or any(other is not None for other in others) or not alike:
        return jax.vmap(_plain, in_axes=axes)(*args), 0
    if residual_axis is not None:
        residual = merge_batch(residual, residual_axis, 0) if residual.size else residual[:0].reshape(0)
    y = _MLP.bind(merge_batch(x, axis, 0), *weights, residual)  # type: ignore[no-untyped-call]
    return split_batch(y, x.shape[axis], 0), 0


def _transpose(cotangent: Any, *args: Any) -> list[Any]:
    primals, changes = args[:4], args[4:]
    wanted = [ad.is_undefined_primal(t) for t in changes]  # type: ignore[no-untyped-call]
    gradients: list[Any]
    if type(cotangent) is ad.Zero:
        gradients = [ad.Zero(t.aval) if want else None for t, want in zip(changes, wanted, strict=True)]
    else:
        gradients = list(_GRADIENTS.bind(*primals, cotangent))  # type: ignore[no-untyped-call]
    return [None] * 4 + [g if want else None for g, want in zip(gradients, wanted, strict=True)]


ad.primitive_jvps[_MLP] = _jvp
batching.primitive_batchers[_MLP] = _batch
ad.primitive_transposes[_TANGENT] = _transpose


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

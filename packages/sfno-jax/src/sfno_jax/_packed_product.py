r"""Product of packed coefficients with a complex matrix per degree, and its two transposes, by C++ kernels.

For u (modes, batch, 2, in) and v (modes, batch, 2, out) as in `sfno_jax._packed`, and W (out, in, lmax, 2), the
trilinear form

    t(u, W, v) = Re sum_lm v_lm^* . W_l u_lm

has the derivatives

    mix = dt/dv = W u,    mix_transposed = dt/du = W^H v,    outer = dt/dW = sum_m v u^H.

Each is linear in both of its arguments and its transposes are the other two, so all differentiate to any order in
both modes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _native
from ._linear import merge_batch, split_batch

__all__ = ["mix", "mix_transposed", "outer"]

_BATCH = 1  # axis of packed coefficients


class _Product:
    """One of the three as a JAX primitive."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.primitive = Primitive(f"packed_{name}")
        jitted = jax.jit(self._lower, static_argnames=("lmax", "mmax"))
        self.primitive.def_impl(jitted)  # type: ignore[no-untyped-call]
        self.primitive.def_abstract_eval(self._abstract)  # type: ignore[no-untyped-call]
        mlir.register_lowering(self.primitive, mlir.lower_fun(self._lower, multiple_results=False))
        batching.primitive_batchers[self.primitive] = self._batch

    def __call__(self, a: jax.Array, b: jax.Array, lmax: int, mmax: int) -> jax.Array:
        return self.primitive.bind(a, b, lmax=lmax, mmax=mmax)  # type: ignore[no-any-return, no-untyped-call]

    def _shape(self, a: Any, b: Any, lmax: int) -> tuple[int, ...]:
        if self.name == "outer":
            return (b.shape[3], a.shape[3], lmax, 2)
        return (*a.shape[:3], b.shape[0 if self.name == "mix" else 1])

    def _abstract(self, a: Any, b: Any, *, lmax: int, mmax: int) -> Any:
        return jax.core.ShapedArray(self._shape(a, b, lmax), a.dtype)

    def _lower(self, a: jax.Array, b: jax.Array, *, lmax: int, mmax: int) -> jax.Array:
        _native.register()
        out = jax.ShapeDtypeStruct(self._shape(a, b, lmax), a.dtype)  # type: ignore[no-untyped-call]
        y: jax.Array = jax.ffi.ffi_call(f"sfno_jax_packed_{self.name}", out)(
            a, b, lmax=np.int64(lmax), mmax=np.int64(mmax)
        )
        return y

    def _batch(self, args: Any, axes: Any, *, lmax: int, mmax: int) -> Any:
        (a, b), (a_axis, b_axis) = args, axes
        if self.name != "outer" and b_axis is None:  # one matrix for all: mapped samples are samples
            y = self(merge_batch(a, a_axis, _BATCH), b, lmax, mmax)
            return split_batch(y, a.shape[a_axis], _BATCH), _BATCH
        size = b.shape[b_axis] if a_axis is None else a.shape[a_axis]
        pair = tuple(
            jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(args, axes, strict=True)
        )
        return jax.lax.map(lambda ab: self(ab[0], ab[1], lmax, mmax), pair), 0


_MIX, _MIX_TRANSPOSED, _OUTER = _Product("mix"), _Product("mix_transposed"), _Product("outer")


def mix(u: jax.Array, weight: jax.Array, lmax: int, mmax: int) -> jax.Array:
    """v_lm = W_l u_lm: (modes, batch, 2, in) and (out, in, lmax, 2) to (modes, batch, 2, out)."""
    return _MIX(u, weight, lmax, mmax)


def mix_transposed(v: jax.Array, weight: jax.Array, lmax: int, mmax: int) -> jax.Array:
    """u_lm = W_l^H v_lm: (modes, batch, 2, out) and (out, in, lmax, 2) to (modes, batch, 2, in)."""
    return _MIX_TRANSPOSED(v, weight, lmax, mmax)


def outer(u: jax.Array, v: jax.Array, lmax: int, mmax: int) -> jax.Array:
    """W_l = sum over orders and samples of v_lm u_lm^H: to (out, in, lmax, 2)."""
    return _OUTER(u, v, lmax, mmax)


ad.defbilinear(  # type: ignore[no-untyped-call]
    _MIX.primitive,
    lambda v, u, weight, **n: mix_transposed(v, weight, **n),
    lambda v, u, weight, **n: outer(u, v, **n),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    _MIX_TRANSPOSED.primitive,
    lambda u, v, weight, **n: mix(u, weight, **n),
    lambda u, v, weight, **n: outer(u, v, **n),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    _OUTER.primitive,
    lambda weight, u, v, **n: mix_transposed(v, weight, **n),
    lambda weight, u, v, **n: mix(u, weight, **n),
)

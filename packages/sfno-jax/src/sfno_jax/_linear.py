"""Linear operators that know their exact transpose, as JAX primitives.

A Legendre stage is a real matrix applied along two axes; its transpose is the other stage. Telling JAX so keeps
reverse mode from storing the O(L^3) table that differentiation through a recurrence would keep, and makes VJPs exact
transposes instead of approximations. (`jax.custom_derivatives.linear_call` says the same but cannot be vmapped.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["LinearOperator", "merge_batch", "split_batch", "transpose_pair"]

Apply = Callable[[jax.Array, Any], jax.Array]


class LinearOperator:
    """A linear map ``x -> f(x, plan)`` over the trailing axes of ``x``; leading axes are a batch.

    Args:
        name: Name shown in jaxprs.
        apply: Pure function of an array and a hashable plan, linear in the array, batching over all leading axes.
        batch_axes: Of an operator whose arrays have a fixed number of axes, the axis of the argument and that of the
            result that are a batch, into which ``vmap`` merges its own; None where ``vmap`` adds a leading axis.

    Attributes:
        apply: As given.
        batch_axes: As given.
    """

    def __init__(self, name: str, apply: Apply, batch_axes: tuple[int, int] | None = None) -> None:
        self.name = name
        self.apply = apply
        self.batch_axes = batch_axes
        self._primitive = Primitive(name)
        self._jitted = jax.jit(apply, static_argnums=1)
        self._primitive.def_impl(lambda x, *, plan: self._jitted(x, plan))  # type: ignore[no-untyped-call]
        self._primitive.def_abstract_eval(self.abstract)  # type: ignore[no-untyped-call]
        mlir.register_lowering(
            self._primitive, mlir.lower_fun(lambda x, *, plan: apply(x, plan), multiple_results=False)
        )
        batching.primitive_batchers[self._primitive] = self._batch

    def __call__(self, x: jax.Array, plan: Hashable) -> jax.Array:
        """Apply the operator to ``x`` (..., *core)."""
        return self._primitive.bind(x, plan=plan)  # type: ignore[no-any-return, no-untyped-call]

    def abstract(self, x: Any, *, plan: Hashable) -> Any:
        """Shape and type of the result."""
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)  # type: ignore[no-untyped-call]
        out = jax.eval_shape(lambda y: self.apply(y, plan), like)
        return jax.core.ShapedArray(out.shape, out.dtype)

    def _batch(self, args: Any, axes: Any, *, plan: Hashable) -> Any:
        (x,), (axis,) = args, axes
        if self.batch_axes is None:
            return self(jnp.moveaxis(x, axis, 0), plan), 0
        before, after = self.batch_axes
        return split_batch(self(merge_batch(x, axis, before), plan), x.shape[axis], after), after

    def _set_transpose(self, other: LinearOperator) -> None:
        def transpose(cotangent: Any, x: Any, *, plan: Hashable) -> list[Any]:
            if type(cotangent) is ad.Zero:
                return [ad.Zero(x.aval)]
            return [other(cotangent, plan)]

        ad.deflinear2(self._primitive, transpose)  # type: ignore[no-untyped-call]


def merge_batch(x: jax.Array, mapped: int, batch: int) -> jax.Array:
    """Merge a mapped axis into the batch axis, counted without the mapped one."""
    x = jnp.moveaxis(x, mapped, batch)
    return x.reshape(*x.shape[:batch], -1, *x.shape[batch + 2 :])


def split_batch(x: jax.Array, size: int, batch: int) -> jax.Array:
    """The inverse of `merge_batch`: the mapped axis comes at ``batch``, the batch behind it."""
    return x.reshape(*x.shape[:batch], size, x.shape[batch] // size, *x.shape[batch + 1 :])


def transpose_pair(
    name: str,
    forward: Apply,
    name_transpose: str,
    transpose: Apply,
    batch_axes: tuple[int, int] | None = None,
) -> tuple[LinearOperator, LinearOperator]:
    """Two operators, each the exact (unconjugated) transpose of the other."""
    a = LinearOperator(name, forward, batch_axes)
    b = LinearOperator(name_transpose, transpose, None if batch_axes is None else batch_axes[::-1])
    a._set_transpose(b)
    b._set_transpose(a)
    return a, b

"""A linear operator beside the identity: what a residual network analyses and keeps, and where its cotangents meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._linear import LinearOperator, merge_batch, split_batch

__all__ = ["residual_pair"]

Beside = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array]]
Onto = Callable[[jax.Array, jax.Array, Any], jax.Array]


def residual_pair(
    name: str, forward: LinearOperator, name_transpose: str, transpose: LinearOperator, onto: Onto
) -> tuple[Beside, Onto]:
    """An operator beside the identity, and the transpose of that: x -> (A x, x) and (u, r) -> A^T u + r.

    In reverse mode the cotangents of a residual branch then meet in `onto`, which can add as it writes.

    Args:
        name: Of the first in jaxprs.
        forward: A, with `batch_axes`.
        name_transpose: Of the second.
        transpose: A^T, the other of the same `transpose_pair`.
        onto: Function of u, r and a plan: A^T u + r.

    Returns:
        Functions of (x, plan) and of (u, r, plan). They differentiate to any order in both modes.
    """
    beside, added = Primitive(name), Primitive(name_transpose)
    beside.multiple_results = True
    assert forward.batch_axes is not None
    fields, packed = forward.batch_axes

    def apply_beside(x: jax.Array, *, plan: Any) -> list[jax.Array]:
        return [forward.apply(x, plan), x]

    def apply_onto(u: jax.Array, r: jax.Array, *, plan: Any) -> jax.Array:
        return onto(u, r, plan)

    def beside_transposed(cotangents: Any, x: Any, *, plan: Any) -> list[Any]:
        u, r = cotangents
        if type(u) is ad.Zero:
            return [r]
        return [transpose(u, plan) if type(r) is ad.Zero else added.bind(u, r, plan=plan)]  # type: ignore[no-untyped-call]

    def onto_transposed(cotangent: Any, *args: Any, plan: Any) -> list[Any]:
        wanted = [ad.is_undefined_primal(x) for x in args]  # type: ignore[no-untyped-call]
        if type(cotangent) is ad.Zero:
            return [ad.Zero(x.aval) if want else None for x, want in zip(args, wanted, strict=True)]
        if all(wanted):
            return list(beside.bind(cotangent, plan=plan))  # type: ignore[no-untyped-call]
        return [forward(cotangent, plan) if wanted[0] else None, cotangent if wanted[1] else None]

    def beside_batched(args: Any, axes: Any, *, plan: Any) -> Any:
        (x,), (axis,) = args, axes
        u, r = beside.bind(merge_batch(x, axis, fields), plan=plan)  # type: ignore[no-untyped-call]
        size = x.shape[axis]
        return [split_batch(u, size, packed), split_batch(r, size, fields)], [packed, fields]

    def onto_batched(args: Any, axes: Any, *, plan: Any) -> Any:
        size = next(x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None)
        u, r = (
            merge_batch(jnp.broadcast_to(x, (size, *x.shape)), 0, to) if axis is None else merge_batch(x, axis, to)
            for x, axis, to in zip(args, axes, (packed, fields), strict=True)
        )
        return split_batch(added.bind(u, r, plan=plan), size, fields), fields  # type: ignore[no-untyped-call]

    rules = (
        (beside, apply_beside, beside_transposed, beside_batched),
        (added, apply_onto, onto_transposed, onto_batched),
    )
    for primitive, apply, transposed, batched in rules:
        primitive.def_impl(jax.jit(apply, static_argnames="plan"))  # type: ignore[no-untyped-call]
        lowered = mlir.lower_fun(apply, multiple_results=primitive.multiple_results)
        mlir.register_lowering(primitive, lowered)
        ad.deflinear2(primitive, transposed)  # type: ignore[no-untyped-call]
        ad.primitive_transposes[primitive] = transposed
        batching.primitive_batchers[primitive] = batched

    @beside.def_abstract_eval  # type: ignore[untyped-decorator]
    def _(x: Any, *, plan: Any) -> Any:
        return [forward.abstract(x, plan=plan), jax.core.ShapedArray(x.shape, x.dtype)]

    @added.def_abstract_eval  # type: ignore[untyped-decorator]
    def _(u: Any, r: Any, *, plan: Any) -> Any:
        return jax.core.ShapedArray(r.shape, r.dtype)

    return (
        lambda x, plan: tuple(beside.bind(x, plan=plan)),  # type: ignore[no-untyped-call]
        lambda u, r, plan: added.bind(u, r, plan=plan),  # type: ignore[no-untyped-call]
    )

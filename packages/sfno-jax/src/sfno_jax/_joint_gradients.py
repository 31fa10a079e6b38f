"""Maps that compute their gradients with respect to all arguments at once, as JAX primitives.

JAX transposes the derivative of a map argument by argument. A kernel that finds all gradients in one pass, or a program
that should find them in a given order, needs another level between the map and its gradients:

    f  --jvp-->  tangent of f, linear in the changes of all arguments  --transpose-->  gradients

`tangent` makes the second and the third. Whatever else is asked of them (derivatives of gradients, `vmap`) is done by
plain JAX, so that f differentiates to any order in both modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["dense", "like", "primitive", "tangent"]


def like(x: Any) -> Any:
    """Shape and type of an array."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)  # type: ignore[no-untyped-call]


def dense(tangent: Any) -> Any:
    """A tangent as an array, also where it is symbolically zero."""
    return ad.instantiate_zeros(tangent)  # type: ignore[no-untyped-call]


def primitive(name: str, lowered: Callable[..., Any], plain: Callable[..., Any], *, multiple: bool) -> Primitive:
    """A primitive that runs `lowered`, and differentiates and maps like `plain`.

    Args:
        name: Shown in jaxprs.
        lowered: Function of arrays.
        plain: The same function, written in differentiable JAX.
        multiple: They return a tuple of arrays, not one array.
    """
    result = Primitive(name)
    result.multiple_results = multiple
    result.def_impl(jax.jit(lowered))  # type: ignore[no-untyped-call]

    def abstract(*args: Any) -> Any:
        out = jax.eval_shape(plain, *(like(a) for a in args))
        return (
            [jax.core.ShapedArray(o.shape, o.dtype) for o in out]
            if multiple
            else jax.core.ShapedArray(out.shape, out.dtype)
        )

    def batch(args: Any, axes: Any) -> Any:
        out = jax.vmap(plain, in_axes=axes)(*args)
        return (list(out), [0] * len(out)) if multiple else (out, 0)

    def jvp(primals: Any, tangents: Any) -> Any:
        out, change = jax.jvp(plain, primals, tuple(dense(t) for t in tangents))
        return (list(out), list(change)) if multiple else (out, change)

    result.def_abstract_eval(abstract)  # type: ignore[no-untyped-call]
    mlir.register_lowering(result, mlir.lower_fun(lowered, multiple_results=multiple))
    batching.primitive_batchers[result] = batch
    ad.primitive_jvps[result] = jvp
    return result


def tangent(
    name: str, plain: Callable[..., Any], gradients: Callable[..., tuple[jax.Array, ...]]
) -> Callable[[Sequence[jax.Array], Sequence[jax.Array]], jax.Array]:
    """The derivative of a map, whose transpose is `gradients`.

    Args:
        name: Of the map.
        plain: The map in differentiable JAX: n arrays to one.
        gradients: Of (n arrays, cotangent): the n gradients.

    Returns:
        Function of n arrays and their n changes: the change of the result, linear in the changes.
    """

    def plain_tangent(*args: jax.Array) -> jax.Array:
        half = len(args) // 2
        change: jax.Array = jax.jvp(plain, args[:half], args[half:])[1]
        return change

    def plain_gradients(*args: jax.Array) -> tuple[jax.Array, ...]:
        found: tuple[jax.Array, ...] = jax.vjp(plain, *args[:-1])[1](args[-1])
        return found

    derivative = primitive(f"{name}_tangent", plain_tangent, plain_tangent, multiple=False)
    jointly = primitive(f"{name}_gradients", gradients, plain_gradients, multiple=True)

    def transpose(cotangent: Any, *args: Any) -> list[Any]:
        half = len(args) // 2
        primals, changes = args[:half], args[half:]
        wanted = [ad.is_undefined_primal(t) for t in changes]  # type: ignore[no-untyped-call]
        found: Sequence[Any]
        if type(cotangent) is ad.Zero:
            found = [ad.Zero(t.aval) if want else None for t, want in zip(changes, wanted, strict=True)]
        elif all(wanted):
            found = jointly.bind(*primals, cotangent)  # type: ignore[no-untyped-call]
        else:
            found = plain_gradients(*primals, cotangent)  # of which XLA drops what is not wanted
        return [None] * half + [g if want else None for g, want in zip(found, wanted, strict=True)]

    ad.primitive_transposes[derivative] = transpose
    return lambda primals, changes: derivative.bind(*primals, *changes)  # type: ignore[no-untyped-call]

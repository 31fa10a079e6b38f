"""A model's weights by name, as numpy arrays, and back with every mismatch listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from sfno_jax.models.layers import Buffer

__all__ = ["named_variables", "named_weights", "set_weights"]

Array = NDArray[Any]


def named_variables(model: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """Parameters and buffers by dotted path, for instance ``blocks.0.conv.filter.weight``."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Any(nnx.Param, Buffer)))
    return {".".join(map(str, path)): variable for path, variable in state}


def named_weights(model: nnx.Module) -> dict[str, Array]:
    """Values of `named_variables` as numpy arrays."""
    return {name: np.asarray(v.get_value()) for name, v in named_variables(model).items()}


def set_weights(model: nnx.Module, arrays: Mapping[str, Array], source: str) -> None:
    """Replace all weights of a model.

    Args:
        model: Changed in place, once everything was checked.
        arrays: One array per name of `named_weights`.
        source: Where they come from, for messages.

    Raises:
        ValueError: listing missing names, unexpected names, shapes and precisions that differ.
    """
    variables = named_variables(model)
    problems = [f"missing: {name}" for name in variables if name not in arrays]
    problems += [f"unexpected: {name}" for name in arrays if name not in variables]
    for name in variables.keys() & arrays.keys():
        here, there = variables[name].get_value(), arrays[name]
        if here.shape != there.shape:
            problems.append(f"shape of {name}: model {here.shape}, given {there.shape}")
        elif not np.can_cast(there.dtype, here.dtype, "same_kind") or (there.dtype.itemsize > here.dtype.itemsize):
            problems.append(
                f"dtype of {name}: model {here.dtype}, given {there.dtype} "
                f"(build the model with param_dtype='{there.dtype}' or convert the array)"
            )
    if problems:
        raise ValueError(
            f"weights from {source} do not fit this {type(model).__name__}:\n  " + "\n  ".join(sorted(problems))
        )
    flat = {
        path: variable.replace(jnp.asarray(arrays[".".join(map(str, path))], variable.get_value().dtype))
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Any(nnx.Param, Buffer)))
    }
    nnx.update(model, nnx.from_flat_state(flat))

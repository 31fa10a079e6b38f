"""Nested states as JSON plus named tensors: no pickle, and nothing that is lost in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from inrank.layers.sharding import read_whole

__all__ = ["decode", "encode", "saved_tensor"]

_MARKS = ("__tensor__", "__tuple__", "__pairs__")


def encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A JSON-able tree of a state; tensors, whole, go to a dictionary under their path.

    Args:
        value: Numbers, strings, None, tensors, and lists, tuples and dictionaries of such.
        path: Name of the value, for tensors' names and messages.
        tensors: Is filled.

    Raises:
        TypeError: If something else is in it; names the path.
    """
    if isinstance(value, Tensor):
        tensors[path] = read_whole(value.detach())
        return {"__tensor__": path}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) and key not in _MARKS for key in value):
            return {key: encode(item, f"{path}.{key}", tensors) for key, item in value.items()}
        return {"__pairs__": [[key, encode(item, f"{path}.{key}", tensors)] for key, item in value.items()]}
    raise TypeError(
        f"{path} is a {type(value).__name__}, which is not saved (no pickle): numbers, strings, tensors, and lists, "
        "tuples and dictionaries of them are"
    )


def decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `encode`."""
    if isinstance(tree, list):
        return [decode(item, tensors) for item in tree]
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            return tensors[tree["__tensor__"]]
        if "__tuple__" in tree:
            return tuple(decode(item, tensors) for item in tree["__tuple__"])
        if "__pairs__" in tree:
            return {key: decode(item, tensors) for key, item in tree["__pairs__"]}
        return {key: decode(item, tensors) for key, item in tree.items()}
    return tree


def saved_tensor(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, with memory of its own, as safetensors wants it."""
    tensor = tensor.detach().cpu()
    own = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if own else tensor.clone(memory_format=torch.contiguous_format)

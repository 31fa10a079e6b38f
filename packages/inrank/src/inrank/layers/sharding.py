"""Reading and writing parameters that FSDP2 may have sharded over processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["is_sharded", "read_whole", "write_whole"]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is spread over processes; does not load torch.distributed.tensor to find out."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def read_whole(tensor: Tensor) -> Tensor:
    """The whole tensor; gathers a sharded one, so that every process has to call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


@torch.no_grad()
def write_whole(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter a value in place, of another shape too; the gradient is dropped.

    Raises:
        ValueError: If a sharded parameter would change its shape.
    """
    value = value.to(parameter.dtype)
    parameter.grad = None
    if is_sharded(parameter):
        if parameter.shape != value.shape:
            raise ValueError(
                f"a sharded parameter of shape {tuple(parameter.shape)} cannot become {tuple(value.shape)}: "
                'wrap the model with storage="reserve" before FSDP'
            )
        from torch.distributed.tensor import distribute_tensor

        sharded = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.to_local().copy_(sharded.to_local())
    elif parameter.shape == value.shape:
        parameter.data.copy_(value)
    else:
        # a graph that somebody still holds (losses in a list) holds a gradient accumulator that expects the old shape;
        # PyTorch makes a new one only when the type of the data changes
        passing = torch.float32 if parameter.dtype == torch.float16 else torch.float16
        parameter.data = torch.empty(0, dtype=passing, device=parameter.device)
        parameter.data = value.contiguous()

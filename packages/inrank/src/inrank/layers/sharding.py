"""Reading and writing parameters that FSDP2 may have sharded over processes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ["read_whole", "write_whole"]


def read_whole(tensor: Tensor) -> Tensor:
    """The whole tensor; gathers a sharded one, so that every process has to call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def write_whole(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter a value in place, of another shape too; the gradient is dropped.

    Raises:
        ValueError: If a sharded parameter would change its shape.
    """
    value = value.to(parameter.dtype)
    parameter.grad = None
    if isinstance(parameter, DTensor):
        if parameter.shape != value.shape:
            raise ValueError(
                f"a sharded parameter of shape {tuple(parameter.shape)} cannot become {tuple(value.shape)}: "
                'wrap the model with storage="reserve" before FSDP'
            )
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

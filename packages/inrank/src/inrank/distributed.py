"""Ranks under torch.distributed: process 0 decides, the others follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from inrank.layers import LowRankLayer
from inrank.layers.sharding import is_sharded

__all__ = [
    "check_parallel",
    "copy_from_first",
    "copy_layer_from_first",
    "is_first_process",
    "process_count",
    "unwrapped_model",
]


def process_count() -> int:
    """Number of processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first_process() -> bool:
    """Whether this process decides and writes."""
    return process_count() == 1 or dist.get_rank() == 0


def copy_from_first(tensor: Tensor) -> Tensor:
    """Overwrite a tensor, in place, with what process 0 has."""
    if process_count() > 1:
        if dist.get_backend() == "nccl" and not tensor.is_cuda:
            moved = tensor.cuda()
            dist.broadcast(moved, src=0)
            tensor.copy_(moved)
        else:
            dist.broadcast(tensor, src=0)
    return tensor


def copy_layer_from_first(layer: LowRankLayer, optimizers: Iterable[Optimizer]) -> None:
    """Overwrite factors and their optimizer state with process 0's; processors that differ round differently.

    What is sharded was scattered by process 0 already.
    """
    for parameter in (layer.u, layer.v):
        if is_sharded(parameter):
            continue
        copy_from_first(parameter.data)
        for optimizer in optimizers:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.ndim:
                    copy_from_first(value)


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's and DDP's wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def check_parallel(model: nn.Module, layers: Mapping[str, LowRankLayer]) -> None:
    """See that growing layers can change under the way the model is spread over processes.

    Args:
        model: As the training loop calls it.
        layers: Layers whose rank may change, by name.

    Raises:
        ValueError: If they cannot; says what to do.
    """
    resized = [name for name, layer in layers.items() if layer.config.storage == "resize"]
    for name, layer in layers.items():
        if layer.u.ndim != 2:
            raise ValueError(
                f"layer {name}: its factor is flattened to shape {tuple(layer.u.shape)}, as FSDP1 does; use FSDP2 "
                '(torch.distributed.fsdp.fully_shard) and storage="reserve"'
            )
        if layer.u.numel() == 0 and layer.rows > 0 and layer.active > 0:
            raise ValueError(
                f"layer {name}: its factor is empty ({tuple(layer.u.shape)}), as ZeRO-3 leaves it outside of a "
                "gathering context; ZeRO-3 is not supported: use DDP or FSDP2"
            )
    if not resized:
        return
    sharded = [name for name in resized if is_sharded(layers[name].u)]
    parallel = [m for m in model.modules() if isinstance(m, (nn.DataParallel, nn.parallel.DistributedDataParallel))]
    if parallel or sharded:
        how = type(parallel[0]).__name__ if parallel else "FSDP2"
        raise ValueError(
            f'{how} keeps buffers for the shapes that parameters had when it was built, but storage="resize" changes '
            f'them (layer {resized[0]} and {len(resized) - 1} more): wrap with InRankConfig(storage="reserve")'
        )

"""One folder from which a run goes on bit for bit: ranks of every layer, tensors, optimizer, controller, generators.

| file | content |
|---|---|
| checkpoint.json | ranks and configuration of every low-rank layer, the controller, everything that is no tensor |
| model.safetensors | parameters and buffers |
| state.safetensors | the optimizer's tensors, and those of scheduler and extra |
| rng-0.safetensors ... | generators of each process |

The folder appears under its name when it is whole: it is written beside it, synced and renamed. A kill between the two
renames that replace an older checkpoint leaves that one, which `load` then takes. Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from inrank.checkpoint_files import (
    FORMAT,
    INDEX,
    damage_named,
    intact_folder,
    read_index,
    read_tensors,
    write_folder,
)
from inrank.controller import RankController
from inrank.distributed import is_first_process, process_count
from inrank.distributed import unwrapped_model as unwrap
from inrank.layers.sharding import is_sharded, read_whole, write_whole
from inrank.matching import plain_name
from inrank.optimizer_state import unwrapped_optimizer
from inrank.random_state import gather_random_states, unpack_random_state
from inrank.rank_report import check_ranks
from inrank.state_tree import decode, encode
from inrank.wrapping import low_rank_layers

__all__ = ["adopt_layers", "describe_layers", "latest", "load", "restore_ranks", "save"]


def save(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    controller: RankController | None = None,
    scheduler: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint; under torch.distributed all processes call this, and process 0 writes.

    Args:
        folder: Where to; an older checkpoint there is replaced.
        model: With or without low-rank layers, wrappers (DDP, torch.compile) and FSDP2's shards.
        optimizer: One or several.
        controller: Of the ranks.
        scheduler: Anything with `state_dict` and `load_state_dict`.
        extra: Numbers, strings and tensors of your own, as epoch, place in the data, `GradScaler.state_dict()`.

    Returns:
        The folder.

    Raises:
        TypeError: If a state holds something other than numbers, strings, tensors and collections of them.
        FileExistsError: If the folder holds something else than a checkpoint.
    """
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    weights, aliases = _weights(unwrap(model))
    names = {id(p): plain_name(name) for name, p in unwrap(model).named_parameters()}
    optimizers = _optimizers(optimizer)
    index: dict[str, Any] = {
        "format": FORMAT,
        "steps": None if controller is None else controller.steps,
        "layers": describe_layers(model),
        "aliases": aliases,
        "optimizers": [
            {
                "type": type(each).__name__,
                "parameters": _parameter_names(each, names),
                "state": encode(each.state_dict(), f"optimizer{i}", tensors),
            }
            for i, each in enumerate(optimizers)
        ],
        "controller": None if controller is None else controller.state_dict(),
        "scheduler": None if scheduler is None else encode(scheduler.state_dict(), "scheduler", tensors),
        "extra": encode(dict(extra or {}), "extra", tensors),
        "processes": process_count(),
    }
    generators = gather_random_states()
    if is_first_process():
        write_folder(folder, index, weights, tensors, generators)
    if process_count() > 1:
        dist.barrier()
    return folder


def load(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    controller: RankController | None = None,
    scheduler: Any = None,
    *,
    adapt_ranks: bool = True,
    generators: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint into a freshly made run, which then goes on bit for bit.

    Args:
        folder: Of the checkpoint.
        model: Wrapped as before; its ranks become those of the checkpoint.
        optimizer: As at `save`; None reads no state.
        controller: Likewise.
        scheduler: Likewise.
        adapt_ranks: False: other ranks are an error.
        generators: Whether to put random generators back, too.

    Returns:
        What was saved as `extra`.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, or layers, tensors or parameters are not those of the model; lists them.
    """
    source, index = intact_folder(Path(folder))
    adopt_layers(model, index["layers"], adapt=adapt_ranks)
    _load_weights(unwrap(model), read_tensors(source / "model.safetensors"), index["aliases"])
    tensors = read_tensors(source / "state.safetensors")
    names = {id(p): plain_name(name) for name, p in unwrap(model).named_parameters()}
    optimizers = _optimizers(optimizer)
    if optimizers and len(optimizers) != len(index["optimizers"]):
        raise ValueError(
            f"{source} has the state of {len(index['optimizers'])} optimizers; given are {len(optimizers)}"
        )
    for each, saved in zip(optimizers, index["optimizers"], strict=False):
        _load_optimizer(each, saved, names, tensors)
    for what, target in (("controller", controller), ("scheduler", scheduler)):
        if target is not None:
            if index[what] is None:
                raise ValueError(f"{source} was saved without a {what}")
            target.load_state_dict(decode(index[what], tensors))
    if generators:
        own = source / f"rng-{dist.get_rank() if process_count() > 1 else 0}.safetensors"
        if own.exists():
            with damage_named(own):
                unpack_random_state(own.read_bytes())
        else:
            warnings.warn(
                f"{source} was saved by {index['processes']} processes and has no generator states for this one of "
                f"{process_count()}; random draws go on from this process's own seed",
                stacklevel=2,
            )
    return dict(decode(index["extra"], tensors))


def restore_ranks(folder: str | Path, model: nn.Module) -> None:
    """Give a model's factors the sizes that they have in a checkpoint, without reading values.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged or the layers are others.
    """
    adopt_layers(model, intact_folder(Path(folder))[1]["layers"])


def latest(root: str | Path) -> Path | None:
    """The intact checkpoint among a folder's subfolders that has the most steps; None if there is none."""
    found = []
    for folder in Path(root).iterdir() if Path(root).is_dir() else ():
        if folder.is_dir() and (folder / INDEX).exists():
            try:
                index = read_index(folder)
            except ValueError:
                continue
            found.append((index["steps"] or 0, (folder / INDEX).stat().st_mtime_ns, folder))
    return max(found)[2] if found else None


# -- layers and weights ------------------------------------------------------------------------------------------


def describe_layers(model: nn.Module) -> dict[str, Any]:
    """Kind, shape, ranks and configuration of every low-rank layer by name, JSON-able."""
    return {
        name: {
            "type": type(layer).__name__,
            "shape": list(layer.matrix_shape),
            "groups": layer.groups,
            "ranks": layer.ranks(),
            "config": layer.config.to_dict(),
        }
        for name, layer in low_rank_layers(model).items()
    }


def adopt_layers(model: nn.Module, saved: Mapping[str, Any], *, adapt: bool = True) -> None:
    """Give a model's factors the sizes that `describe_layers` found.

    Args:
        model: With the same low-rank layers.
        saved: What `describe_layers` gave.
        adapt: False: other ranks are an error.

    Raises:
        ValueError: If layers, or ranks that must not be adapted, are others; lists them.
    """
    layers, here = low_rank_layers(model), describe_layers(model)
    wrong = [
        f"  {name}: expected {_words(saved.get(name))}, found {_words(here.get(name))}"
        for name in [*saved, *(name for name in here if name not in saved)]
        if name not in saved
        or name not in here
        or any(saved[name][key] != here[name][key] for key in ("type", "shape", "groups"))
    ]
    if wrong:
        raise ValueError("the model's low-rank layers are not those of the checkpoint:\n" + "\n".join(wrong))
    ranks = {name: entry["ranks"] for name, entry in saved.items()}
    fixed = [m for m in model.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]
    if not adapt or (fixed and any(layers[name].capacity != entry["capacity"] for name, entry in ranks.items())):
        check_ranks(layers, ranks)
    for name, layer in layers.items():
        layer.restore_ranks(ranks[name])


def _words(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "- no such layer"
    m, n = entry["shape"]
    groups = f" in {entry['groups']} groups" if entry["groups"] > 1 else ""
    return f"{entry['type']} {m} x {n}{groups} of rank {entry['ranks']['rank']}"


def _weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parameters and buffers, tied ones once, and the names of the others."""
    weights: dict[str, Tensor] = {}
    first: dict[Any, str] = {}
    aliases = {}
    for key, value in model.state_dict(keep_vars=True).items():
        name = plain_name(key)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} in the model's state_dict is a {type(value).__name__}; only tensors are saved")
        plain = not is_sharded(value) and value.numel() > 0
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype) if plain else id(value)
        if same in first:
            aliases[name] = first[same]
        else:
            first[same] = name
            weights[name] = read_whole(value.detach())
    return weights, aliases


@torch.no_grad()
def _load_weights(model: nn.Module, saved: dict[str, Tensor], aliases: Mapping[str, str]) -> None:
    saved = {**saved, **{name: saved[other] for name, other in aliases.items()}}
    own = {plain_name(key): value for key, value in model.state_dict(keep_vars=True).items()}
    wrong = []
    for name in [*saved, *(name for name in own if name not in saved)]:
        expected = tuple(saved[name].shape) if name in saved else None
        found = tuple(own[name].shape) if name in own else None
        if expected != found:
            empty = " (empty, as ZeRO-3 leaves parameters outside of a gathering context)" if found == (0,) else ""
            wrong.append(f"  {name}: expected {expected or 'nothing'}, found {found or 'nothing'}{empty}")
    if wrong:
        raise ValueError("the model's tensors are not those of the checkpoint:\n" + "\n".join(wrong))
    for name, value in own.items():
        if is_sharded(value):
            write_whole(value, saved[name].to(value.device))
        else:
            value.detach().copy_(saved[name])


# -- optimizers --------------------------------------------------------------------------------------------------


def _optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    given = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for each in given:
        if not isinstance(each, Optimizer):
            raise TypeError(f"the optimizer is a {type(each).__name__}; a torch.optim.Optimizer is needed")
    return [unwrapped_optimizer(each) for each in given]


def _parameter_names(optimizer: Optimizer, names: Mapping[int, str]) -> list[str]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [names.get(id(p), f"- not in the model, {tuple(p.shape)}") for p in parameters]


def _load_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str], tensors: dict[str, Tensor]
) -> None:
    kind = type(optimizer).__name__
    if kind != saved["type"]:
        raise ValueError(f"the checkpoint has the state of {saved['type']}, which {kind} cannot take over")
    own = _parameter_names(optimizer, names)
    if own != saved["parameters"]:
        pairs = zip([*saved["parameters"], *["-"] * len(own)], [*own, *["-"] * len(saved["parameters"])], strict=False)
        at, (expected, found) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ValueError(
            f"the optimizer's parameters are not those of the checkpoint: {len(saved['parameters'])} expected, "
            f"{len(own)} found; number {at} should be {expected}, is {found}"
        )
    state = decode(saved["state"], tensors)
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, values in state["state"].items():
        parameter = parameters[int(position)]
        for key, value in values.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                continue
            if is_sharded(parameter) and value.shape == parameter.shape:
                whole = value.to(parameter.device)
                from torch.distributed.tensor import distribute_tensor

                optimizer.state[parameter][key] = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
            elif optimizer.state[parameter][key].dtype != value.dtype:  # torch casts it to the parameter's type
                optimizer.state[parameter][key] = value.to(parameter.device)

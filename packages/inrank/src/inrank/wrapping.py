"""Replacing the layers of any model by low-rank ones, with an account of what was replaced and what was not."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.distributed import unwrapped_model
from inrank.layers import (
    FLOATS,
    InRankConv1D,
    InRankConv2d,
    InRankEfficientConv1D,
    InRankEfficientConv2d,
    InRankEfficientEmbedding,
    InRankEfficientLinear,
    InRankEmbedding,
    InRankLinear,
    LowRankLayer,
)
from inrank.layers.sharding import is_sharded
from inrank.matching import ALL_LINEAR, Pattern, Patterns, as_patterns, matches, no_match_message, plain_name
from inrank.wrap_report import SkippedLayer, WrappedLayer, WrapReport, reasons

__all__ = ["low_rank_layers", "summary", "wrap"]

# (full, efficient); Conv1D is recognised by name, so that transformers need not be there
_REPLACEMENTS: dict[str, tuple[type[LowRankLayer], type[LowRankLayer]]] = {
    "Linear": (InRankLinear, InRankEfficientLinear),
    "Conv1D": (InRankConv1D, InRankEfficientConv1D),
    "Conv2d": (InRankConv2d, InRankEfficientConv2d),
    "Embedding": (InRankEmbedding, InRankEfficientEmbedding),
}


def wrap(
    model: nn.Module,
    include: Patterns | None = None,
    exclude: Patterns = (),
    mode: str | None = None,
    config: InRankConfig | None = None,
    *,
    types: Sequence[type[nn.Module]] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> nn.Module:
    r"""Replace layers of a model by low-rank ones, in place, before its optimizer is made.

    Layers that can be replaced: nn.Linear, the Conv1D of transformers, nn.Conv2d, nn.Embedding. A layer that a pattern
    matches but that cannot or should not be replaced is skipped and listed with the reason; one that `include` gives
    by its full name raises instead. If anything is raised the model is unchanged.

    Args:
        model: Any module; if it is itself such a layer, the low-rank one is returned.
        include: Names, regular expressions or types: see `inrank.matching.matches`; each must match something.
            None or ``"all-linear"``: every nn.Linear and Conv1D but a language model's output head.
        exclude: What is left as it is although `include` matches it.
        mode: ``"efficient"`` or ``"full"``, in place of the configuration's.
        config: Ranks, initialization, storage; default: `InRankConfig()`.
        types: Only layers of these types.
        overrides: Changes of the configuration for some layers: a pattern (string) -> fields; later ones win.

    Returns:
        The model, with `model.inrank_report`, a `WrapReport`.

    Raises:
        ValueError: If nothing matches or everything that does is skipped, if a pattern matches nothing, if a layer
            given by its full name cannot be replaced, or if parameters are sharded, flattened, empty or not finite.
        TypeError: If a matched weight is quantised or an integer, or an argument is of another type.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        >>> model = wrap(model, include=["0", "2"], config=InRankConfig(rank=2, buffer=8))
        >>> [layer.rank for layer in low_rank_layers(model).values()]
        [2, 2]
    """
    config = InRankConfig() if config is None else config
    _require_type("model", model, nn.Module)
    _require_type("config", config, InRankConfig)
    _require_type("overrides", overrides or {}, Mapping)
    if mode is not None:
        config = InRankConfig.from_dict({**config.to_dict(), "mode": mode})
    _refuse_wrappers(model)
    included = (ALL_LINEAR,) if include is None else as_patterns(include)
    excluded, changes = as_patterns(exclude), dict(overrides or {})
    for own in [config, *(InRankConfig.from_dict({**config.to_dict(), **fields}) for fields in changes.values())]:
        if own.mode == "efficient" and (own.resolved_init == "zero" or own.init_scale == 0):
            raise ValueError(
                "without W_0 all layers would start at W = U V = 0, a saddle whose gradients are zero for ever: "
                f'choose another init than "zero" or mode="full" (given init={own.init!r}, init_scale={own.init_scale})'
            )
    modules, aliases = _modules(model)
    candidates = {name: module for name, module in modules.items() if _kind(module) is not None}
    if not included:
        raise ValueError("include is empty; give patterns, or None for every linear layer")
    if not candidates and any(isinstance(module, LowRankLayer) for module in modules.values()):
        raise ValueError("the model is wrapped already: every layer that could be replaced is low-rank")
    matched = {name: _matching(included, name, module, types) for name, module in modules.items()}
    _require_matches("include", included, matched.values(), candidates)
    _require_matches("exclude", excluded, [_matching(excluded, n, m, None) for n, m in modules.items()], candidates)
    _require_matches(
        "overrides",
        tuple(changes),
        [[p for p in changes if matches(p, n, m)] for n, m in candidates.items()],
        candidates,
    )
    tied = _tied(model, aliases)
    replacements: dict[str, LowRankLayer] = {}
    skipped: list[SkippedLayer] = []
    for name, found in matched.items():
        if not found:
            continue
        module = modules[name]
        reason = next((f"excluded by {p!r}" for p in excluded if matches(p, name, module)), None)
        explicit = name in found and reason is None
        if reason is None:
            _require_readable(name or "the model", module)
            reason = _reason_against(model, name, module, tied, output_head=set(found) != {ALL_LINEAR})
        if reason is None:
            try:
                replacements[name] = _replacement(name, module, _configured(config, changes, name, module), explicit)
            except ValueError as error:
                reason = str(error).removeprefix(f"{name}: ")
        if reason is not None:
            if explicit:
                raise ValueError(f"{name or 'the model'} cannot be replaced: {reason}")
            skipped.append(SkippedLayer(name, type(module).__name__, reason))
    if not replacements:
        raise ValueError(f"nothing was replaced: {reasons(skipped)}")
    notes = {name: _note(modules[name], layer) for name, layer in replacements.items()}
    for name, layer in replacements.items():
        for alias in aliases[id(modules[name])]:
            if not alias:
                model = layer
                continue
            parent, _, child = alias.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    report = WrapReport(
        tuple(_described(name, layer, notes[name]) for name, layer in replacements.items()), tuple(skipped)
    )
    model.inrank_report = report  # type: ignore[assignment]
    return model


def low_rank_layers(model: nn.Module) -> dict[str, LowRankLayer]:
    """The low-rank layers of a model by name, in its order.

    Args:
        model: Also inside torch.compile, DDP or FSDP, whose prefixes are left out of the names.

    Raises:
        TypeError: If it is no module.
    """
    _require_type("model", model, nn.Module)
    modules = unwrapped_model(model).named_modules()
    return {plain_name(name): m for name, m in modules if isinstance(m, LowRankLayer)}


def summary(model: nn.Module) -> WrapReport:
    """The present ranks of a model's low-rank layers, and what `wrap` skipped."""
    reports = [r for m in model.modules() if isinstance(r := getattr(m, "inrank_report", None), WrapReport)]
    notes = {layer.name: layer.note for report in reports for layer in report.wrapped}
    layers = low_rank_layers(model).items()
    return WrapReport(
        tuple(_described(name, layer, notes.get(name, "")) for name, layer in layers),
        tuple(layer for report in reports for layer in report.skipped),
    )


def _require_type(argument: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{argument} is a {type(value).__name__}; expected {kind.__module__}.{kind.__qualname__}")


def _described(name: str, layer: LowRankLayer, note: str) -> WrappedLayer:
    m, n = layer.rows // layer.groups, layer.columns
    return WrappedLayer(
        name=name,
        kind=next(kind for kind, classes in _REPLACEMENTS.items() if isinstance(layer, classes)),
        shape=(m, n),
        groups=layer.groups,
        rank=layer.rank,
        active=layer.active,
        max_rank=layer.max_rank,
        break_even=m * n / (m + n),
        dense_parameters=layer.groups * m * n,
        parameters=layer.u.numel() + layer.v.numel(),
        note=note,
    )


def _kind(module: nn.Module) -> str | None:
    """The key of `_REPLACEMENTS` for a module's very type."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and type(module) is transformers.Conv1D:
        return "Conv1D"
    exact = {nn.Linear: "Linear", nn.Conv2d: "Conv2d", nn.Embedding: "Embedding"}
    return exact.get(type(module))


def _modules(model: nn.Module) -> tuple[dict[str, nn.Module], dict[int, list[str]]]:
    """Modules by their first name, those inside low-rank ones left out, and all names of each."""
    aliases: dict[int, list[str]] = {}
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        aliases.setdefault(id(module), []).append(name)
        if len(aliases[id(module)]) == 1:
            modules[name] = module
    return modules, aliases


def _matching(
    patterns: tuple[Pattern, ...], name: str, module: nn.Module, types: Sequence[type[nn.Module]] | None
) -> list[Pattern]:
    """The patterns that mean a module, if it has a weight."""
    if types is not None and not isinstance(module, tuple(types)):
        return []
    linear = _kind(module) in ("Linear", "Conv1D") or isinstance(module, nn.Linear)
    has_weight = isinstance(module, LowRankLayer) or "weight" in module._parameters or hasattr(module, "weight")
    return [p for p in patterns if (linear if p == ALL_LINEAR else has_weight and matches(p, name, module))]


def _require_matches(
    argument: str,
    patterns: Sequence[Pattern],
    found: Iterable[Sequence[Pattern]],
    candidates: Mapping[str, nn.Module],
) -> None:
    used = [pattern for several in found for pattern in several]
    unmatched = [pattern for pattern in patterns if pattern not in used]
    if unmatched:
        raise ValueError(no_match_message(argument, unmatched, candidates))


def _refuse_wrappers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError("the model is inside DistributedDataParallel, which knows its parameters; wrap it before")
        if type(module).__name__ == "FullyShardedDataParallel" or "_flat_param" in module._parameters:
            raise ValueError(f"parameters of {name or 'the model'} are flattened by FSDP; wrap the model before FSDP")


def _tied(model: nn.Module, aliases: Mapping[int, list[str]]) -> dict[int, list[str]]:
    """Parameters that several modules own: id -> the names of all of them."""
    owners: dict[int, list[str]] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(f"{aliases[id(module)][0]}.{key}".lstrip("."))
    return {key: names for key, names in owners.items() if len(names) > 1}


def _configured(
    config: InRankConfig, changes: Mapping[str, Mapping[str, Any]], name: str, module: nn.Module
) -> InRankConfig:
    fields = {key: value for p, own in changes.items() if matches(p, name, module) for key, value in own.items()}
    return InRankConfig.from_dict({**config.to_dict(), **fields})


def _require_readable(name: str, module: nn.Module) -> None:
    """Raise TypeError for a quantised weight, ValueError for one that is sharded, flattened or elsewhere."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, LowRankLayer) or not (callable(weight) or isinstance(weight, Tensor)):
        return
    if callable(weight) or weight.dtype not in FLOATS:
        what = "a packed quantised weight" if callable(weight) else f"a {weight.dtype} weight"
        raise TypeError(f"{name} ({type(module).__name__}) has {what}; low-rank factors need a floating type")
    if is_sharded(weight):
        raise ValueError(f"the weight of {name} is sharded (DTensor); wrap the model before FSDP")
    if weight.numel() == 0:
        raise ValueError(
            f"the weight of {name} has shape {tuple(weight.shape)}: empty, as DeepSpeed ZeRO-3 and FSDP leave it; "
            "wrap the model before it is sharded (or inside deepspeed.zero.GatheredParameters)"
        )
    if weight.device.type == "meta":
        raise ValueError(f"the weight of {name} is on the meta device; give the model memory and weights first")
    if _kind(module) is not None and not bool(torch.isfinite(weight).all()):
        raise ValueError(f"the weight of {name} holds values that are not finite; factors cannot start from it")
    dimensions = 4 if isinstance(module, nn.Conv2d) else 2
    if (_base(module) is not None or _kind(module) is not None) and weight.ndim != dimensions:
        raise ValueError(
            f"the weight of {name} is {weight.ndim}-D, not {dimensions}-D, as FSDP flattens it; wrap the model before"
        )


def _base(module: nn.Module) -> type[nn.Module] | None:
    return next((kind for kind in (nn.Linear, nn.Conv2d, nn.Embedding) if isinstance(module, kind)), None)


def _reason_against(
    model: nn.Module, name: str, module: nn.Module, tied: Mapping[int, list[str]], *, output_head: bool
) -> str | None:
    """Why a matched module is not replaced, if so."""
    if isinstance(module, LowRankLayer):
        return "it is low-rank already"
    weight: Any = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter):
        return "its weight is no plain parameter (weight_norm or another parametrization?)"
    if name and isinstance(model.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention):
        return "nn.MultiheadAttention computes with its weight and never calls it"
    if _kind(module) is None:
        base = _base(module)
        if base is not None:
            return f"a subclass of {base.__name__} may compute something else"
        return f"the {weight.ndim}-D weight of a {type(module).__name__}; known are {', '.join(_REPLACEMENTS)}"
    if id(weight) in tied:
        return f"its weight is tied: {' and '.join(tied[id(weight)])} are one parameter"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "it has hooks, which a replacement would lose"
    head = getattr(model, "get_output_embeddings", None)
    if not output_head and callable(head) and module is head():
        return "output head; give its name to include it"
    return None


def _replacement(name: str, module: nn.Module, config: InRankConfig, explicit: bool) -> LowRankLayer:
    kind = _kind(module)
    assert kind is not None
    layer = _REPLACEMENTS[kind][config.mode == "efficient"].from_dense(module, config, name=name)
    m, n = layer.rows // layer.groups, layer.columns
    if config.mode == "efficient" and layer.active * (m + n) > m * n and not explicit:
        raise ValueError(
            f"{layer.active} directions cost more than the dense {m} x {n} weight (break-even {m * n / (m + n):.0f})"
        )
    return layer


def _note(dense: nn.Module, layer: LowRankLayer) -> str:
    m, n = layer.rows // layer.groups, layer.columns
    notes = []
    if layer.active * (m + n) > m * n:
        notes.append("costs more than a dense weight")
    elif layer.largest_active * (m + n) > m * n:
        notes.append("may grow to cost more than a dense weight")
    if not dense.get_parameter("weight").requires_grad:
        notes.append("was frozen, its factors train")
    return "; ".join(notes)

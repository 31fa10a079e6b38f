r"""What an optimizer remembers of a factor, carried through a change of rank.

A change of basis V' = G V, U' = U G^-1 changes gradients into g_U' = g_U G^T, g_V' = G^-T g_V (`FactorChange`). So does
everything that is linear in gradients; what is not has no exact rule:

| kind | what it is | under a map M of the gradient | fresh directions |
|---|---|---|---|
| gradient | averages of gradients | M m: exact | 0 |
| square | averages of squared gradients | (M o M) v: exact if the directions' gradients are uncorrelated | 0 |
| magnitude | largest or typical abs(gradient) | sqrt((M o M) a^2): likewise | 0 |
| parameter | steps, or averages of parameters | the map of the factor itself: exact | see `_fresh` |
| parameter square | averages of squared steps | its entries squared | 0 |
| parameter magnitude | step sizes | as magnitude | see `_fresh` |

Growth ("append") has no map: kept directions keep their state to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inrank.layers import FactorChange, LowRankLayer
from inrank.layers.sharding import is_sharded, read_whole, write_whole

__all__ = ["KINDS", "apply_factor_change", "check_optimizer_state", "check_owned", "unwrapped_optimizer"]

KINDS: dict[str, str] = {
    "exp_avg": "gradient",  # Adam, AdamW, NAdam, RAdam, Adamax, SparseAdam
    "momentum_buffer": "gradient",  # SGD, Muon
    "RMSprop.momentum_buffer": "parameter",  # a running sum of preconditioned steps
    "grad_avg": "gradient",  # RMSprop, centered
    "prev": "gradient",  # Rprop
    "exp_avg_sq": "square",
    "max_exp_avg_sq": "square",
    "square_avg": "square",  # RMSprop, Adadelta
    "sum": "square",  # Adagrad
    "row_var": "square",  # Adafactor
    "col_var": "square",
    "exp_inf": "magnitude",  # Adamax
    "ax": "parameter",  # ASGD
    "acc_delta": "parameter square",  # Adadelta
    "step_size": "parameter magnitude",  # Rprop
}

_CHOICES = ("gradient", "square", "magnitude", "parameter", "parameter square", "parameter magnitude")


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside wrappers such as accelerate's, which keep it as `.optimizer`."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


def check_owned(
    optimizers: Sequence[Optimizer], layers: Mapping[str, LowRankLayer], error: type[Exception] = ValueError
) -> None:
    """See that the factors of layers are among the optimizers' parameters, if there are optimizers.

    Raises:
        error: If one is not; names layer and factor.
    """
    if not optimizers:
        return
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise TypeError(f"the optimizer is a {type(each).__name__}; a torch.optim.Optimizer is needed")
    owned = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    for name, layer in layers.items():
        for factor in ("u", "v"):
            parameter = getattr(layer, factor)
            if id(parameter) not in owned and not parameter.requires_grad:
                raise error(
                    f"layer {name}: its factor {factor} is frozen (requires_grad=False) and in no optimizer, but its "
                    "rank may change: set growing = False on the layer, or let it train"
                )
            if id(parameter) not in owned:
                raise error(
                    f"layer {name}: its factor {factor} is not among the optimizer's parameters; make the optimizer "
                    "after inrank.wrap (and after FSDP2's fully_shard), and do not replace parameters"
                )


def check_optimizer_state(optimizer: Optimizer, layer: LowRankLayer, *, kinds: Mapping[str, str] | None = None) -> None:
    """See that everything stored for a layer's factors can be carried; to be called before the layer changes.

    Args:
        optimizer: Any torch optimizer, wrapped or not.
        layer: The layer.
        kinds: Kinds of state tensors that `KINDS` does not know, by key or by "Class.key".

    Raises:
        TypeError: If something is stored that cannot be carried; names the key.
        ValueError: If a given kind is unknown.
    """
    for key, kind in (kinds or {}).items():
        if kind not in _CHOICES:
            raise ValueError(f"kind {kind!r} of optimizer state {key!r} is unknown; known: {', '.join(_CHOICES)}")
    optimizer = unwrapped_optimizer(optimizer)
    for factor in ("u", "v"):
        state = optimizer.state.get(getattr(layer, factor), {})
        for key, value in state.items():
            _kind(optimizer, layer, factor, key, value, kinds or {})


def apply_factor_change(
    optimizer: Optimizer, layer: LowRankLayer, change: FactorChange, *, kinds: Mapping[str, str] | None = None
) -> None:
    """Carry the optimizer's state of U and V through a change that `LowRankLayer.resize` has made.

    Old tensors are let go of; where the shape stays (``storage="reserve"``) they are changed in place. Numbers, such
    as step counts, stay. State of parameters that this optimizer does not have is not touched.

    Args:
        optimizer: Any torch optimizer, wrapped or not.
        layer: The layer, already changed.
        change: What was done to it.
        kinds: Kinds of state tensors that `KINDS` does not know, by key or by "Class.key".

    Raises:
        TypeError: If something is stored that cannot be carried; names the key.
        ValueError: If a state tensor does not fit the factor.
    """
    check_optimizer_state(optimizer, layer, kinds=kinds)
    optimizer = unwrapped_optimizer(optimizer)
    for factor in ("u", "v"):
        parameter = getattr(layer, factor)
        state = optimizer.state.get(parameter)
        if not state:
            continue
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        for key, value in list(state.items()):
            kind = _kind(optimizer, layer, factor, key, value, kinds or {})
            if kind is None:
                continue
            carried = _carried(read_whole(value), kind, layer, factor, change, _fresh(key, group, layer, factor))
            if carried is None:
                continue
            if is_sharded(value):
                write_whole(value, carried)
            elif value.shape == carried.shape:
                value.copy_(carried)
            else:
                state[key] = carried.to(value.dtype)


def _kind(
    optimizer: Optimizer, layer: LowRankLayer, factor: str, key: str, value: Any, kinds: Mapping[str, str]
) -> str | None:
    """How to carry a piece of state; None: as it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return None
    name = type(optimizer).__name__
    if isinstance(value, Tensor):
        if value.ndim == 0 or (factor, key) in (("u", "row_var"), ("v", "col_var")):
            return None
        known = {**KINDS, **kinds}
        kind = known.get(f"{name}.{key}", known.get(key))
        if kind is not None and value.is_floating_point():
            return kind
        what = f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    else:
        what = f"a {type(value).__name__}"
    raise TypeError(
        f"layer {layer.name}: {name} stores {key!r} for {factor}, {what}, which is not known to follow a change of "
        f"rank; say how with kinds={{{key!r}: ...}} ({', '.join(_CHOICES)}), or use an optimizer of torch.optim"
    )


def _fresh(key: str, group: dict[str, Any], layer: LowRankLayer, factor: str) -> float | Tensor:
    """State of a direction that never had a gradient."""
    if key == "sum":
        return float(group.get("initial_accumulator_value", 0.0))
    if key == "step_size":
        return float(group["lr"])
    if key == "ax":
        return read_whole(getattr(layer, factor)).detach()
    return 0.0


def _carried(
    value: Tensor, kind: str, layer: LowRankLayer, factor: str, change: FactorChange, fresh: float | Tensor
) -> Tensor | None:
    """The state tensor for the changed factor; None if it stays as it is."""
    axis = -1 if factor == "u" else -2
    parameter = getattr(layer, factor)
    alike = value.ndim == parameter.ndim and all(
        a in (b, 1)
        for i, (a, b) in enumerate(zip(value.shape, parameter.shape, strict=True))
        if i != parameter.ndim + axis
    )
    if not alike or value.shape[axis] < change.old_active:
        raise ValueError(
            f"layer {layer.name}: optimizer state of shape {tuple(value.shape)} does not fit {factor} of shape "
            f"{tuple(parameter.shape)}, which had {change.old_active} directions"
        )
    own, other = (change.u_map, change.v_map) if factor == "u" else (change.v_map, change.u_map)
    mapping = other if kind.startswith("parameter") else own
    if mapping is None and value.shape[axis] == layer.capacity and change.added <= 0:
        return None
    shape = list(value.shape)
    shape[axis] = layer.capacity
    result = fresh.to(value).clone() if isinstance(fresh, Tensor) else value.new_full(shape, fresh)
    kept = result.narrow(axis, 0, change.kept)
    if mapping is None:
        kept.copy_(value.narrow(axis, 0, change.kept))
        return result
    # (groups, rows, directions) of U and (groups, directions, columns) of V
    rows = value.shape[-2] if factor == "v" or value.shape[0] == 1 else value.shape[0] // layer.groups
    blocks = value.reshape(-1, rows, value.shape[-1]).double()
    matrix = mapping.double()
    if blocks.shape[0] != matrix.shape[0]:  # one row of averages over all groups (Adafactor)
        matrix = matrix.square().mean(0, keepdim=True).sqrt()
    old = blocks.narrow(axis, 0, change.old_active)
    if kind.endswith("square"):
        matrix = matrix.square()
    elif kind.endswith("magnitude"):
        matrix, old = matrix.square(), old.square()
    new = old @ matrix.mT if factor == "u" else matrix @ old
    if kind.endswith("magnitude"):
        new = new.sqrt()
    dead = (matrix == 0).all(-1)  # (groups, kept): directions without singular value start afresh
    dead = dead.unsqueeze(-2) if factor == "u" else dead.unsqueeze(-1)
    start = kept.reshape(new.shape).double()
    kept.copy_(torch.where(dead, start, new).reshape(kept.shape))
    return result

"""What comes after growing: balanced factors of fixed size (stage 2), and dense weights again.

The official release starts its second stage from the balanced factors U = P sqrt(S), V = sqrt(S) Q^T of U V's leading
singular triplets (Zhao et al. 2023, section 4.3), but slices the moments of the optimizer as if the basis were the old
one. Here they are carried into the new basis (`inrank.optimizer_state`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from inrank.layers import FactorChange, LowRankLayer
from inrank.layers.sharding import is_sharded
from inrank.optimizer_state import apply_factor_change, check_optimizer_state, check_owned
from inrank.spectrum import product_singular_values
from inrank.wrapping import low_rank_layers

__all__ = ["FinalizeReport", "Truncation", "finalize", "merge"]


@dataclass(frozen=True)
class Truncation:
    """What `finalize` dropped from one layer.

    Attributes:
        name: Of the layer.
        before: Active directions before.
        after: Directions that are left.
        largest: s_1 of U V.
        dropped: s_(after + 1), the largest singular value that was dropped, 0 if none.
        dropped_norm: Frobenius norm of what was dropped.
        gain: The output changes by at most gain * dropped * ||x||: 1, or sqrt(kh kw) for a convolution, whose input
            (after padding) is seen by up to kh kw outputs.
    """

    name: str
    before: int
    after: int
    largest: float
    dropped: float
    dropped_norm: float
    gain: float

    @property
    def bound(self) -> float:
        """Largest change of the layer's output in the 2-norm, for an input of norm 1."""
        return self.gain * self.dropped


@dataclass(frozen=True)
class FinalizeReport:
    """What `finalize` did to each layer."""

    layers: tuple[Truncation, ...]

    def __str__(self) -> str:
        """A table."""
        width = max([5, *(len(layer.name) for layer in self.layers)])
        lines = [f"{'layer':<{width}}  directions  s_1        dropped    |y' - y| <="]
        lines += [
            f"{layer.name:<{width}}  {f'{layer.before} -> {layer.after}':<10}  {layer.largest:<9.3g}  "
            f"{layer.dropped:<9.3g}  {layer.bound:.3g} |x|"
            for layer in self.layers
        ]
        return "\n".join(lines)


@torch.no_grad()
def finalize(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    buffer: int | None = None,
    release: bool = True,
) -> FinalizeReport:
    """Begin stage 2: ranks stay as they are, factors are balanced, the buffer is dropped.

    Layers that grow no more and have no buffer are left as they are.

    Args:
        model: With low-rank layers.
        optimizer: Its moments are carried into the new basis; one or several; None if there is none yet.
        buffer: Directions that are kept beyond the rank. Default: none where the rank is that of U V; all of them
            where it is that of the update D = U V - U_0 V_0 (efficient mode with ``spectrum="update"``): there
            U V, the whole weight, has more directions than D, and cutting it to D's rank would cut the start away.
        release: Whether tensors with ``storage="reserve"`` shrink to what is left. Not possible once DDP or FSDP
            knows them.

    Returns:
        What was dropped, and by how much each layer's output may change.

    Raises:
        ValueError: If there is no low-rank layer, a factor is in no optimizer, or tensors would shrink and the model
            is inside DDP or sharded.
        TypeError: If the optimizer stores what cannot be carried.
        FloatingPointError: If a factor is not finite; names the layer. Layers before it are done already.
    """
    if not low_rank_layers(model):
        raise ValueError("the model has no low-rank layer to finalize; inrank.wrap(model) makes them")
    layers = {name: layer for name, layer in low_rank_layers(model).items() if layer.growing or layer.buffer}
    shrinks = any(release or layer.config.storage == "resize" for layer in layers.values())
    if shrinks and _is_distributed(model):
        raise ValueError(
            "tensors cannot shrink inside DDP or FSDP; call finalize(..., release=False) on layers with "
            'storage="reserve", or finalize the bare model and make DDP or FSDP anew'
        )
    optimizers = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    check_owned(optimizers, {name: layer for name, layer in layers.items() if layer.u.requires_grad})
    for layer in layers.values():
        for each in optimizers:
            check_optimizer_state(each, layer)
    done = []
    for name, layer in layers.items():
        truncation, change = _finalize_layer(name, layer, buffer, release)
        done.append(truncation)
        for each in optimizers:
            apply_factor_change(each, layer, change)
    return FinalizeReport(tuple(done))


def _finalize_layer(
    name: str, layer: LowRankLayer, buffer: int | None, release: bool
) -> tuple[Truncation, FactorChange]:
    before = layer.active
    if buffer is None:
        buffer = 0 if layer.initial_u is None else layer.buffer
    try:
        s = product_singular_values(*(factor.double() for factor in layer.factors()))
    except FloatingPointError as error:
        raise FloatingPointError(f"layer {name}: {error}") from error
    if release and layer.config.storage == "reserve":
        # strict has a say in growing only, which is over
        layer.config = dataclasses.replace(
            layer.config,
            storage="resize",
            strict=False,
            init=layer.config.resolved_init,  # type: ignore[arg-type]
            spectrum=layer.config.resolved_spectrum,  # type: ignore[arg-type]
        )
    kept = min(layer.rank + buffer, before)
    change = layer.resize(layer.rank, kept - layer.rank, how="svd")
    layer.growing = False
    layer.initial_u = layer.initial_v = None
    tail = s[..., kept:]
    kernel = getattr(layer, "kernel_size", ())
    truncation = Truncation(
        name=name,
        before=before,
        after=layer.active,
        largest=float(s.max()),
        dropped=float(tail.max()) if tail.numel() else 0.0,
        dropped_norm=float(torch.linalg.vector_norm(tail)),
        gain=math.sqrt(math.prod(kernel)),
    )
    return truncation, change


def _is_distributed(model: nn.Module) -> bool:
    parallel = any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules())
    return parallel or any(is_sharded(p) for p in model.parameters())


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Replace low-rank layers by dense ones of the types they came from, in place, for inference or fine-tuning.

    W = W_0 + U V is summed in at least float32 and then cast, half types on a CPU included (where their own
    matrix products are slow).

    Args:
        model: With low-rank layers; if it is itself one, the dense layer is returned.

    Returns:
        The model.

    Raises:
        ValueError: If the model is inside DDP or sharded.
    """
    if _is_distributed(model):
        raise ValueError("a model inside DDP or FSDP cannot change its layers; merge the bare model")
    dense: dict[int, nn.Module] = {}
    # one layer may stand in several places
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, LowRankLayer):
            continue
        if id(layer) not in dense:
            dense[id(layer)] = layer.to_dense()
        if not name:
            return dense[id(layer)]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, dense[id(layer)])
    if hasattr(model, "inrank_report"):
        del model.inrank_report
    return model

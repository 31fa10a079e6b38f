"""InRank and what it is compared with, each built from the same dense model of the same seed.

| method | linear layer | trained | rank |
|---|---|---|---|
| full-rank | W | W | |
| inrank-efficient | U V | U, V | grows |
| inrank-full | W_0 + U V | U, V | grows |
| fixed-rank | U V | U, V | given; the same layer as inrank-efficient without growth |
| lora | W_0 + U V, U = 0 and V Kaiming-uniform at the start (Hu et al. 2021) | U, V | given |
| galore | W | W, with the moments of a projected gradient (Zhao et al. 2024) | given |

Everything but the chosen linear layers is trained in full in all of them: LoRA here trains from scratch, so its
embeddings and norms cannot stay random.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from inrank.config import InRankConfig
from inrank.controller import RankController
from inrank.language.data import mixed_seed
from inrank.language.gpt import GPT
from inrank.language.gpt_huggingface import HuggingFaceGPT
from inrank.language.presets import ConfigError, OptimizerConfig, RunConfig
from inrank.wrapping import low_rank_layers, wrap

__all__ = ["Assembled", "assemble", "build_model", "layer_patterns"]

_MLP = ["mlp.fc1", "mlp.fc2", "mlp.c_fc", "mlp.c_proj"]
_ATTENTION = ["attn.qkv", "attn.proj", "attn.c_attn", "attn.c_proj"]


@dataclass
class Assembled:
    """What a trainer works with.

    Attributes:
        model: Called with tokens and targets, gives the loss.
        optimizer: Its groups have ``rate``, by which a schedule multiplies the learning rate.
        controller: Of the ranks, where they grow.
    """

    model: nn.Module
    optimizer: Optimizer
    controller: RankController | None


def assemble(config: RunConfig, vocabulary: int) -> Assembled:
    """Model, optimizer and controller of a run.

    Args:
        config: The run.
        vocabulary: Of its tokenizer.

    Raises:
        ImportError: GaLore or transformers is asked for and not installed.
        ConfigError: The settings do not fit each other.
    """
    model = build_model(config, vocabulary)
    optimizer = _optimizer(model, config)
    controller = RankController(model, optimizer) if config.method.grows else None
    return Assembled(model, optimizer, controller)


def build_model(config: RunConfig, vocabulary: int) -> nn.Module:
    """The model of a run as it starts, its linear layers replaced as the method has it."""
    shape, seed = config.model.shape(vocabulary), mixed_seed(config.seed, 0)
    generator = torch.Generator().manual_seed(seed)
    model = HuggingFaceGPT(shape, seed) if config.model.huggingface else GPT(shape, generator)
    method = config.method
    if method.name in ("full-rank", "galore"):
        return model
    settings = config.inrank if method.grows else _fixed(config)
    settings = dataclasses.replace(settings, seed=mixed_seed(config.seed, 1, settings.seed))
    wrap(model, include=layer_patterns(config), config=settings)
    if not method.grows:
        generator = torch.Generator().manual_seed(settings.seed)
        for layer in low_rank_layers(model).values():
            layer.growing = False
            if method.name == "lora":
                bound = 1.0 / math.sqrt(layer.matrix_shape[1])
                with torch.no_grad():
                    layer.v.uniform_(-bound, bound, generator=generator)
    return model


def layer_patterns(config: RunConfig) -> list[str]:
    """Names of the linear layers that a method changes."""
    chosen = {"mlp": _MLP, "attention": _ATTENTION, "all": _MLP + _ATTENTION}[config.method.layers]
    return [name for name in chosen if (".c_" in name) == config.model.huggingface]


def _fixed(config: RunConfig) -> InRankConfig:
    """The layer settings of a rank that does not grow."""
    # min(m, n) is the width of the model in all four linear layers of a block
    rank = config.method.rank_of(config.model.width)
    lora = config.method.name == "lora"
    return dataclasses.replace(
        config.inrank,
        mode="full" if lora else "efficient",
        init="zero" if lora else config.inrank.init,
        rank=rank,
        max_rank=max(rank, config.inrank.max_rank_of(config.model.width)),
        buffer=0,
        spectrum="product",  # of a fixed rank nobody asks for the update's, so no initial factors are kept
    )


def _optimizer(model: nn.Module, config: RunConfig) -> Optimizer:
    settings = config.optimizer
    groups = _groups(model, config)
    if config.method.name == "galore":
        return _galore(groups, config)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.beta1)
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), eps=settings.eps
    )


def _groups(model: nn.Module, config: RunConfig) -> list[dict[str, Any]]:
    """Groups of parameters: matrices decay, vectors do not, factors have learning rates of their own."""
    settings: OptimizerConfig = config.optimizer
    layers = low_rank_layers(model).values()
    factors = {id(layer.u): "u" for layer in layers} | {id(layer.v): "v" for layer in layers}
    rates = {"u": settings.factor_rate * settings.factor_ratio, "v": settings.factor_rate}
    projected = set()
    if config.method.name == "galore":
        names = tuple(layer_patterns(config))
        projected = {id(m.weight) for n, m in model.named_modules() if n.endswith(names) and hasattr(m, "weight")}
    sorted_out: dict[str, list[nn.Parameter]] = {"u": [], "v": [], "projected": [], "matrices": [], "vectors": []}
    for parameter in model.parameters():
        if id(parameter) in factors:
            kind = factors[id(parameter)]
        elif id(parameter) in projected:
            kind = "projected"
        else:
            kind = "matrices" if parameter.ndim > 1 else "vectors"
        sorted_out[kind].append(parameter)
    return [
        {
            "params": parameters,
            "name": kind,
            "rate": rates.get(kind, 1.0),
            "weight_decay": 0.0 if kind == "vectors" else settings.weight_decay,
        }
        for kind, parameters in sorted_out.items()
        if parameters
    ]


def _galore(groups: list[dict[str, Any]], config: RunConfig) -> Optimizer:
    if config.optimizer.name != "adamw":
        raise ConfigError(f'optimizer.name = "{config.optimizer.name}": galore is compared under "adamw" only')
    try:
        from galore_torch import GaLoreAdamW  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError(
            'method.name = "galore" needs galore-torch: `pip install galore-torch` (it brings bitsandbytes), '
            "or leave galore out of the comparison"
        ) from error
    for group in groups:
        if group["name"] == "projected":
            group |= {
                "rank": config.method.rank_of(config.model.width),
                "update_proj_gap": config.method.galore_gap,
                "scale": config.method.galore_scale,
                "proj_type": "std",
            }
    o = config.optimizer
    optimizer: Optimizer = GaLoreAdamW(
        groups, lr=o.learning_rate, betas=(o.beta1, o.beta2), eps=o.eps, no_deprecation_warning=True
    )
    return optimizer

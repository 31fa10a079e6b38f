"""Operations of a training step at the ranks of the moment."""

from __future__ import annotations

from torch import nn

from inrank.flops import gpt_cost, layer_cost
from inrank.language.gpt import GPTConfig
from inrank.wrapping import low_rank_layers

__all__ = ["training_flops"]


def training_flops(model: nn.Module, shape: GPTConfig) -> int:
    """Operations for one token of a forward and backward pass, at the present ranks; see `inrank.flops`.

    Args:
        model: A GPT of that shape, its layers dense or low-rank.
        shape: Its configuration.
    """
    total = gpt_cost(shape).training
    for layer in low_rank_layers(model).values():
        m, n = layer.matrix_shape
        total += layer_cost(m, n, layer.active, keeps_dense=layer.weight0 is not None).training
        total -= layer_cost(m, n).training
    return total

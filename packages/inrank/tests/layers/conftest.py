"""Every kind of low-rank layer beside the dense layer it replaces and an input."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from inrank import (
    InRankConfig,
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


@dataclass
class Case:
    low_rank: type[LowRankLayer]
    make_dense: Callable[[], nn.Module]
    make_input: Callable[[int], Tensor]

    def dense(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.make_dense().to(dtype)

    def input(self, batch: int = 5, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
        torch.manual_seed(seed)
        x = self.make_input(batch)
        return x.to(dtype) if x.is_floating_point() else x

    def layer(self, dtype: torch.dtype = torch.float32, random: bool = True, **settings: object) -> LowRankLayer:
        """With factors that are not zero, unless asked otherwise."""
        config = InRankConfig.from_dict({"rank": 3, "buffer": 2, **settings})
        layer = self.low_rank.from_dense(self.dense(dtype), config, name="net.layer")
        if random:
            generator = torch.Generator().manual_seed(2)
            u = torch.randn(layer.rows, layer.active, generator=generator, dtype=torch.float64) * 0.3
            padding = getattr(layer, "padding_idx", None)
            if padding is not None:
                u[padding] = 0
            layer.u.data[:, : layer.active] = u.to(dtype)
        return layer


def _conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(24, 16)


CASES = {
    "linear": Case(InRankLinear, lambda: nn.Linear(16, 24), lambda n: torch.randn(n, 3, 16)),
    "linear-efficient": Case(InRankEfficientLinear, lambda: nn.Linear(16, 24), lambda n: torch.randn(n, 16)),
    "linear-nobias": Case(InRankEfficientLinear, lambda: nn.Linear(24, 16, bias=False), lambda n: torch.randn(n, 24)),
    "conv1d": Case(InRankConv1D, _conv1d, lambda n: torch.randn(n, 3, 16)),
    "conv1d-efficient": Case(InRankEfficientConv1D, _conv1d, lambda n: torch.randn(n, 16)),
    "conv2d": Case(InRankConv2d, lambda: nn.Conv2d(4, 12, 3, stride=2, padding=1), lambda n: torch.randn(n, 4, 7, 6)),
    "conv2d-groups": Case(
        InRankEfficientConv2d, lambda: nn.Conv2d(4, 16, (3, 2), groups=2, bias=False), lambda n: torch.randn(n, 4, 6, 6)
    ),
    "embedding": Case(
        InRankEmbedding, lambda: nn.Embedding(40, 12, padding_idx=2), lambda n: torch.randint(0, 40, (n, 3))
    ),
    "embedding-efficient": Case(
        InRankEfficientEmbedding, lambda: nn.Embedding(40, 12), lambda n: torch.randint(0, 40, (n,))
    ),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]

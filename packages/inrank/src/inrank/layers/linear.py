"""Low-rank nn.Linear: y = x V^T U^T + b, with or without x W_0^T."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.layers.base import LowRankLayer

__all__ = ["InRankEfficientLinear", "InRankLinear"]


class _LowRankLinear(LowRankLayer):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        config: InRankConfig | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dense = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self._build(dense, config or InRankConfig(), "", generator)

    def _build(self, dense: nn.Linear, config: InRankConfig, name: str, generator: torch.Generator | None) -> None:
        LowRankLayer.__init__(self, dense.weight.detach()[None], config=config, name=name, generator=generator)
        self.in_features, self.out_features = dense.in_features, dense.out_features
        self._copy(dense)

    def as_matrix(self, weight: Tensor) -> Tensor:
        """(out, in) as (1, out, in)."""
        return weight[None]

    def as_weight(self, matrix: Tensor) -> Tensor:
        """(1, out, in) as (out, in)."""
        return matrix[0]

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        y = None if self.weight0 is None else F.linear(x, self.weight0, self.bias)
        for u, v in self.direction_blocks():
            hidden = F.linear(x, v)
            y = F.linear(hidden, u, self.bias) if y is None else y + F.linear(hidden, u)
        assert y is not None
        return y

    def to_dense(self) -> nn.Linear:
        """The nn.Linear with weight W_0 + U V, or U V."""
        dense = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device="meta", dtype=self.u.dtype
        ).to_empty(device=self.u.device)
        with torch.no_grad():
            dense.weight.copy_(self.dense_weight())
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)


class InRankLinear(_LowRankLinear):
    """Plain InRank: y = x (W_0 + U V)^T + b; W_0 is nn.Linear's initial weight and stays.

    Args:
        in_features: n.
        out_features: m.
        bias: Whether there is b.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    keeps_dense = True


class InRankEfficientLinear(_LowRankLinear):
    """InRank-Efficient: y = x (U V)^T + b; there is no W_0.

    Args:
        in_features: n.
        out_features: m.
        bias: Whether there is b.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

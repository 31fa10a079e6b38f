"""Low-rank Conv1D of Hugging Face: GPT-2's linear layer, whose weight is stored as (in, out)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.layers.base import LowRankLayer

__all__ = ["InRankConv1D", "InRankEfficientConv1D"]


class _Dense(nn.Module):
    """What transformers' Conv1D holds at its start, without importing transformers."""

    def __init__(self, nf: int, nx: int, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf, device=device, dtype=dtype).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(nf, device=device, dtype=dtype))


class _LowRankConv1D(LowRankLayer):
    def __init__(
        self,
        nf: int,
        nx: int,
        *,
        config: InRankConfig | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._build(_Dense(nf, nx, device, dtype), config or InRankConfig(), "", generator)

    def _build(self, dense: nn.Module, config: InRankConfig, name: str, generator: torch.Generator | None) -> None:
        weight = dense.get_parameter("weight").detach()
        LowRankLayer.__init__(self, weight.mT[None], config=config, name=name, generator=generator)
        self.nx, self.nf = weight.shape
        self._copy(dense)

    def as_matrix(self, weight: Tensor) -> Tensor:
        """(in, out) as (1, out, in)."""
        return weight.mT[None]

    def as_weight(self, matrix: Tensor) -> Tensor:
        """(1, out, in) as (in, out)."""
        return matrix[0].mT.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., nx) to (..., nf)."""
        y = None if self.weight0 is None else F.linear(x, self.weight0.mT, self.bias)
        for u, v in self.direction_blocks():
            hidden = F.linear(x, v)
            y = F.linear(hidden, u, self.bias) if y is None else y + F.linear(hidden, u)
        assert y is not None
        return y

    def to_dense(self) -> nn.Module:
        """The transformers Conv1D with weight (W_0 + U V)^T, or (U V)^T.

        Raises:
            ImportError: If transformers is not installed.
        """
        try:
            from transformers.pytorch_utils import Conv1D
        except ImportError as error:
            raise ImportError(
                "Conv1D is a layer of transformers, which is not installed: pip install 'inrank[transformers]'"
            ) from error
        dense = Conv1D(self.nf, self.nx).to(device=self.u.device, dtype=self.u.dtype)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            dense.weight.copy_(self.dense_weight())
            if self.bias is None:
                dense.bias.zero_()
            else:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)


class InRankConv1D(_LowRankConv1D):
    """Plain InRank: y = x (W_0 + U V)^T + b, W_0^T stored as Hugging Face's Conv1D has it.

    Args:
        nf: m, number of output features.
        nx: n, number of input features.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    keeps_dense = True


class InRankEfficientConv1D(_LowRankConv1D):
    """InRank-Efficient: y = x (U V)^T + b in the place of Hugging Face's Conv1D.

    Args:
        nf: m, number of output features.
        nx: n, number of input features.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

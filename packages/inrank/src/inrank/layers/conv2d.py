"""Low-rank nn.Conv2d: a k x k convolution to few channels (V), then a 1 x 1 convolution (U).

The weight (out, in / groups, kh, kw) is one matrix (out / groups) x (in / groups * kh * kw) per group; all groups
share one rank.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.layers.base import LowRankLayer

__all__ = ["InRankConv2d", "InRankEfficientConv2d"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _LowRankConv2d(LowRankLayer):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | Literal["same", "valid"] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        *,
        config: InRankConfig | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dense = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )
        self._build(dense, config or InRankConfig(), "", generator)

    def _build(self, dense: nn.Conv2d, config: InRankConfig, name: str, generator: torch.Generator | None) -> None:
        matrix = dense.weight.detach().reshape(dense.groups, dense.out_channels // dense.groups, -1)
        LowRankLayer.__init__(self, matrix, config=config, groups=dense.groups, name=name, generator=generator)
        self.in_channels, self.out_channels = dense.in_channels, dense.out_channels
        self.kernel_size, self.stride, self.dilation = dense.kernel_size, dense.stride, dense.dilation
        self.padding, self.padding_mode = dense.padding, dense.padding_mode
        # left, right, top, bottom, as F.pad wants it; nn.Conv2d has worked "same" out already
        self._pad = tuple(dense._reversed_padding_repeated_twice)
        self._copy(dense)

    def as_matrix(self, weight: Tensor) -> Tensor:
        """(out, in / groups, kh, kw) as (groups, out / groups, in / groups * kh * kw)."""
        return weight.reshape(self.groups, self.rows // self.groups, self.columns)

    def as_weight(self, matrix: Tensor) -> Tensor:
        """(groups, out / groups, in / groups * kh * kw) as (out, in / groups, kh, kw)."""
        return matrix.reshape(self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        padding = self.padding if self.padding_mode == "zeros" else 0
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_channels, height, width) to (..., out_channels, height', width')."""
        if self.padding_mode != "zeros":
            x = F.pad(x, self._pad, mode=self.padding_mode)
        y = None if self.weight0 is None else self._convolve(x, self.weight0, self.bias)
        for u, v in self.direction_blocks():
            kernels = v.reshape(-1, self.in_channels // self.groups, *self.kernel_size)
            hidden, point = self._convolve(x, kernels), u[..., None, None]
            bias = self.bias if y is None else None
            mixed = F.conv2d(hidden, point, bias, groups=self.groups)
            y = mixed if y is None else y + mixed
        assert y is not None
        return y

    def to_dense(self) -> nn.Conv2d:
        """The nn.Conv2d with weight W_0 + U V, or U V."""
        dense = nn.Conv2d(
            self.in_channels,
            self.out_channels,
            cast(tuple[int, int], self.kernel_size),
            cast(tuple[int, int], self.stride),
            cast(tuple[int, int], self.padding),
            cast(tuple[int, int], self.dilation),
            self.groups,
            self.bias is not None,
            self.padding_mode,
            device="meta",
            dtype=self.u.dtype,
        ).to_empty(device=self.u.device)
        with torch.no_grad():
            dense.weight.copy_(self.dense_weight())
            if dense.bias is not None and self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)


class InRankConv2d(_LowRankConv2d):
    """Plain InRank: convolution with W_0 + U V; W_0 is nn.Conv2d's initial weight and stays.

    Args:
        in_channels: As in nn.Conv2d, like all up to padding_mode.
        out_channels: Number of filters.
        kernel_size: Height and width.
        stride: Of the k x k convolution.
        padding: Of the k x k convolution; also ``"same"`` and ``"valid"``.
        dilation: Of the k x k convolution.
        groups: Each group has factors of its own, of one common rank.
        bias: Whether there is one.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    keeps_dense = True


class InRankEfficientConv2d(_LowRankConv2d):
    """InRank-Efficient: convolution with U V, as a k x k convolution to few channels and a 1 x 1 convolution.

    Args:
        in_channels: As in nn.Conv2d, like all up to padding_mode.
        out_channels: Number of filters.
        kernel_size: Height and width.
        stride: Of the k x k convolution.
        padding: Of the k x k convolution; also ``"same"`` and ``"valid"``.
        dilation: Of the k x k convolution.
        groups: Each group has factors of its own, of one common rank.
        bias: Whether there is one.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

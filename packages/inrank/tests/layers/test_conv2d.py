"""Convolutions: every setting of nn.Conv2d."""

from typing import Any

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankConv2d, InRankEfficientConv2d

SETTINGS: list[dict[str, Any]] = [
    {"stride": 2},
    {"stride": (2, 1), "padding": (0, 2)},
    {"padding": "same", "dilation": 2},
    {"padding": "valid"},
    {"padding": "same", "padding_mode": "circular", "kernel_size": (4, 3)},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": (2, 1), "padding_mode": "replicate", "stride": 2},
    {"groups": 2, "padding": 1, "bias": False},
    {"groups": 4, "dilation": (1, 2)},
    {"kernel_size": 1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", [InRankConv2d, InRankEfficientConv2d])
def test_equals_the_dense_convolution(kind: type[InRankConv2d], settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    settings = {"kernel_size": 3, **settings}
    layer = kind(8, 16, **settings, config=InRankConfig(rank=2, buffer=1), dtype=torch.float64)
    layer.u.data.normal_()
    x = torch.randn(2, 8, 9, 10, dtype=torch.float64, requires_grad=True)
    dense = layer.to_dense()
    expected = nn.Conv2d(8, 16, **settings, dtype=torch.float64)
    assert repr(dense) == repr(expected)
    torch.testing.assert_close(layer(x), dense(x))
    torch.testing.assert_close(layer(x[0]), dense(x[0]))
    before = layer(x)
    layer.resize(layer.full_rank - 1, 0)
    assert torch.equal(layer(x), before)
    ours = torch.autograd.grad(layer(x).square().sum(), x)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(dense(x).square().sum(), x)[0])


def test_groups_have_factors_of_their_own() -> None:
    layer = InRankEfficientConv2d(8, 12, 3, groups=4, config=InRankConfig(rank=1, buffer=1), dtype=torch.float64)
    assert layer.u.shape == (12, 2)
    assert layer.v.shape == (4, 2, 18)
    assert layer.full_rank == 3
    per_group = layer.dense_weight().reshape(4, 3, 18)
    torch.testing.assert_close(layer.singular_values("product"), torch.linalg.svdvals(per_group), atol=1e-7, rtol=1e-6)


def test_depthwise_has_nothing_to_save() -> None:
    with pytest.raises(ValueError, match="exceeds 1"):
        InRankConv2d(8, 8, 3, groups=8, config=InRankConfig(rank=1, buffer=1))

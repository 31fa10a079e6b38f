"""Hugging Face's Conv1D, with transformers and without."""

import sys

import pytest
import torch

from inrank import InRankConfig, InRankConv1D, InRankEfficientConv1D


def test_weight_is_stored_transposed() -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    dense = Conv1D(24, 16)
    dense.bias.data.normal_()
    layer = InRankConv1D.from_dense(dense, InRankConfig(rank=2, buffer=1))
    assert layer.matrix_shape == (24, 16)
    assert layer.weight0.shape == (16, 24)
    layer.u.data.normal_()
    merged = layer.to_dense()
    assert type(merged) is Conv1D
    assert merged.weight.is_contiguous()
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(merged(x), layer(x))
    torch.testing.assert_close(merged.weight - dense.weight, (layer.u @ layer.v).mT)


def test_built_alone_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", None)
    layer = InRankEfficientConv1D(24, 16, config=InRankConfig(rank=2, buffer=1))
    assert layer(torch.randn(4, 16)).shape == (4, 24)
    with pytest.raises(ImportError, match=r"inrank\[transformers\]"):
        layer.to_dense()

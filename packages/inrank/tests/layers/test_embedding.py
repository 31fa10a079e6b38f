"""Embeddings: the padding row stays, and what factors cannot have is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankEfficientEmbedding, InRankEmbedding


@pytest.mark.parametrize("kind", [InRankEmbedding, InRankEfficientEmbedding])
@pytest.mark.parametrize("init", ["auto", "orthogonal"])
def test_the_padding_row_never_moves(kind: type[InRankEmbedding], init: str) -> None:
    torch.manual_seed(0)
    layer = kind(30, 12, padding_idx=4, config=InRankConfig(rank=2, buffer=2, init=init))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    ids = torch.arange(30)
    for rank in (3, 5):
        for _ in range(3):
            layer(ids).square().sum().add(layer(ids).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        layer.resize(rank, how="svd")
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    assert float(layer(ids)[4].detach().abs().max()) == 0
    assert layer.to_dense().padding_idx == 4
    torch.testing.assert_close(layer.to_dense()(ids), layer(ids))


def test_a_padding_row_of_its_own_is_kept() -> None:
    dense = nn.Embedding(10, 6, padding_idx=1)
    dense.weight.data[1] = 3.0
    layer = InRankEmbedding.from_dense(dense, InRankConfig(rank=1, buffer=1))
    layer.v.data.normal_()
    assert torch.equal(layer(torch.tensor([1]))[0], torch.full((6,), 3.0))
    with pytest.raises(ValueError, match="row 1"):
        InRankEfficientEmbedding.from_dense(dense, InRankConfig(rank=1, buffer=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_norm": 1.0}, "max_norm"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        ({"sparse": True}, "sparse"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"tok: {message}"):
        InRankEmbedding.from_dense(nn.Embedding(10, 6, **settings), InRankConfig(rank=1, buffer=1), name="tok")

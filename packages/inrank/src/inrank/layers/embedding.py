"""Low-rank nn.Embedding: row i of W_0 + U V is W_0[i] + U[i] V."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.layers.base import LowRankLayer

__all__ = ["InRankEfficientEmbedding", "InRankEmbedding"]


class _LowRankEmbedding(LowRankLayer):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        config: InRankConfig | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dense = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self._build(dense, config or InRankConfig(), "", generator)

    def _build(self, dense: nn.Embedding, config: InRankConfig, name: str, generator: torch.Generator | None) -> None:
        label = name or "the embedding"
        if dense.max_norm is not None:
            raise ValueError(f"{label}: max_norm rescales rows of the weight in place, which factors do not have")
        if dense.scale_grad_by_freq:
            raise ValueError(f"{label}: scale_grad_by_freq scales rows of W's gradient; that of V has none")
        if dense.sparse:
            raise ValueError(f"{label}: sparse gradients cannot follow a change of rank; use sparse=False")
        padding = dense.padding_idx
        if not self.keeps_dense and padding is not None and bool((dense.weight[padding] != 0).any()):
            raise ValueError(
                f'{label}: row {padding} (padding_idx) is not zero and could not stay so without W_0; use mode="full"'
            )
        LowRankLayer.__init__(self, dense.weight.detach()[None], config=config, name=name, generator=generator)
        self.num_embeddings, self.embedding_dim, self.padding_idx = dense.num_embeddings, dense.embedding_dim, padding
        if padding is not None:
            # D has no part in the padding row: V may change, so U must be zero there
            self.u.data[padding] = 0
            if self.initial_u is not None:
                self.initial_u[0, padding] = 0
        self._copy(dense)

    def _store(self, u: Tensor, v: Tensor) -> None:
        if self.padding_idx is not None:
            u = u.clone()
            u[0, self.padding_idx] = 0
        super()._store(u, v)

    def as_matrix(self, weight: Tensor) -> Tensor:
        """(vocabulary, dim) as (1, vocabulary, dim)."""
        return weight[None]

    def as_weight(self, matrix: Tensor) -> Tensor:
        """(1, vocabulary, dim) as (vocabulary, dim)."""
        return matrix[0]

    def forward(self, ids: Tensor) -> Tensor:
        """Map integers (...) to (..., embedding_dim)."""
        y = None if self.weight0 is None else F.embedding(ids, self.weight0, self.padding_idx)
        for u, v in self.direction_blocks():
            rows = F.embedding(ids, u, self.padding_idx) @ v
            y = rows if y is None else y + rows
        assert y is not None
        return y

    def to_dense(self) -> nn.Embedding:
        """The nn.Embedding with weight W_0 + U V, or U V."""
        dense = nn.Embedding(
            self.num_embeddings,
            self.embedding_dim,
            self.padding_idx,
            _weight=self.dense_weight(),
            device=self.u.device,
            dtype=self.u.dtype,
        )
        return dense.train(self.training)


class InRankEmbedding(_LowRankEmbedding):
    """Plain InRank: rows of W_0 + U V; W_0 is nn.Embedding's initial weight and stays.

    Args:
        num_embeddings: m, size of the vocabulary.
        embedding_dim: n.
        padding_idx: Row that does not train.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    keeps_dense = True


class InRankEfficientEmbedding(_LowRankEmbedding):
    """InRank-Efficient: rows of U V.

    Args:
        num_embeddings: m, size of the vocabulary.
        embedding_dim: n.
        padding_idx: Row that is zero and stays it.
        config: Ranks and initialization; its mode plays no part.
        generator: Source of randomness on the CPU for the factors.
        device: Of the parameters.
        dtype: Of the parameters.
    """

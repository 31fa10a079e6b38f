r"""The null model: which rank a rule arrives at on a layer that was never trained.

The official rule (Zhao et al. 2023, arXiv:2306.11250, official release) compares sample variances of the singular
values of U V, and U and V start as random matrices. Run on layers that learn nothing, it climbs for 13 to 16 checks and
stops at the fixed point of that random-matrix spectrum. For the MLP matrices of GPT-2 small, medium and large those are
mean ranks of 256, 286 and 312; published after training: 254, 287 and 313. The rank table of the paper can therefore be
had without data, and a rank that this rule reports says something about the task only as far as it differs from the
null model's. A criterion on D = W_t - W_0 (``spectrum="update"``, the default here) has a null rank of zero growth: D
is zero before training.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.criteria import explained_variance_ratio, needed_rank, official_rank
from inrank.initialization import initial_factors
from inrank.layers import LowRankLayer
from inrank.spectrum import product_singular_values

__all__ = ["GPT2_MLP_SHAPES", "PUBLISHED_RANKS", "NullRank", "mean_null_rank", "null_rank", "null_ranks"]

GPT2_MLP_SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {
    name: ((4 * width, width), (width, 4 * width))
    for name, width in {"small": 768, "medium": 1024, "large": 1280, "xl": 1600}.items()
}
"""(out, in) of the two MLP matrices of a block, which are what the official release makes low rank."""

PUBLISHED_RANKS: Mapping[tuple[str, float], int] = {("small", 0.9): 254, ("medium", 0.9): 287, ("large", 0.9): 313}
"""Mean ranks after training by size and threshold, as the official release states them."""


@dataclass(frozen=True)
class NullRank:
    """Where a rule stops on one untrained layer.

    Attributes:
        shape: (out, in).
        rank: The fixed point.
        sequence: Ranks from the initial one on, one for each check that changed it.
        ratio: Explained ratio g(s, rank) at the fixed point; 1 for a spectrum of zeros.
        seed: Of the factors.
    """

    shape: tuple[int, int]
    rank: int
    sequence: tuple[int, ...]
    ratio: float
    seed: int

    @property
    def checks(self) -> int:
        """Checks until the rank stayed, the last included."""
        return len(self.sequence)


def null_rank(m: int, n: int, config: InRankConfig | None = None, *, seed: int = 0) -> NullRank:
    """The rank that a configuration's rule ends at on an m x n layer without training.

    Args:
        m: Rows of the weight (out).
        n: Columns of the weight (in).
        config: Initialization, rule, threshold, buffer, limits; default: `InRankConfig.official`.
        seed: Of the factors.

    Returns:
        The fixed point and the way to it. For ``spectrum="update"`` that is the initial rank: D = 0.

    Raises:
        ValueError: A size below 1, or ranks that do not fit into the layer.
    """
    if min(m, n) < 1:
        raise ValueError(f"the shape is {m} x {n}; both sizes must be at least 1")
    config = config or InRankConfig.official()
    full_rank = min(m, n)
    buffer, largest = config.buffer_of(full_rank), config.max_rank_of(full_rank)
    limit = largest if config.strict else full_rank
    if config.rank > largest or config.rank + buffer > limit:
        raise ValueError(
            f"a {m} x {n} layer has no room for rank {config.rank} + buffer {buffer}: the limit is {limit} "
            f"(max_rank {config.max_rank}); lower rank or buffer"
        )
    generator = torch.Generator().manual_seed(seed)
    if config.resolved_spectrum == "update" or config.resolved_init == "zero":
        return NullRank((m, n), config.rank, (config.rank,), 1.0, seed)
    if config.strict:
        return _official(m, n, config, buffer, largest, generator, seed)
    # fresh directions come with U = 0: growth leaves the product, and so the rule's answer, as it is
    values = _initial_values(m, n, config, config.rank + buffer, largest, generator)
    s = torch.nn.functional.pad(values, (0, full_rank - len(values)))
    rank = max(config.rank, min(needed_rank(s, config.criterion, config.threshold), largest))
    sequence = (config.rank,) if rank == config.rank else (config.rank, rank)
    return NullRank((m, n), rank, sequence, float(explained_variance_ratio(s, rank)), seed)


def mean_null_rank(
    shapes: Sequence[tuple[int, int]], config: InRankConfig | None = None, *, seeds: Sequence[int] = (0, 1)
) -> tuple[float, list[NullRank]]:
    """Mean null rank over layers and seeds, and each of them.

    Args:
        shapes: (out, in) of each layer.
        config: See `null_rank`.
        seeds: One run of all layers for each.

    Raises:
        ValueError: No shape or no seed.
    """
    if not shapes or not seeds:
        raise ValueError(f"given {len(shapes)} shapes and {len(seeds)} seeds; expected at least one of each")
    results = [null_rank(m, n, config, seed=seed) for seed in seeds for m, n in shapes]
    return statistics.fmean(result.rank for result in results), results


def null_ranks(model: nn.Module, *, seed: int = 0) -> dict[str, int]:
    """Null rank of every low-rank layer of a model, by its own configuration: the column for a report of ranks.

    Args:
        model: A model that `inrank.wrap` went through.
        seed: Of the untrained factors; layers of one shape and configuration share them.

    Returns:
        Ranks by the layers' names.
    """
    found: dict[tuple[int, int, InRankConfig], int] = {}
    ranks = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LowRankLayer):
            rows, columns = layer.matrix_shape
            key = (rows // layer.groups, columns, layer.config)
            if key not in found:
                found[key] = null_rank(*key, seed=seed).rank
            ranks[name] = found[key]
    return ranks


def _official(
    m: int, n: int, config: InRankConfig, buffer: int, largest: int, generator: torch.Generator, seed: int
) -> NullRank:
    """The official release: R directions are drawn at once, and growth exposes more of them."""
    layer = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1, m, n)  # only its shape and type are asked for
    u, v = initial_factors(config.resolved_init, layer, largest, scale=config.init_scale, generator=generator)
    # With U^T U = L L^T and V V^T = K K^T the values of U V are those of L^T K; the leading k rows and columns of a
    # Cholesky factor are the factor of the leading k directions, so that one pair of factorizations serves all checks.
    left, right = torch.linalg.cholesky(u[0].mT @ u[0]), torch.linalg.cholesky(v[0] @ v[0].mT)
    sequence = [config.rank]
    s = _leading_values(left, right, config.rank + buffer, min(m, n))
    while True:
        rank = official_rank(s, sequence[-1], buffer, largest, config.threshold)
        if rank == sequence[-1]:
            break
        sequence.append(rank)
        s = _leading_values(left, right, rank + buffer, min(m, n))
    return NullRank((m, n), sequence[-1], tuple(sequence), float(explained_variance_ratio(s, sequence[-1])), seed)


def _leading_values(left: Tensor, right: Tensor, k: int, total: int) -> Tensor:
    """Singular values (total,) of the first k directions; float64, structural zeros included."""
    product = left[:k, :k].mT @ right[:k, :k]
    values = torch.linalg.eigvalsh(product @ product.mT).flip(0).clamp(min=0).sqrt()
    return torch.nn.functional.pad(values, (0, total - k))


def _initial_values(m: int, n: int, config: InRankConfig, k: int, largest: int, generator: torch.Generator) -> Tensor:
    """Leading singular values (k,) of the initial product, up to a factor, which no rule depends on."""
    if config.resolved_init == "orthogonal":
        return torch.ones(k, dtype=torch.float64)
    if config.resolved_init == "spectral":  # of an nn.Linear, uniform in +-1/sqrt(n)
        dense = torch.empty(min(m, n), max(m, n)).uniform_(-1, 1, generator=generator)
        values: Tensor = torch.linalg.eigvalsh((dense @ dense.mT).double())
        return values.flip(0)[:k].clamp(min=0).sqrt()
    layer = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1, m, n)
    u, v = initial_factors(config.resolved_init, layer, k, allocated=largest, generator=generator)
    return product_singular_values(u, v)[0, :k]

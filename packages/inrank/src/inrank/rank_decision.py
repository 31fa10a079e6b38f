"""What one look at a layer's spectrum says about its rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inrank.config import InRankConfig
from inrank.criteria import energy_ratio, explained_variance_ratio, needed_rank, official_rank
from inrank.layers import LowRankLayer

__all__ = ["SHRINK_PATIENCE", "LayerState", "Verdict", "judge", "largest_rank", "next_rank"]

# A rank falls only after this many checks in a row asked for less, and then to the largest that they asked for.
SHRINK_PATIENCE = 3


@dataclass
class LayerState:
    """What a controller remembers of a layer.

    Attributes:
        checks: Checks done.
        last_ratio: Explained ratio of the rank after the last check; None for a spectrum of zeros.
        last_wanted: Rank that it asked for.
        zero_checks: Checks in a row with a spectrum of zeros.
        saturated: Whether it was said that max_rank is too small.
        below: Ranks asked for in a row of checks that asked for less than there is.
        idle: Checks in a row that changed nothing.
        rest: Due checks to pass over.
    """

    checks: int = 0
    last_ratio: float | None = None
    last_wanted: int | None = None
    zero_checks: int = 0
    saturated: bool = False
    below: list[int] = field(default_factory=list)
    idle: int = 0
    rest: int = 0


@dataclass(frozen=True)
class Verdict:
    """What a spectrum says.

    Attributes:
        wanted: The criterion's rank, whatever the limits.
        rank: What growth makes of it: at least the present rank, within the buffer and the largest rank; with strict
            the official release's choice.
        ratio: Explained ratio of that rank; None for a spectrum of zeros.
    """

    wanted: int
    rank: int
    ratio: float | None

    def to_row(self) -> list[float]:
        """As numbers, to send to other processes."""
        return [float(self.wanted), float(self.rank), math.nan if self.ratio is None else self.ratio]

    @classmethod
    def from_row(cls, row: list[float]) -> Verdict:
        """The inverse of `to_row`."""
        return cls(int(row[0]), int(row[1]), None if math.isnan(row[2]) else row[2])


def largest_rank(layer: LowRankLayer, config: InRankConfig) -> int:
    """The rank that a layer cannot exceed; the official release stops at R - b - 1."""
    largest = min(layer.max_rank, config.max_rank_of(layer.full_rank))
    return max(layer.rank, largest - layer.buffer_size - 1 if config.strict else largest)


def judge(layer: LowRankLayer, config: InRankConfig) -> Verdict:
    """Compute a layer's spectrum, without the product of its factors, and apply the rule.

    Args:
        layer: The layer.
        config: Rule, threshold, spectrum and method.

    Raises:
        FloatingPointError: If a factor is not finite; names the layer.
    """
    s = layer.singular_values(config.resolved_spectrum, config.method).cpu()
    s = s.reshape(-1, s.shape[-1])
    if not bool((s[:, 0] > 0).any()):
        return Verdict(0, layer.rank, None)
    s = s[s[:, 0] > 0]
    wanted = needed_rank(s, config.criterion, config.threshold)
    if config.strict:
        rank = max(official_rank(row, layer.rank, layer.buffer_size, layer.max_rank, config.threshold) for row in s)
    else:
        rank = max(layer.rank, min(wanted, layer.active, largest_rank(layer, config)))
    ratios = explained_variance_ratio(s, rank) if config.criterion == "variance" else energy_ratio(s, rank)
    return Verdict(wanted, rank, min(1.0, float(ratios.amin())))  # 1 + 2^-52 if the tail is all rounding


def next_rank(layer: LowRankLayer, config: InRankConfig, state: LayerState, verdict: Verdict) -> int:
    """The rank after a check: growth at once; shrinking only after some checks agree.

    Args:
        layer: The layer.
        config: Whether to shrink.
        state: Of the layer; its row of smaller wishes is kept.
        verdict: Of the check.
    """
    if config.strict or not config.shrink or verdict.ratio is None or verdict.wanted >= layer.rank:
        state.below.clear()
        return verdict.rank
    state.below.append(verdict.wanted)
    if len(state.below) < SHRINK_PATIENCE:
        return layer.rank
    rank = max(state.below)
    state.below.clear()
    return rank

"""The table of ranks: what each layer has, what it may have, and what it would have without training."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inrank.layers import LowRankLayer

__all__ = ["LayerReport", "RankReport", "check_ranks"]


@dataclass(frozen=True)
class LayerReport:
    """One layer.

    Attributes:
        name: Of the layer.
        shape: (m, n) of its weight, of one group.
        rank: r.
        active: Directions trained, buffer included.
        full_rank: min(m, n).
        max_rank: Largest rank.
        break_even: Largest rank with no more parameters than the dense weight.
        null_rank: Rank of the same rule without training; None if it was not asked for.
        checks: Checks done.
        ratio: Explained ratio at the last check; None before the first, or for a spectrum of zeros.
    """

    name: str
    shape: tuple[int, int]
    rank: int
    active: int
    full_rank: int
    max_rank: int
    break_even: int
    null_rank: int | None
    checks: int
    ratio: float | None


@dataclass(frozen=True)
class RankReport:
    """All layers after some optimizer steps; `str` makes it a table."""

    steps: int
    layers: tuple[LayerReport, ...]

    @property
    def mean_rank(self) -> float:
        """Mean over layers."""
        return statistics.fmean(layer.rank for layer in self.layers)

    @property
    def mean_share(self) -> float:
        """Mean of rank / min(m, n)."""
        return statistics.fmean(layer.rank / layer.full_rank for layer in self.layers)

    @property
    def checks(self) -> int:
        """Checks done in all layers."""
        return sum(layer.checks for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **dataclasses.asdict(self),
            "mean_rank": self.mean_rank,
            "mean_share": self.mean_share,
            "checks": self.checks,
        }

    def __str__(self) -> str:
        head = ("layer", "m x n", "rank", "of min(m,n)", "active", "max", "break-even", "null model", "checks", "ratio")
        rows = [head]
        for layer in self.layers:
            rows.append(
                (
                    layer.name,
                    f"{layer.shape[0]} x {layer.shape[1]}",
                    str(layer.rank),
                    f"{100 * layer.rank / layer.full_rank:.0f} %",
                    str(layer.active),
                    str(layer.max_rank),
                    f"{layer.break_even}{' (exceeded)' if layer.active > layer.break_even else ''}",
                    "-" if layer.null_rank is None else str(layer.null_rank),
                    str(layer.checks),
                    "-" if layer.ratio is None else f"{layer.ratio:.3f}",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(
            f"after {self.steps} steps: mean rank {self.mean_rank:.1f} ({100 * self.mean_share:.0f} % of full), "
            f"{self.checks} checks"
        )
        return "\n".join(lines)


def check_ranks(layers: Mapping[str, LowRankLayer], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare a model's ranks with saved ones.

    Args:
        layers: The model's low-rank layers by name.
        saved: What their `ranks()` gave.

    Raises:
        ValueError: If they differ; lists each layer that does, with what was expected and what there is.
    """
    wrong = []
    for name in [*saved, *(name for name in layers if name not in saved)]:
        expected, found = (
            f"{ranks['rank']} ({ranks['active']} active, {ranks['capacity']} stored)" if ranks else None
            for ranks in (saved.get(name), layers[name].ranks() if name in layers else None)
        )
        if expected != found:
            wrong.append(f"  {name}: expected rank {expected or '- no such layer'}, found {found or '- no such layer'}")
    if wrong:
        raise ValueError("ranks of the model are not those that were saved:\n" + "\n".join(wrong))

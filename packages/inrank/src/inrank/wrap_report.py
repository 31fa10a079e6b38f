"""What `wrap` did to a model: the layers that are low-rank now, and those that were left, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SkippedLayer", "WrapReport", "WrappedLayer", "reasons"]


@dataclass(frozen=True)
class WrappedLayer:
    """A low-rank layer in a model.

    Attributes:
        name: In the model.
        kind: Type that was replaced.
        shape: (m / groups, n) of the weight as a matrix.
        groups: Number of such matrices.
        rank: Present rank.
        active: Directions that are trained: rank + buffer.
        max_rank: Largest rank.
        break_even: Rank at which U and V have as many entries as the dense weight, m n / (m + n).
        dense_parameters: Entries of the dense weight.
        parameters: Entries of U and V as they are stored.
        note: What a reader should know.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    groups: int
    rank: int
    active: int
    max_rank: int
    break_even: float
    dense_parameters: int
    parameters: int
    note: str = ""


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that was matched but left as it is."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class WrapReport:
    """What `wrap` did.

    Attributes:
        wrapped: Layers that are low-rank now.
        skipped: Layers that were matched and are not, with reasons.
    """

    wrapped: tuple[WrappedLayer, ...]
    skipped: tuple[SkippedLayer, ...]

    def __str__(self) -> str:
        """A table."""
        head = ("layer", "type", "m x n", "rank+buffer", "max", "break-even", "entries / dense", "")
        rows = [head]
        for layer in self.wrapped:
            m, n = layer.shape
            rows.append(
                (
                    layer.name or "(model)",
                    layer.kind,
                    f"{m} x {n}" + (f" x {layer.groups} groups" if layer.groups > 1 else ""),
                    f"{layer.rank}+{layer.active - layer.rank}",
                    str(layer.max_rank),
                    f"{layer.break_even:.0f}",
                    f"{layer.parameters} / {layer.dense_parameters}",
                    layer.note,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"skipped {layer.name or '(model)'} ({layer.kind}): {layer.reason}" for layer in self.skipped]
        return "\n".join(lines)


def reasons(skipped: Sequence[SkippedLayer]) -> str:
    """Each reason once, with the layers it holds for, to be read in a line."""
    names: dict[str, list[str]] = {}
    for layer in skipped:
        names.setdefault(layer.reason, []).append(f"{layer.name or '(model)'} ({layer.kind})")
    return "; ".join(
        f"{', '.join(several[:3])}{f' and {len(several) - 3} more' if len(several) > 3 else ''}: {reason}"
        for reason, several in names.items()
    )

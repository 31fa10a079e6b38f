"""Memory by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inrank.memory import PARTS
from inrank.plotting.canvas import INK, LINES, new_figure, plain_axes

__all__ = ["memory_figure"]

_MEGABYTE = 1e6


def memory_figure(
    runs: Mapping[str, Mapping[str, int]],
    *,
    measured: Mapping[str, int] | None = None,
    title: str = "",
    note: str = "",
) -> Any:
    """One stacked bar for each run, and the measured peak as a mark.

    Args:
        runs: Bytes by part (`inrank.memory.PARTS`; what is left out is 0) by run, as in `MemoryReport.peak`.
        measured: Measured peak [bytes] by run.
        title: Above.
        note: Small print below.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: No run, or an unknown part.
        ImportError: There is no matplotlib.
    """
    if not runs:
        raise ValueError("runs is empty; expected the parts of at least one run")
    for name, parts in runs.items():
        unknown = sorted(set(parts) - set(PARTS))
        if unknown:
            raise ValueError(f"run {name!r} has unknown parts {', '.join(unknown)}; known: {', '.join(PARTS)}")
    figure = new_figure(6.6, 1.5 + 0.45 * len(runs), title=title, note=note)
    axes = figure.subplots()
    start = [0.0] * len(runs)
    for part, colour in zip(PARTS, LINES, strict=False):
        sizes = [parts.get(part, 0) / _MEGABYTE for parts in runs.values()]
        if any(sizes):
            axes.barh(range(len(runs)), sizes, left=start, height=0.6, color=colour, label=part)
        start = [a + b for a, b in zip(start, sizes, strict=True)]
    marks = {i: measured[name] / _MEGABYTE for i, name in enumerate(runs) if measured and name in measured}
    if marks:
        axes.plot(list(marks.values()), list(marks), "|", color=INK, markersize=18, label="measured peak")
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    axes.set_xlabel("memory [MB]", fontsize=9, color=INK)
    plain_axes(axes)
    axes.grid(False, axis="y")
    figure.legend(frameon=False, fontsize=8, labelcolor=INK, loc="outside lower center", ncols=4)
    return figure

"""The theory's figure: modes of D over time at several gains, and the singular values that a layer ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from inrank.plotting.canvas import INK, LINES, MUTED, new_figure, plain_axes
from inrank.theory import half_rise_time, mode_strength

__all__ = ["theory_figure"]


def theory_figure(
    gains: Sequence[float] = (0.1, 0.3, 1.0),
    *,
    singular_values: Sequence[float] = (10.0, 7.0, 5.0, 3.0, 2.0),
    unused: int = 15,
    simulated: Sequence[tuple[ArrayLike, ArrayLike]] | None = None,
    end: float = 4.0,
    title: str = "Singular values of D in a three-layer linear network",
    note: str = "Lines: closed form. Dots: simulated gradient flow. Grey: directions that the target does not use.",
) -> Any:
    """One column for each gain: above, modes over time; below, the spectrum of D at `end`.

    At small gain the target's modes rise one after another and the others stay where they are; at gain 1 the directions
    that the target does not use shrink all together, and D is not of low rank.

    Args:
        gains: a, ascending.
        singular_values: s of the target.
        unused: Directions with s = 0.
        simulated: For each gain times (points,) and singular values of D (points, modes), descending, of one layer.
        end: Time of the lower row, which all gains share, and end of the time axis where modes rise earlier.
        title: Above.
        note: Small print below.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: No gain, or one that `mode_strength` refuses.
        ImportError: There is no matplotlib.
    """
    if not gains:
        raise ValueError("gains is empty; expected at least one")
    figure = new_figure(0.8 + 3.0 * len(gains), 5.6, title=title, note=note)
    panels = figure.subplots(2, len(gains), squeeze=False, sharey="row")
    s = np.asarray(singular_values, np.float64)
    for column, gain in enumerate(gains):
        last = max(end, 1.4 * float(np.nanmax(half_rise_time(s, gain))))
        times = np.linspace(0, last, 400)
        moved = np.abs(mode_strength(times[:, None], s, gain) - gain)
        idle = np.abs(mode_strength(times, 0.0, gain) - gain)
        axes = panels[0, column]
        for strength, curve, colour in zip(s, moved.T, np.resize(np.array(LINES), len(s)), strict=True):
            axes.plot(times, curve, color=colour, linewidth=1.6, label=f"s = {strength:g}")
        if unused:
            axes.plot(times, idle, color=MUTED, linewidth=2.2, label=f"s = 0 ({unused} of them)")
        if simulated:
            at, values = (np.asarray(x, np.float64) for x in simulated[column])
            axes.plot(at, values, ".", color=INK, markersize=2.5)
        axes.axvline(end, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, last)
        axes.set_xlabel("time", fontsize=9, color=INK)
        plain_axes(axes, title=f"gain {gain:g}")
        if column == len(gains) - 1:
            axes.legend(frameon=False, fontsize=8, labelcolor=INK, ncols=2)
        at_end = np.abs(mode_strength(end, s, gain) - gain)
        bars = [(x, LINES[0]) for x in at_end] + [(float(np.interp(end, times, idle)), MUTED)] * unused
        bars.sort(key=lambda bar: -bar[0])
        axes = panels[1, column]
        axes.bar(range(1, len(bars) + 1), [x for x, _ in bars], color=[colour for _, colour in bars], width=0.75)
        axes.set_xlabel("index of the singular value", fontsize=9, color=INK)
        plain_axes(axes, title=f"spectrum of D at t = {end:g}")
    panels[0, 0].set_ylabel("|w - a|", fontsize=9, color=INK)
    panels[1, 0].set_ylabel("singular value", fontsize=9, color=INK)
    return figure

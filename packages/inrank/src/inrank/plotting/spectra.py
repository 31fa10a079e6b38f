"""Singular values over training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from inrank.plotting.canvas import INK, MUTED, new_figure, plain_axes

__all__ = ["spectrum_figure"]


def spectrum_figure(
    layers: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    ranks: Mapping[str, ArrayLike] | None = None,
    overlay: Mapping[str, ArrayLike] | None = None,
    shown: int = 32,
    columns: int = 3,
    log: bool = False,
    xlabel: str = "step",
    ylabel: str = "singular values of D",
    title: str = "",
    note: str = "",
) -> Any:
    """One panel for each layer, one line for each singular value, the largest darkest.

    Args:
        layers: Steps (points,) and singular values (points, values), descending, by name.
        ranks: Rank (points,) by name, written into the panel's corner as first -> last.
        overlay: Theory: values (points, modes) by name, drawn as dashed lines.
        shown: Lines at most in a panel.
        columns: Panels in a row.
        log: Logarithmic values.
        xlabel: Below.
        ylabel: Beside.
        title: Above.
        note: Small print below.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: No layer, or steps and values that do not fit.
        ImportError: There is no matplotlib.
    """
    if not layers:
        raise ValueError("layers is empty; expected steps and singular values of at least one layer")
    columns = min(columns, len(layers))
    rows = math.ceil(len(layers) / columns)
    figure = new_figure(0.6 + 3.1 * columns, 0.7 + 2.1 * rows, title=title, note=note)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
    from matplotlib import colormaps

    for axes, (name, (steps, values)) in zip(panels.flat, layers.items(), strict=False):
        at, s = np.asarray(steps, np.float64), np.asarray(values, np.float64)
        if s.ndim != 2 or len(s) != len(at):
            raise ValueError(f"layer {name!r} has values {s.shape} for steps {at.shape}; expected (points, values)")
        count = min(shown, s.shape[1])
        for i in reversed(range(count)):
            y = np.where(s[:, i] > 0, s[:, i], np.nan) if log else s[:, i]
            axes.plot(at, y, color=colormaps["viridis"](0.9 * i / max(count - 1, 1)), linewidth=1.1)
        if overlay and name in overlay:
            for mode in np.asarray(overlay[name], np.float64).T:
                axes.plot(at, mode, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
        if ranks and name in ranks:
            curve = np.asarray(ranks[name], np.float64)
            corner = f"rank {curve[0]:.0f} → {curve[-1]:.0f} of {s.shape[1]}"
            axes.annotate(corner, (0.03, 0.94), xycoords="axes fraction", va="top", fontsize=8, color=MUTED)
        if log:
            axes.set_yscale("log")
        plain_axes(axes, title=name)
    for axes in list(panels.flat)[len(layers) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel, fontsize=9, color=INK)
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel, fontsize=9, color=INK)
    return figure

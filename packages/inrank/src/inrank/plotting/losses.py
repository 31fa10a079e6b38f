"""Loss against steps, CPU seconds or parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from inrank.plotting.canvas import INK, colours, new_figure, plain_axes

__all__ = ["loss_figure"]


def loss_figure(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str = "CPU seconds",
    ylabel: str = "validation loss [nats]",
    log: bool = False,
    title: str = "",
    note: str = "",
) -> Any:
    """Curves of several runs; the last point of each is marked.

    Args:
        curves: x (points,) and loss (points,) by run. Losses that are not finite end a curve.
        xlabel: What x is.
        ylabel: Beside.
        log: Logarithmic loss.
        title: Above.
        note: Small print below.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: No curve, or x and loss that do not fit.
        ImportError: There is no matplotlib.
    """
    if not curves:
        raise ValueError("curves is empty; expected x and loss of at least one run")
    figure = new_figure(6.6, 4.0, title=title, note=note)
    axes = figure.subplots()
    for (name, (x, loss)), colour in zip(curves.items(), colours(), strict=False):
        at, y = np.asarray(x, np.float64), np.asarray(loss, np.float64)
        if at.ndim != 1 or at.shape != y.shape or not at.size:
            raise ValueError(f"run {name!r} has losses {y.shape} for x {at.shape}; expected (points,) of both")
        y = np.where(np.isfinite(y), y, np.nan)
        axes.plot(at, y, color=colour, linewidth=1.6, label=name)
        axes.plot(at[-1:], y[-1:], "o", color=colour, markersize=4)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    plain_axes(axes, legend=True)
    return figure

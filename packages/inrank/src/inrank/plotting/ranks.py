"""Ranks over training: staircases and a map of layers and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from inrank.plotting.canvas import INK, MUTED, colours, new_figure, plain_axes

__all__ = ["rank_figure", "rank_map_figure"]


def rank_figure(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    null_rank: float | None = None,
    full_rank: float | None = None,
    xlabel: str = "optimizer step",
    ylabel: str = "rank",
    title: str = "",
    note: str = "",
) -> Any:
    """The rank of each layer as a staircase, with what the same rule gives without training.

    Args:
        curves: Steps (points,) and ranks (points,) by layer; a rank holds until the next step.
        null_rank: Rank of the same rule on untrained layers, drawn as a line.
        full_rank: Rank of a dense layer, drawn as a line.
        xlabel: Below.
        ylabel: Beside.
        title: Above.
        note: Small print below.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: No curve, or steps and ranks that do not fit.
        ImportError: There is no matplotlib.
    """
    if not curves:
        raise ValueError("curves is empty; expected steps and ranks of at least one layer")
    figure = new_figure(6.6, 4.0, title=title, note=note)
    axes = figure.subplots()
    for (name, (steps, ranks)), colour in zip(curves.items(), colours(), strict=False):
        at, rank = np.asarray(steps, np.float64), np.asarray(ranks, np.float64)
        if at.ndim != 1 or at.shape != rank.shape:
            raise ValueError(f"layer {name!r} has ranks {rank.shape} for steps {at.shape}; expected one rank a step")
        axes.step(at, rank, where="post", color=colour, linewidth=1.6, label=name)
    for value, label, style in ((null_rank, "null model (no training)", ":"), (full_rank, "full rank", "-")):
        if value is not None:
            axes.axhline(value, color=MUTED, linewidth=1.1, linestyle=style, label=label)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.set_ylim(bottom=0)
    plain_axes(axes, legend=len(curves) <= 12)
    return figure


def rank_map_figure(
    steps: ArrayLike,
    layers: Sequence[str],
    shares: ArrayLike,
    *,
    title: str = "",
    label: str = "rank / full rank",
    xlabel: str = "optimizer step",
) -> Any:
    """A heat map of layers and steps.

    Args:
        steps: (points,).
        layers: Names of the rows, from the top.
        shares: (layers, points) values in 0..1, such as rank / min(m, n).
        title: Above.
        label: Of the colours.
        xlabel: Below; without it the steps are not written.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: Sizes that do not fit.
        ImportError: There is no matplotlib.
    """
    at, values = np.asarray(steps, np.float64), np.asarray(shares, np.float64)
    if at.ndim != 1 or not at.size or values.shape != (len(layers), len(at)):
        raise ValueError(f"shares has shape {values.shape}; expected ({len(layers)}, {at.size}): layers and steps")
    figure = new_figure(6.6, 1.3 + 0.24 * len(layers), title=title)
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
    ticks = np.unique(np.linspace(0, len(at) - 1, min(len(at), 7)).round().astype(int))
    axes.set_xticks(ticks if xlabel else [], [f"{at[i]:g}" for i in ticks] if xlabel else [])
    axes.set_yticks(range(len(layers)), layers)
    axes.tick_params(colors=INK, labelsize=8)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    figure.colorbar(image, ax=axes, pad=0.02).set_label(label, fontsize=8.5, color=INK)
    return figure

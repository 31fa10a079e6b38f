"""Curves: power per degree, growth of errors, norms of rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfno_jax.plotting.canvas import INK, LINES, MUTED, add_note, new_figure

__all__ = ["curve_figure", "spectrum_figure"]


def spectrum_figure(
    powers: Mapping[str, ArrayLike],
    *,
    truncation: int | None = None,
    slopes: Mapping[str, float] | None = None,
    title: str = "",
    units: str = "",
    note: str = "",
    decades: float = 12.0,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Power per degree on logarithmic axes.

    Args:
        powers: (lmax,) by label; degree 0 is not shown.
        truncation: lmax of a model or solver, drawn as a line.
        slopes: Exponents of reference lines by label, such as {"$l^{-3}$": -3}; drawn by the first spectrum.
        title: Above.
        units: Of the power.
        note: Small print below.
        decades: Powers of ten that are shown below the largest value; what is less is rounding.
        styles: matplotlib line options by label.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: no spectrum, or one that is not (lmax,).
    """
    if not powers:
        raise ValueError("powers is empty; expected at least one spectrum (lmax,)")
    figure = new_figure(7.0, 4.6)
    axes = figure.subplots()
    for (label, values), colour in zip(powers.items(), _cycle(LINES), strict=False):
        power = np.asarray(values, np.float64)
        if power.ndim != 1 or len(power) < 2:
            raise ValueError(f"spectrum {label!r} has shape {power.shape}; expected (lmax,) with lmax >= 2")
        degree = np.arange(1, len(power))
        shown = np.where(power[1:] > 0, power[1:], np.nan)
        options: dict[str, Any] = {"color": colour, "linewidth": 1.7, **dict((styles or {}).get(label, {}))}
        axes.plot(degree, shown, label=label, **options)
    reference = np.asarray(next(iter(powers.values())), np.float64)
    for label, slope in (slopes or {}).items():
        anchor = max(1, min(8, len(reference) // 3))
        degree = np.arange(anchor, len(reference))
        line = 2.5 * reference[anchor] * (degree / anchor) ** slope
        axes.plot(degree, line, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        middle = len(degree) // 2
        axes.annotate(
            label, (degree[middle], line[middle]), (4, 4), textcoords="offset points", color=MUTED, fontsize=9
        )
    if truncation is not None:
        axes.axvline(truncation - 1, color=INK, linewidth=0.9, linestyle=":")
        axes.annotate(
            f"truncation, l = {truncation - 1}",
            (truncation - 1, 0.02),
            (-5, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            color=INK,
            fontsize=8.5,
        )
    axes.set(xscale="log", yscale="log", xlabel="degree l", ylabel=f"power per degree{f' [{units}]' if units else ''}")
    floor = 10**-decades * max(float(np.nanmax(np.asarray(p, np.float64)[1:])) for p in powers.values())
    if axes.get_ylim()[0] < floor:
        axes.set_ylim(bottom=floor)
    _plain(axes, legend=len(powers) > 1)
    if title:
        axes.set_title(title, fontsize=12, color=INK)
    add_note(figure, note)
    return figure


def curve_figure(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    xlabel: str = "lead [steps]",
    ylabel: str = "relative L2 error",
    title: str = "",
    log: bool = True,
    limit: float | None = None,
    limit_label: str = "",
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Curves with the spread of their samples: growth of errors, norms of rollouts.

    Args:
        x: (points,).
        curves: (points,) or (points, sample) by label; of samples the median is drawn, and a band from the lowest to
            the highest. Values that are not finite end a curve.
        xlabel: Below.
        ylabel: Beside.
        title: Above.
        log: Logarithmic y axis.
        limit: A horizontal line.
        limit_label: Its name.
        styles: matplotlib line options by label.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: a curve does not have one value for each x.
    """
    figure = new_figure(7.0, 4.4)
    axes = figure.subplots()
    at = np.asarray(x, np.float64)
    for (label, values), colour in zip(curves.items(), _cycle(LINES), strict=False):
        y = np.asarray(values, np.float64)
        if y.ndim not in (1, 2) or len(y) != len(at):
            raise ValueError(f"curve {label!r} has shape {y.shape}; expected ({len(at)},) or ({len(at)}, samples)")
        y = np.where(np.isfinite(y), y, np.nan)
        options: dict[str, Any] = {"color": colour, "linewidth": 1.8, **dict((styles or {}).get(label, {}))}
        if y.ndim == 2:
            whole = np.isfinite(y).all(axis=1)
            bounds = np.where(np.reshape(whole, (-1, 1)), y, np.nan)
            axes.fill_between(at, bounds.min(1), bounds.max(1), color=options["color"], alpha=0.15, linewidth=0)
            y = np.median(y, axis=1)
        axes.plot(at, y, label=label, **options)
    if limit is not None:
        axes.axhline(limit, color=MUTED, linewidth=1.0, linestyle=":", label=limit_label or None)
    axes.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    _plain(axes, legend=True)
    if title:
        axes.set_title(title, fontsize=12, color=INK)
    return figure


def _cycle(colours: Sequence[str]) -> Iterable[str]:
    while True:
        yield from colours


def _plain(axes: Any, *, legend: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=9, which="both")
    axes.grid(True, color="#e6e8ec", linewidth=0.7)
    axes.set_axisbelow(True)
    if legend:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)

"""Several fields in one figure, each in its own colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from sfno_jax.grids import SphereGrid
from sfno_jax.plotting.canvas import INK, add_note, new_figure
from sfno_jax.plotting.maps import Map, colour_bar, draw_map

__all__ = ["panel_figure"]


def panel_figure(
    panels: Mapping[tuple[str, str], ArrayLike],
    grid: SphereGrid,
    style: Map | None = None,
    *,
    title: str = "",
    note: str = "",
    columns: int = 2,
) -> Any:
    """Maps in rows and columns, each with its own colour bar.

    Args:
        panels: (nlat, nlon) by (title, unit).
        grid: Where they lie.
        style: Projection and colours of all.
        title: Above.
        note: Small print below.
        columns: Maps beside one another.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: no panel, or a shape that is not the grid's.
    """
    if not panels:
        raise ValueError("panels is empty; expected at least one field")
    style = style or Map()
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    wide = style.projection == "plate-carree"
    figure = new_figure(columns * (6.2 if wide else 3.9), rows * (3.9 if wide else 4.3) + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, ((name, units), values) in zip(axes, panels.items(), strict=False):
        colour_bar(figure, draw_map(axis, values, grid, style, title=name), [axis], units)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    if title:
        figure.suptitle(title, fontsize=12.5, color=INK)
    add_note(figure, note)
    return figure

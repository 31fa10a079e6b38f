"""What all figures share: ink and paper, axes, the small print, and how they are written."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inrank._files import write_atomically

__all__ = ["INK", "LINES", "MUTED", "PAPER", "colours", "new_figure", "plain_axes", "save_figure"]

INK, MUTED, PAPER = "#1d2433", "#6b7280", "#ffffff"
LINES = ("#2563a8", "#d9622b", "#3f8f5b", "#8b5fbf", "#b8860b", "#c0392b", "#1f8a9c", "#7a5230")


def new_figure(width: float, height: float, *, title: str = "", note: str = "") -> Any:
    """An empty matplotlib figure.

    Args:
        width: [inch].
        height: [inch].
        title: Above all axes.
        note: Small print below.

    Raises:
        ImportError: There is no matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'inrank[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    if note:
        figure.supxlabel(note, fontsize=7.5, color=MUTED)
    return figure


def save_figure(figure: Any, path: str | Path, *, dpi: float = 110.0) -> Path:
    """Write a figure; the suffix says in which format (png, pdf, svg). A png has 256 colours, a third of the size.

    Args:
        figure: Of matplotlib.
        path: Where; folders are made.
        dpi: Pixels per inch.

    Raises:
        ValueError: A suffix that matplotlib does not know.
    """
    path = Path(path)
    buffer = io.BytesIO()
    suffix = path.suffix.lstrip(".") or "png"
    figure.savefig(buffer, format=suffix, dpi=dpi, facecolor=PAPER)
    if suffix == "png":
        from PIL import Image  # matplotlib brings it

        image = Image.open(buffer).convert("RGB").quantize(256)
        buffer = io.BytesIO()
        image.save(buffer, format="png", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
    return path


def colours() -> Iterator[str]:
    """Line colours, over and over."""
    return itertools.cycle(LINES)


def plain_axes(axes: Any, *, title: str = "", legend: bool = False) -> None:
    """Thin axes with a light grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8.5, which="both")
    axes.grid(True, color="#e6e8ec", linewidth=0.7)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=9.5, color=INK)
    if legend:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)

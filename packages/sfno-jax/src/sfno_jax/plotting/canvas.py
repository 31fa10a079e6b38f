"""What all figures share: ink and paper, the small print, and how they are written to files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from sfno_jax._files import write_atomically

__all__ = ["INK", "LINES", "MISSING", "MUTED", "PAPER", "add_note", "new_figure", "save_figure", "write"]

INK, MUTED, PAPER = "#1d2433", "#6b7280", "#ffffff"
LINES = ("#2563a8", "#d9622b", "#3f8f5b", "#8b5fbf", "#b8860b", "#c0392b")
MISSING = "#d7dae0"


def save_figure(figure: Any, path: str | Path, *, dpi: float = 110.0) -> Path:
    """Write a figure; the suffix says in which format (png, pdf, svg).

    Raises:
        ValueError: a suffix that matplotlib does not know.
    """
    buffer = io.BytesIO()
    suffix = Path(path).suffix.lstrip(".") or "png"
    figure.savefig(buffer, format=suffix, dpi=dpi, facecolor=PAPER)
    return write(path, buffer.getvalue())


def write(path: str | Path, data: bytes) -> Path:
    """Write a file, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def new_figure(width: float, height: float) -> Any:
    """An empty figure [inch]."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def add_note(figure: Any, note: str) -> None:
    """Small print at the foot of a figure."""
    if note:
        figure.supxlabel(note, fontsize=7.5, color=MUTED)

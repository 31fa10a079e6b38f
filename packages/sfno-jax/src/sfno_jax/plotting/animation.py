"""Animated maps."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfno_jax.grids import SphereGrid
from sfno_jax.plotting.canvas import INK, MISSING, PAPER, new_figure, write
from sfno_jax.plotting.maps import Map, colour_bar, draw_map

__all__ = ["animate"]


def animate(
    panels: Mapping[str, ArrayLike],
    grid: SphereGrid,
    path: str | Path,
    style: Map | None = None,
    *,
    captions: Sequence[str] | None = None,
    title: str = "",
    units: str = "",
    frames_per_second: float = 8.0,
    pixels: int = 230,
) -> Path:
    """A GIF of one or several fields side by side, in the same colours.

    Args:
        panels: (frame, nlat, nlon) by title.
        grid: Where the values lie.
        path: The file to write.
        style: Projection and colours; the range is that of the first panel by default.
        captions: One text per frame.
        title: Above.
        units: At the colour bar.
        frames_per_second: Speed.
        pixels: Size of a panel.

    Returns:
        The path.

    Raises:
        ValueError: panels of different lengths, captions that do not fit, or a shape that is not the grid's.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    style = style or Map()
    fields = {name: np.asarray(values) for name, values in panels.items()}
    lengths = {len(values) for values in fields.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"panels have {sorted(lengths)} frames; expected the same number, at least one")
    count = lengths.pop()
    if captions is not None and len(captions) != count:
        raise ValueError(f"there are {len(captions)} captions for {count} frames")
    cmap, low, high = style.colours(next(iter(fields.values())))
    style = dataclasses.replace(style, cmap=cmap, vmin=low, vmax=high)
    aspect = 2.0 if style.projection == "plate-carree" else 1.0
    figure = new_figure(len(fields) * pixels * aspect / 100 + 0.2, pixels / 100 + 1.15)
    canvas: Any = FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(fields), squeeze=False)[0]
    images = [
        draw_map(axis, values[0], grid, style, title=name)
        for axis, (name, values) in zip(axes, fields.items(), strict=True)
    ]
    colour_bar(figure, images[0], list(axes), units)
    heading = figure.suptitle(title or " ", fontsize=11, color=INK)
    frames = []
    for number in range(count):
        for image, values in zip(images, fields.values(), strict=True):
            image.set_data(np.ma.masked_invalid(style.raster(values[number], grid, 2 * pixels)))
        if captions is not None:
            heading.set_text(f"{title}  {captions[number]}".strip())
        if number == 1:  # the layout of the first frame holds for all
            figure.set_layout_engine("none")
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    palette = _palette(cmap)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    buffer = io.BytesIO()
    indexed[0].save(
        buffer,
        "GIF",
        save_all=True,
        append_images=indexed[1:],
        duration=round(1000 / frames_per_second),
        loop=0,
        optimize=True,
    )
    return write(path, buffer.getvalue())


def _palette(cmap: str) -> Any:
    """A GIF's colours: those of the map, the same under a line of the graticule, and greys of the lettering."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb
    from PIL import Image

    ink, paper = np.array(to_rgb(INK)), np.array(to_rgb(PAPER))
    shades = colormaps[cmap](np.linspace(0, 1, 150))[:, :3]
    lined = 0.75 * shades[::3] + 0.25 * ink
    greys = paper + np.linspace(0, 1, 40)[:, None] * (ink - paper)
    colours = np.concatenate([shades, lined, greys, [to_rgb(MISSING)]])
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(255 * colours).astype(np.uint8).tobytes())
    return palette

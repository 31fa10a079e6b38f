"""Maps of the sphere with matplotlib alone: orthographic and Plate Carrée."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfno_jax.grids import SphereGrid, choose
from sfno_jax.plotting.canvas import INK, MISSING, add_note, new_figure
from sfno_jax.plotting.projection import Array, as_field, interpolate, inverse_orthographic, orthographic

__all__ = ["PROJECTIONS", "Map", "colour_bar", "draw_map", "map_figure", "triptych"]

PROJECTIONS = ("orthographic", "plate-carree")
_PIXELS = 640


@dataclasses.dataclass(frozen=True)
class Map:
    """How a field is drawn.

    Attributes:
        projection: One of `PROJECTIONS`.
        center: (latitude, longitude) in the middle [degree]; of a Plate Carrée map only the longitude counts.
        cmap: Name of a matplotlib colour map; None for a diverging one about 0 if the field has both signs, else
            a sequential one.
        vmin: Value of the first colour; None for the field's.
        vmax: Value of the last colour.
        nearest: Show grid points as they are instead of interpolating.
        graticule: Distance of meridians and parallels [degree]; 0 for none.
    """

    projection: str = "orthographic"
    center: tuple[float, float] = (35.0, 0.0)
    cmap: str | None = None
    vmin: float | None = None
    vmax: float | None = None
    nearest: bool = False
    graticule: float = 30.0

    def __post_init__(self) -> None:
        choose("projection", self.projection, PROJECTIONS)
        latitude, longitude = self.center
        if not (-90 <= latitude <= 90 and math.isfinite(longitude)):
            raise ValueError(f"center={self.center}; expected a latitude in [-90, 90] and a longitude [degree]")
        if self.graticule < 0:
            raise ValueError(f"graticule={self.graticule}; expected degrees, or 0 for none")
        if self.vmin is not None and self.vmax is not None and not self.vmin < self.vmax:
            raise ValueError(f"vmin={self.vmin} and vmax={self.vmax}; expected vmin < vmax")

    def colours(self, values: ArrayLike) -> tuple[str, float, float]:
        """Colour map and its range for a field."""
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        signed = low < 0 < high and min(-low, high) > 0.1 * max(-low, high)
        if signed and self.vmin is None and self.vmax is None:
            high = max(-low, high)
            low = -high
        low = low if self.vmin is None else self.vmin
        high = high if self.vmax is None else self.vmax
        if not low < high:
            low, high = low - 0.5 * (abs(low) or 1.0), low + 0.5 * (abs(low) or 1.0)
        return self.cmap or ("RdBu_r" if signed else "viridis"), low, high

    def raster(self, values: ArrayLike, grid: SphereGrid, pixels: int = _PIXELS) -> Array:
        """The picture: (rows, columns) from the top left, NaN where there is no sphere."""
        if self.projection == "plate-carree":
            latitude = math.pi / 2 - (np.arange(pixels // 2) + 0.5) * (2 * math.pi / pixels)
            west = math.radians(self.center[1]) - math.pi
            longitude = west + (np.arange(pixels) + 0.5) * (2 * math.pi / pixels)
            return interpolate(values, grid, latitude[:, None], longitude, nearest=self.nearest)
        edge = (np.arange(pixels) + 0.5) * (2 / pixels) - 1
        x, y = edge[None, :], -edge[:, None]
        # A pixel beyond the limb takes the colour of the limb; the disc is cut out with a smooth edge.
        radius = np.hypot(x, y)
        shrink = np.where(radius > 0.9999, 0.9999 / np.maximum(radius, 1e-9), 1.0)
        latitude, longitude = inverse_orthographic(x * shrink, y * shrink, self.center)
        return interpolate(values, grid, latitude, longitude, nearest=self.nearest)


def draw_map(axes: Any, values: ArrayLike, grid: SphereGrid, style: Map | None = None, *, title: str = "") -> Any:
    """Draw a field into given axes.

    Args:
        axes: matplotlib axes.
        values: (nlat, nlon).
        grid: Where they lie.
        style: Projection and colours.
        title: Above the map.

    Returns:
        The image, for a colour bar.

    Raises:
        ValueError: the shape of `values` is not the grid's.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Circle

    style = style or Map()
    name, low, high = style.colours(values)
    cmap = colormaps[name].with_extremes(bad=MISSING)
    flat = style.projection == "plate-carree"
    extent = (-180.0, 180.0, -90.0, 90.0) if flat else (-1.0, 1.0, -1.0, 1.0)
    image = axes.imshow(
        np.ma.masked_invalid(style.raster(values, grid)),
        extent=extent,
        cmap=cmap,
        vmin=low,
        vmax=high,
        interpolation="bilinear",
        zorder=1,
    )
    _graticule(axes, style)
    if flat:
        _degree_ticks(axes, style)
    else:
        disc = Circle((0, 0), 0.998, transform=axes.transData, facecolor="none", edgecolor="none")
        axes.add_patch(disc)
        image.set_clip_path(disc)
        axes.add_patch(Circle((0, 0), 0.998, facecolor="none", edgecolor=INK, linewidth=0.9, zorder=3))
        axes.set(xlim=(-1.02, 1.02), ylim=(-1.02, 1.02), aspect="equal")
        axes.axis("off")
    if title:
        axes.set_title(title, fontsize=10.5, color=INK, pad=7)
    return image


def map_figure(
    values: ArrayLike,
    grid: SphereGrid,
    style: Map | None = None,
    *,
    title: str = "",
    units: str = "",
    both_hemispheres: bool = False,
    note: str = "",
) -> Any:
    """A map with a colour bar.

    Args:
        values: (nlat, nlon).
        grid: Where they lie.
        style: Projection and colours.
        title: Above.
        units: At the colour bar.
        both_hemispheres: Also draw the other side of an orthographic map.
        note: Small print below, such as an attribution.

    Returns:
        A matplotlib `Figure`; `save_figure` writes it.

    Raises:
        ValueError: the shape of `values` is not the grid's.
    """
    style = style or Map()
    styles = [style]
    if both_hemispheres and style.projection == "orthographic":
        opposite = (-style.center[0], style.center[1] + 180)
        styles.append(dataclasses.replace(style, center=opposite))
    wide = style.projection == "plate-carree"
    figure = new_figure(7.6 if wide else 4.3 * len(styles), 4.5 if wide else 5.0)
    axes = figure.subplots(1, len(styles), squeeze=False)[0]
    for axis, one in zip(axes, styles, strict=True):
        image = draw_map(axis, values, grid, one)
    colour_bar(figure, image, list(axes), units)
    if title:
        figure.suptitle(title, fontsize=12.5, color=INK)
    add_note(figure, note)
    return figure


def triptych(
    truth: ArrayLike,
    prediction: ArrayLike,
    grid: SphereGrid,
    style: Map | None = None,
    *,
    title: str = "",
    units: str = "",
    names: tuple[str, str, str] = ("truth", "prediction", "error"),
) -> Any:
    """Truth, prediction and their difference, the first two in the same colours.

    Args:
        truth: (nlat, nlon).
        prediction: (nlat, nlon).
        grid: Where they lie.
        style: Projection and colours; its range is the truth's by default, the error's range is its own.
        title: Above.
        units: At the colour bars.
        names: Above each map.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ValueError: a shape is not the grid's.
    """
    style = style or Map()
    exact, guess = as_field(truth, grid), as_field(prediction, grid)
    cmap, low, high = style.colours(exact)
    shared = dataclasses.replace(style, cmap=cmap, vmin=low, vmax=high)
    difference = guess - exact
    finite = difference[np.isfinite(difference)]
    largest = float(np.abs(finite).max()) if finite.size else 1.0
    errors = dataclasses.replace(style, cmap="PuOr_r", vmin=-(largest or 1.0), vmax=largest or 1.0)
    wide = style.projection == "plate-carree"
    figure = new_figure(13.5 if wide else 10.6, 3.7 if wide else 4.7)
    axes = figure.subplots(1, 3)
    rms = math.sqrt(float((grid.area_weights * difference**2).sum() / (4 * math.pi)))
    captions = (names[0], names[1], f"{names[2]} (rms {rms:.3g}{f' {units}' if units else ''})")
    for axis, values, one, caption in zip(
        axes, (exact, guess, difference), (shared, shared, errors), captions, strict=True
    ):
        image = draw_map(axis, values, grid, one, title=caption)
        if axis is axes[1]:
            colour_bar(figure, image, list(axes[:2]), units)
    colour_bar(figure, image, [axes[2]], units)
    if title:
        figure.suptitle(title, fontsize=12.5, color=INK)
    return figure


def colour_bar(figure: Any, image: Any, axes: list[Any], units: str) -> None:
    """A horizontal colour bar under axes."""
    bar = figure.colorbar(
        image, ax=axes, orientation="horizontal", shrink=0.62 if len(axes) > 1 else 0.8, aspect=34, pad=0.04
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5, colors=INK, length=2.5)
    bar.formatter.set_powerlimits((-3, 5))
    bar.formatter.set_useMathText(True)
    if units:
        bar.set_label(f"[{units}]", fontsize=9, color=INK)


def _graticule(axes: Any, style: Map) -> None:
    if not style.graticule:
        return
    line = {"color": INK, "linewidth": 0.45, "alpha": 0.35, "zorder": 2}
    step = style.graticule
    parallels = np.arange(-90 + step, 90, step)
    meridians = np.arange(0, 360, step)
    if style.projection == "plate-carree":
        for parallel in parallels:
            axes.axhline(parallel, **line)
        for meridian in meridians:
            axes.axvline((meridian - style.center[1] + 180) % 360 - 180, **line)
        return
    along = np.linspace(-math.pi, math.pi, 361)
    for parallel in np.deg2rad(parallels):
        axes.plot(*orthographic(np.full_like(along, parallel), along, style.center), **line)
    for meridian in np.deg2rad(meridians):
        # Meridians end 10 degrees before the poles but for every third, so that these stay clear.
        reach = math.pi / 2 if round(math.degrees(meridian)) % 90 == 0 else math.radians(80)
        latitude = np.linspace(-reach, reach, 181)
        axes.plot(*orthographic(latitude, np.full_like(latitude, meridian), style.center), **line)


def _degree_ticks(axes: Any, style: Map) -> None:
    step = style.graticule if style.graticule >= 15 else 30
    ticks = np.arange(-180, 181, 2 * step)
    axes.set_xticks(ticks, [_longitude_label(tick + style.center[1]) for tick in ticks])
    latitudes = np.arange(-90, 91, step)
    axes.set_yticks(latitudes, [f"{abs(v):g}°{'N' if v > 0 else 'S' if v < 0 else ''}" for v in latitudes])
    axes.tick_params(labelsize=8, colors=INK, length=2.5)
    for spine in axes.spines.values():
        spine.set_color(INK)
        spine.set_linewidth(0.8)


def _longitude_label(longitude: float) -> str:
    east = (longitude + 180) % 360 - 180
    return f"{abs(east):g}°{'' if east in (0, -180) else 'E' if east > 0 else 'W'}"

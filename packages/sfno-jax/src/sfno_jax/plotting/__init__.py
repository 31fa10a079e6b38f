"""Pictures: maps of the sphere, spectra, growth of errors, and animations.

Maps are drawn by asking, for every pixel, which point of the sphere it shows, and interpolating the field there: no
cell of the grid is stretched over the edge of a hemisphere, and the poles are closed. Everything is drawn with
matplotlib's `Figure` objects: no window, no display, no global state.

All fields are (nlat, nlon), rows from north to south, columns from longitude 0 eastward, on a `SphereGrid`.
"""

from sfno_jax.plotting.animation import animate
from sfno_jax.plotting.canvas import save_figure
from sfno_jax.plotting.curves import curve_figure, spectrum_figure
from sfno_jax.plotting.maps import PROJECTIONS, Map, draw_map, map_figure, triptych
from sfno_jax.plotting.panels import panel_figure
from sfno_jax.plotting.projection import interpolate, inverse_orthographic

__all__ = [
    "PROJECTIONS",
    "Map",
    "animate",
    "curve_figure",
    "draw_map",
    "interpolate",
    "inverse_orthographic",
    "map_figure",
    "panel_figure",
    "save_figure",
    "spectrum_figure",
    "triptych",
]

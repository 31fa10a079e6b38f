"""From a file's coordinates to the library's grids: what is flipped, rolled, dropped or refused.

The library's convention: rows north to south, columns eastward from longitude 0, one of the four
latitude rules of :mod:`sfno_jax.grids`. What can be brought to it without interpolation is, with a
notice; what cannot is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfno_jax.grids import GRIDS, SphereGrid, latitudes

__all__ = ["Arrangement", "GridError", "arrange", "find_axis"]

Floats = NDArray[np.float64]
_NAMES = {
    "latitude": ("lat", "latitude", "lats", "nav_lat", "y"),
    "longitude": ("lon", "longitude", "lons", "nav_lon", "x"),
    "time": ("time", "valid_time", "t", "date"),
    "level": ("level", "lev", "plev", "pressure_level", "isobaricinhpa", "z"),
}
_UNITS = {
    "latitude": ("degrees_north", "degree_north", "degrees_n", "degree_n"),
    "longitude": ("degrees_east", "degree_east", "degrees_e", "degree_e"),
    "time": (),
    "level": ("hpa", "millibar", "millibars", "mb"),
}
_AXES = {"latitude": "Y", "longitude": "X", "time": "T", "level": "Z"}


class GridError(ValueError):
    """Coordinates that fit none of the library's grids; the message says why and what to do."""


def find_axis(kind: str, coordinates: Mapping[Hashable, Any]) -> str | None:
    """Name of the coordinate that is a latitude, longitude, time or level.

    CF attributes decide (``standard_name``, then units, then ``axis``), names only without them.

    Args:
        kind: ``"latitude"``, ``"longitude"``, ``"time"`` or ``"level"``.
        coordinates: Objects with ``attrs``, such as xarray's, by name.
    """

    def standard(name: str, attributes: Mapping[str, Any]) -> bool:
        return bool(attributes.get("standard_name") == kind)

    def unit(name: str, attributes: Mapping[str, Any]) -> bool:
        return str(attributes.get("units", "")).lower() in _UNITS[kind]

    def axis(name: str, attributes: Mapping[str, Any]) -> bool:
        return bool(attributes.get("axis") == _AXES[kind])

    def known(name: str, attributes: Mapping[str, Any]) -> bool:
        return name.lower() in _NAMES[kind]

    for test in (standard, unit, axis, known):
        for name, coordinate in coordinates.items():
            if test(str(name), getattr(coordinate, "attrs", {})):
                return str(name)
    return None


@dataclass(frozen=True)
class Arrangement:
    """How a file's rows and columns become the grid's.

    Attributes:
        grid: The grid.
        rows: Indices of the file's rows, north to south.
        columns: Indices of the file's columns, eastward from 0.
        notices: What had to be done, one sentence each.
    """

    grid: SphereGrid
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    notices: tuple[str, ...]


def arrange(latitude: Any, longitude: Any) -> Arrangement:
    """Recognise a grid.

    Args:
        latitude: Degrees north, one dimension.
        longitude: Degrees east, one dimension.

    Returns:
        The grid and how to get there.

    Raises:
        GridError: When the coordinates are two-dimensional, regional, irregular, offset by half a
            cell or otherwise not one of the library's grids.
    """
    lat, lon = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    for name, values in (("latitude", lat), ("longitude", lon)):
        if values.ndim != 1:
            raise GridError(
                f"{name} has {values.ndim} dimensions: a curvilinear grid is not supported; regrid "
                f"to a latitude-longitude grid first"
            )
        if values.size < 2 or not np.all(np.isfinite(values)):
            raise GridError(f"{name} must hold at least 2 finite values, got {values.size}")
    rows, notes_lat = _arrange_rows(lat)
    columns, notes_lon = _arrange_columns(lon)
    kind = _recognise(lat[rows])
    if len(columns) % 2:
        raise GridError(f"{len(columns)} longitudes: the transforms need an even number")
    grid = SphereGrid(len(rows), len(columns), kind)
    return Arrangement(grid, rows, columns, (*notes_lat, *notes_lon))


def _arrange_rows(lat: Floats) -> tuple[NDArray[np.intp], list[str]]:
    rows = np.arange(lat.size)
    if np.all(np.diff(lat) < 0):
        return rows, []
    if np.all(np.diff(lat) > 0):
        return rows[::-1], ["latitudes run south to north: rows flipped"]
    at = int(np.argmax(np.sign(np.diff(lat)) != np.sign(lat[1] - lat[0])))
    raise GridError(f"latitudes are not monotonic: {lat[at]:g} is followed by {lat[at + 1]:g} at index {at + 1}")


def _recognise(lat: Floats) -> str:
    """Name of the rule whose latitudes these are (north to south), to 1 % of a spacing."""
    if np.abs(lat).max() > 90.001:
        raise GridError(f"latitudes reach {np.abs(lat).max():g}: not degrees north")
    tolerance = 0.01 * 180 / lat.size
    for kind in GRIDS:
        if lat.size < 3 and kind != "legendre-gauss":
            continue
        if np.abs(np.degrees(latitudes(kind, lat.size)) - lat).max() < tolerance:
            return kind
    spacing = -np.diff(lat)
    regular = np.ptp(spacing) < tolerance
    if regular and abs(lat[0] - lat[-1] + spacing.mean() - 180) < 2 * tolerance * lat.size:
        raise GridError(
            f"latitudes are cell centres, offset from the pole by half a spacing (first "
            f"{lat[0]:g}, spacing {spacing.mean():g}): no quadrature of this library has these "
            f"nodes. Interpolate to {lat.size + 1} latitudes with both poles (equiangular) or to "
            f"Gauss latitudes first"
        )
    if lat[0] - lat[-1] < 180 - 3 * spacing.max():
        raise GridError(
            f"latitudes span only {lat[-1]:g} to {lat[0]:g}: a regional field has no spherical harmonic transform"
        )
    raise GridError(
        f"{lat.size} latitudes from {lat[0]:g} to {lat[-1]:g} fit none of {', '.join(GRIDS)}; "
        f"interpolate to one of them first"
    )


def _arrange_columns(lon: Floats) -> tuple[NDArray[np.intp], list[str]]:
    notices = []
    columns = np.arange(lon.size)
    if np.all(np.diff(lon) < 0):
        columns = columns[::-1]
        notices.append("longitudes run westward: columns flipped")
    # a step down by about 360 in the middle is a wrap, not a disorder
    east = np.unwrap(lon[columns], period=360)
    if not np.all(np.diff(east) > 0):
        raise GridError("longitudes are not monotonic")
    if abs(east[-1] - east[0] - 360) < 0.01 * np.diff(east).min():
        columns, east = columns[:-1], east[:-1]
        notices.append(f"the meridian {lon[0]:g} is repeated as {lon[-1]:g}: last column dropped")
    count = east.size
    spacing = 360 / count
    wrong = np.abs(np.diff(east) - spacing) > 0.01 * spacing
    if wrong.any():
        at = int(np.argmax(wrong))
        raise GridError(
            f"longitudes must be {count} equal steps of {spacing:g} around the globe; from "
            f"{east[at]:g} to {east[at + 1]:g} is {east[at + 1] - east[at]:g}"
        )
    shift = -east[0] / spacing
    if abs(shift - round(shift)) > 0.01:
        raise GridError(
            f"longitudes start at {east[0]:g} with spacing {spacing:g}, so that none is 0 (offset by "
            f"{(-shift) % 1:.2g} of a cell); interpolate to longitudes that hold 0 first"
        )
    turn = round(shift) % count
    if turn:
        columns = np.roll(columns, -turn)
        notices.append(f"longitudes start at {east[0]:g}: columns rolled to start at 0")
    return columns, notices

"""Points of the sphere and of its pictures: interpolation and the orthographic projection."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfno_jax.grids import SphereGrid

__all__ = ["Array", "as_field", "interpolate", "inverse_orthographic", "orthographic"]

Array = NDArray[np.float64]

_PAD = 8  # rows and columns that a spline sees beyond an edge; its memory fades by 0.27 a point


def interpolate(
    values: ArrayLike, grid: SphereGrid, latitude: ArrayLike, longitude: ArrayLike, *, nearest: bool = False
) -> Array:
    """A scalar field at any points of the sphere, by cubic splines along latitude and longitude.

    Longitude wraps, and beyond a pole the field goes on along the opposite meridian. A field with NaN is interpolated
    linearly, so that what is missing does not spread.

    Args:
        values: (nlat, nlon) on `grid`.
        grid: Where the values lie.
        latitude: [rad], any shape.
        longitude: [rad], broadcasts against `latitude`, any number of turns.
        nearest: The nearest grid point's value instead.

    Returns:
        Float64, the broadcast shape.

    Raises:
        ValueError: the shape of `values` is not the grid's.
    """
    from scipy.interpolate import CubicSpline, PchipInterpolator  # type: ignore[import-untyped]
    from scipy.ndimage import map_coordinates  # type: ignore[import-untyped]

    field, lats = as_field(values, grid), grid.latitudes
    at_pole = int(lats[0] > math.pi / 2 - 1e-12)  # a row that is the pole is not repeated beyond it
    pad = min(_PAD, grid.nlat - at_pole)
    beyond = np.roll(field, grid.nlon // 2, axis=1)
    rows = np.vstack(
        [
            beyond[at_pole : pad + at_pole][::-1],
            field,
            beyond[grid.nlat - pad - at_pole : grid.nlat - at_pole][::-1],
        ]
    )
    around = np.pad(rows, ((0, 0), (_PAD, _PAD)), mode="wrap")
    angle = np.concatenate(
        [
            math.pi - lats[at_pole : pad + at_pole][::-1],
            lats,
            -math.pi - lats[grid.nlat - pad - at_pole : grid.nlat - at_pole][::-1],
        ]
    )
    lat, lon = np.broadcast_arrays(np.asarray(latitude, np.float64), np.asarray(longitude, np.float64))
    # Rows are not equispaced: a smooth map from latitude to row, monotone where they crowd most.
    smooth = PchipInterpolator if grid.kind == "trapezoidal" else CubicSpline
    i = smooth(-angle, np.arange(len(angle)))(-lat)
    j = np.mod(lon, 2 * math.pi) * (grid.nlon / (2 * math.pi)) + _PAD
    if nearest:
        i, order = np.clip(i, pad, pad + grid.nlat - 1), 0
    else:
        order = 3 if np.isfinite(field).all() else 1
    points = np.stack([np.atleast_1d(i), np.atleast_1d(j)])
    return np.asarray(map_coordinates(around, points, order=order, mode="nearest")).reshape(lat.shape)


def inverse_orthographic(x: ArrayLike, y: ArrayLike, center: tuple[float, float]) -> tuple[Array, Array]:
    """Latitude and longitude [rad] of points of the orthographic disc of radius 1; NaN outside of it.

    Args:
        x: To the right.
        y: Up.
        center: (latitude, longitude) in the middle of the disc [degree].

    Source:
        Snyder (1987), Map Projections: A Working Manual, eqs. 20-14 to 20-18.
    """
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    phi, lam = np.deg2rad(center)
    square = x**2 + y**2
    z = np.sqrt(np.where(square <= 1, 1 - square, np.nan))
    latitude = np.arcsin(np.clip(z * math.sin(phi) + y * math.cos(phi), -1, 1))
    longitude = lam + np.arctan2(x, z * math.cos(phi) - y * math.sin(phi))
    return latitude, longitude


def orthographic(latitude: Array, longitude: Array, center: tuple[float, float]) -> tuple[Array, Array]:
    """Where points [rad] lie on the disc; NaN on the far side. Snyder (1987), eqs. 20-3 to 20-5."""
    phi, lam = np.deg2rad(center)
    turn = longitude - lam
    depth = math.sin(phi) * np.sin(latitude) + math.cos(phi) * np.cos(latitude) * np.cos(turn)
    x = np.cos(latitude) * np.sin(turn)
    y = math.cos(phi) * np.sin(latitude) - math.sin(phi) * np.cos(latitude) * np.cos(turn)
    hidden = depth < 0
    return np.where(hidden, np.nan, x), np.where(hidden, np.nan, y)


def as_field(values: ArrayLike, grid: SphereGrid) -> Array:
    """``values`` as float64, if they are (nlat, nlon) of the grid.

    Raises:
        ValueError: they are not.
    """
    field = np.asarray(values, np.float64)
    if field.shape != grid.shape:
        raise ValueError(f"the field has shape {field.shape}; expected (nlat, nlon) = {grid.shape} of its grid")
    return field

"""Gridded fields from netCDF and Zarr, read lazily onto the library's grids.

Needs the extra ``io`` (xarray, h5netcdf, zarr). Dask is used for chunks where it is installed; without
it only the times asked for are read. Example::

    data = open_gridded("era5.nc", ["u", "v", "z"])
    normalizer = data.statistics()
    normalizer.save("normalizer.json")
    train, validation = data.trajectories(normalizer).split(0.1)
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfno_jax.data.coordinates import Arrangement, GridError, arrange, find_axis
from sfno_jax.data.normalization import Normalizer
from sfno_jax.data.trajectories import ArrayTrajectories
from sfno_jax.grids import SphereGrid, area_weights

__all__ = [
    "GridError",
    "GridNotice",
    "GriddedData",
    "GriddedTrajectories",
    "MissingValueError",
    "open_gridded",
]

Missing = Literal["refuse", "mean", "keep"]


class GridNotice(UserWarning):
    """Fields were flipped, rolled or cut to fit the library's conventions."""


class MissingValueError(ValueError):
    """A field has missing values (NaN, masked land)."""


@dataclass(frozen=True)
class _Channel:
    """One channel: a variable, perhaps at one level."""

    name: str
    variable: str
    level: int | None
    unit: str


@dataclass(frozen=True)
class GriddedData:
    """A data set of fields ``(time, channel, nlat, nlon)`` that is read when asked for.

    Attributes:
        grid: The grid of what :meth:`read` returns.
        channels: Names, such as ``"t2m"`` or ``"z500"`` (variable and level).
        units: One per channel, empty where the file has none.
        times: Time coordinate ``(time,)``: datetime64, or numbers where it cannot be decoded.
        notices: What was done to the file's fields, one sentence each.
        missing: What happens to missing values: ``"refuse"``, ``"mean"`` (the area mean of the
            field's valid points) or ``"keep"``.
    """

    grid: SphereGrid
    channels: tuple[str, ...]
    units: tuple[str, ...]
    times: NDArray[Any]
    notices: tuple[str, ...]
    missing: Missing
    _dataset: Any
    _plan: tuple[_Channel, ...]
    _axes: dict[str, str | None]
    _arrangement: Arrangement

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(time, channel, nlat, nlon)``."""
        return len(self.times), len(self.channels), *self.grid.shape

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Fields at the times ``start … stop-1``, float32 ``(time, channel, nlat, nlon)``.

        Raises:
            IndexError: When the times are not there.
            MissingValueError: When values are missing and ``missing="refuse"``.
        """
        stop = len(self.times) if stop is None else stop
        if not 0 <= start < stop <= len(self.times):
            raise IndexError(f"times {start} to {stop} are not within 0 to {len(self.times)}")
        fields = np.empty((stop - start, *self.shape[1:]), np.float32)
        for index, channel in enumerate(self._plan):
            fields[:, index] = self._read_channel(channel, start, stop)
        return fields

    def _read_channel(self, channel: _Channel, start: int, stop: int) -> NDArray[np.float32]:
        array = self._dataset[channel.variable]
        time, level = self._axes["time"], self._axes["level"]
        if time is not None and time in array.dims:
            array = array.isel({time: slice(start, stop)})
        else:
            array = array.expand_dims("time")
            time = "time"
        if channel.level is not None:
            array = array.isel({level: channel.level})
        array = array.transpose(time, self._axes["latitude"], self._axes["longitude"])
        values = np.asarray(array.values, np.float32)
        # isel of fancy indices is slow on files; reorder in memory
        values = values[:, self._arrangement.rows][:, :, self._arrangement.columns]
        return self._handle_missing(values, channel.name, start)

    def _handle_missing(self, values: NDArray[np.float32], name: str, start: int) -> NDArray[np.float32]:
        bad = ~np.isfinite(values)
        if self.missing == "keep" or not bad.any():
            return values
        if self.missing == "refuse":
            time, row, column = (int(i) for i in np.argwhere(bad)[0])
            latitude = np.degrees(self.grid.latitudes[row])
            raise MissingValueError(
                f"channel {name!r} has {np.count_nonzero(bad)} missing values of {bad.size}, the "
                f"first at time {start + time}, row {row}, column {column} (latitude "
                f'{latitude:.2f}, longitude {360 * column / self.grid.nlon:.2f}); pass missing="mean"'
                f" to fill with the area mean, or leave the channel out"
            )
        weights = area_weights(self.grid.kind, *self.grid.shape) * ~bad
        total = weights.sum((1, 2))
        if np.any(total == 0):
            raise MissingValueError(f"channel {name!r} has no value at all at time {start + int(np.argmin(total))}")
        mean = (weights * np.where(bad, 0, values)).sum((1, 2)) / total
        return np.where(bad, mean[:, None, None], values).astype(np.float32)

    def chunks(self, size: int = 32) -> Iterator[NDArray[np.float32]]:
        """All fields in order, ``size`` times at once."""
        for start in range(0, len(self.times), size):
            yield self.read(start, min(start + size, len(self.times)))

    def statistics(self, chunk: int = 32) -> Normalizer:
        """Area-weighted mean, standard deviation and change per time step, streaming.

        Changes are taken within chunks. With ``missing="keep"`` missing points are left out.
        """
        weights = area_weights(self.grid.kind, *self.grid.shape)
        return Normalizer.fit(self.chunks(chunk), weights, self.channels, units=self.units)

    def trajectories(self, normalizer: Normalizer | None = None) -> GriddedTrajectories:
        """The time series as one trajectory for a trainer, normalised when it is read.

        Raises:
            ValueError: When the time steps are not equal, or a channel has no statistics.
        """
        steps = np.diff(self.times)
        if steps.size and np.any(steps != steps[0]):
            at = int(np.argmax(steps != steps[0]))
            raise ValueError(
                f"time steps are not equal: {steps[0]} at first, but {steps[at]} after time index "
                f"{at} ({self.times[at]}); a trajectory needs a regular series"
            )
        chosen = None if normalizer is None else normalizer.select(self.channels)
        return GriddedTrajectories(self, chosen, 0, len(self.times))


@dataclass(frozen=True)
class GriddedTrajectories:
    """Part of a time series as a source of training windows (one trajectory), read lazily.

    Attributes:
        data: The data set.
        normalizer: Applied to what is read, or None.
        first: First time.
        last: One past the last time.
    """

    data: GriddedData
    normalizer: Normalizer | None
    first: int
    last: int

    @property
    def shape(self) -> tuple[int, ...]:
        """``(1, time, channel, nlat, nlon)``."""
        return 1, self.last - self.first, *self.data.shape[1:]

    def windows(self, trajectory: NDArray[np.int64], start: NDArray[np.int64], length: int) -> NDArray[np.float32]:
        """States ``(batch, length, channel, nlat, nlon)`` from the given starts."""
        return np.stack([self._read(int(s), int(s) + length) for s in start])

    def _read(self, start: int, stop: int) -> NDArray[np.float32]:
        if stop > self.last - self.first:
            raise IndexError(f"time {stop - 1} is beyond the {self.last - self.first} there are")
        fields = self.data.read(self.first + start, self.first + stop)
        return fields if self.normalizer is None else self.normalizer.normalize(fields)

    def split(self, fraction: float) -> tuple[GriddedTrajectories, GriddedTrajectories]:
        """Earlier part for training and the last ``fraction`` for validation, without overlap."""
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must be in (0, 1), got {fraction}")
        cut = self.last - max(round(fraction * (self.last - self.first)), 1)
        if cut <= self.first:
            raise ValueError(f"{self.last - self.first} times are too few to split")
        return (
            GriddedTrajectories(self.data, self.normalizer, self.first, cut),
            GriddedTrajectories(self.data, self.normalizer, cut, self.last),
        )

    def load(self) -> ArrayTrajectories:
        """All of it in memory, which trains faster where it fits."""
        return ArrayTrajectories(self._read(0, self.last - self.first)[None])


def open_gridded(
    path: str | Path,
    variables: Sequence[str] = (),
    *,
    missing: Missing = "refuse",
) -> GriddedData:
    """Open a netCDF file or a Zarr store of global fields.

    Latitude, longitude, time and pressure level are found by CF attributes or by name. Rows that run
    south to north are flipped, longitudes from −180 rolled, a repeated meridian dropped, with a
    :class:`GridNotice` that says so.

    Args:
        path: A netCDF file or a Zarr store.
        variables: Variables to read, in order; all global fields when empty. A variable with levels
            gives one channel per level.
        missing: ``"refuse"`` raises on missing values when they are read, ``"mean"`` fills them with
            the area mean of the valid points, ``"keep"`` leaves NaN.

    Returns:
        The data set; nothing but coordinates has been read.

    Raises:
        FileNotFoundError: When there is no such file.
        GridError: When the grid is not one of the library's, with the reason.
        ValueError: When a variable is not there or has other dimensions.
        ImportError: Without the extra ``io``.
    """
    if missing not in ("refuse", "mean", "keep"):
        raise ValueError(f'missing must be "refuse", "mean" or "keep", got {missing!r}')
    dataset = _open(Path(path))
    axes = {kind: find_axis(kind, dataset.coords) for kind in ("latitude", "longitude", "time", "level")}
    for kind in ("latitude", "longitude"):
        if axes[kind] is None:
            raise GridError(
                f"{path} has no {kind} coordinate; its coordinates are {', '.join(map(str, dataset.coords)) or 'none'}"
            )
    arrangement = arrange(*(_degrees(dataset[axes[kind]]) for kind in ("latitude", "longitude")))
    plan = _channels(dataset, variables, axes)
    if arrangement.notices:
        warnings.warn(f"{path}: {'; '.join(arrangement.notices)}", GridNotice, stacklevel=2)
    time = axes["time"]
    series = time is not None and any(time in dataset[c.variable].dims for c in plan)
    return GriddedData(
        grid=arrangement.grid,
        channels=tuple(channel.name for channel in plan),
        units=tuple(channel.unit for channel in plan),
        times=np.asarray(dataset[time].values) if series else np.zeros(1),
        notices=arrangement.notices,
        missing=missing,
        _dataset=dataset,
        _plan=plan,
        _axes=axes,
        _arrangement=arrangement,
    )


def _open(path: Path) -> Any:
    try:
        import xarray
    except ImportError as error:
        raise ImportError("reading netCDF and Zarr needs xarray: pip install 'sfno-jax[io]'") from error
    if not path.exists():
        raise FileNotFoundError(f"no file or Zarr store {path}")
    options: dict[str, Any] = {"decode_timedelta": False}
    if importlib.util.find_spec("dask") is not None:
        options["chunks"] = {}
    if path.is_dir():
        options["engine"] = "zarr"
    try:
        return xarray.open_dataset(path, **options)
    except (ValueError, OSError) as error:
        if "time" in str(error) and "decode" in str(error):  # a calendar that needs cftime
            return xarray.open_dataset(path, **options, decode_times=False)
        raise ValueError(f"{path} cannot be read as netCDF or Zarr: {error}") from error


def _degrees(coordinate: Any) -> NDArray[np.float64]:
    values = np.asarray(coordinate.values, np.float64)
    radians = "radian" in str(coordinate.attrs.get("units", "")).lower()
    return np.degrees(values) if radians else values


def _channels(dataset: Any, variables: Sequence[str], axes: dict[str, str | None]) -> tuple[_Channel, ...]:
    horizontal = {axes["latitude"], axes["longitude"]}
    fields = [str(name) for name in dataset.data_vars if horizontal <= set(dataset[name].dims)]
    absent = [name for name in variables if name not in fields]
    if absent:
        raise ValueError(f"no global field {', '.join(map(repr, absent))}; there are {', '.join(fields) or 'none'}")
    chosen = list(variables) or fields
    if not chosen:
        raise ValueError("the file has no variable on its latitudes and longitudes")
    plan = []
    for name in chosen:
        array = dataset[name]
        other = set(array.dims) - horizontal - {axes["time"], axes["level"]}
        if other:
            raise ValueError(
                f"variable {name!r} has the dimensions {', '.join(map(str, array.dims))}; only time "
                f"and level beside latitude and longitude are understood, select along "
                f"{', '.join(map(str, sorted(other)))} first"
            )
        unit = str(array.attrs.get("units", ""))
        if axes["level"] in array.dims:
            levels = dataset[axes["level"]].values
            plan += [_Channel(f"{name}{v:g}", name, i, unit) for i, v in enumerate(levels)]
        else:
            plan.append(_Channel(name, name, None, unit))
    return tuple(plan)

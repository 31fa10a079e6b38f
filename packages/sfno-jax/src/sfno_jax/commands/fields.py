"""Fields in and out of the command line: samples, netCDF files and Zarr stores."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sfno_jax.commands.console import BadInput, notice
from sfno_jax.data.coordinates import GridError
from sfno_jax.samples import SAMPLES, Sample, load_sample

__all__ = ["read_fields", "write_dataset", "write_fields"]


def read_fields(
    source: str, variables: list[str] | None = None, *, time: int = 0, allow_missing: bool = False
) -> Sample:
    """Fields of a sample, a netCDF file or a Zarr store.

    Args:
        source: Name of a sample, or a path.
        variables: Those wanted; None for all.
        time: Index of the time axis of a file, if it has one.
        allow_missing: Take fields with missing values too.

    Returns:
        The fields on one of our grids, from north to south and from Greenwich eastward.

    Raises:
        BadInput: unknown sample, missing variable, or missing values in a field.
        FileNotFoundError: the file or the sample's data are missing.
        ValueError: the file's grid is not one of ours.
    """
    if source in SAMPLES:
        sample = load_sample(source)
        if variables:
            _require(source, variables, sample.fields)
            sample = dataclasses.replace(sample, fields={name: sample[name] for name in variables})
    elif Path(source).exists():
        sample = _read_file(Path(source), variables or [], time)
    else:
        raise BadInput(f"no input {source!r}: not a file, and not one of the samples {', '.join(SAMPLES)}")
    if not allow_missing:
        for name, values in sample.fields.items():
            bad = ~np.isfinite(values)
            if bad.any():
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                raise BadInput(
                    f"{name} has {int(bad.sum())} missing or infinite values, the first at (row, column) = {first}; "
                    "a transform needs all of them: choose another --variable, or fill them first"
                )
    return sample


def _read_file(path: Path, variables: list[str], time: int) -> Sample:
    """One time of a file; variables by their own name, or with a level as in z500."""
    from sfno_jax.data.gridded import open_gridded

    try:
        data = open_gridded(path, variables, missing="keep")
    except GridError:
        raise
    except ValueError:
        data = open_gridded(path, missing="keep")
        _require(str(path), variables, data.channels)
    count = len(data.times)
    index = time + count if time < 0 else time
    if not 0 <= index < count:
        raise BadInput(f"--time {time}: {path} has {count} time{'s' if count > 1 else ''}, 0 to {count - 1}")
    states = data.read(index, index + 1)[0]
    kept = [i for i, name in enumerate(data.channels) if name in variables] or range(len(data.channels))
    fields = {data.channels[i]: states[i] for i in kept}
    units = {data.channels[i]: data.units[i] for i in kept}
    when = data.times[index]
    label = f", {np.datetime_as_string(when, 'm')} UTC" if when.dtype.kind == "M" else f", time {index}"
    return Sample(path.stem, path.name + (label if count > 1 else ""), fields, units, data.grid, "")


def _require(source: str, variables: list[str], known: Iterable[str]) -> None:
    missing = [name for name in variables if name not in known]
    if missing:
        raise BadInput(f"{source} has no variable {', '.join(map(repr, missing))}; it has {', '.join(known)}")


def write_fields(fields: Sample, path: Path, time: tuple[Any, str] | None = None) -> list[Path]:
    """Write fields as netCDF beside other results; without the extra `io` they are left out, with a notice.

    Args:
        fields: The fields.
        path: The file.
        time: As in `Sample.to_xarray`.

    Returns:
        What was written.
    """
    missing = [name for name in ("xarray", "h5netcdf", "h5py") if importlib.util.find_spec(name) is None]
    if missing:
        notice(f"{path.name} is not written: it needs {' and '.join(missing)}, `pip install 'sfno-jax[io]'`")
        return []
    return [write_dataset(fields.to_xarray(time=time), path)]


def write_dataset(dataset: Any, path: Path) -> Path:
    """Write an `xarray.Dataset` as netCDF or, if the name ends in .zarr, as a Zarr store.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zarr":
        dataset.to_zarr(path, mode="w", zarr_format=2, consolidated=True)
        return path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    dataset.to_netcdf(temporary, engine="h5netcdf")
    os.replace(temporary, path)
    return path

"""Real fields to try things on: ERA5 at 500 hPa, which ships with the package, and the EGM96 geoid.

Contains modified Copernicus Climate Change Service information (ERA5, 1959). Neither the European Commission nor ECMWF
is responsible for any use that may be made of the Copernicus information or data it contains.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfno_jax.grids import SphereGrid

__all__ = ["EGM96_VARIABLE", "SAMPLES", "Sample", "egm96", "egm96_file", "era5_500hpa", "load_sample"]

Field = NDArray[np.float32]

EGM96_VARIABLE = "SFNO_JAX_EGM96"
"""Environment variable that names another file for `egm96`."""

_EGM96_NAME = "egm96_15.gtx"
_EGM96_SHAPE = (721, 1440)
_INSTALL = "apt-get install proj-data"
# Where distributions put proj-data; PROJ_DATA and PROJ_LIB are PROJ's own variables for it.
_PROJ_FOLDERS = ("/usr/share/proj", "/usr/local/share/proj", "/opt/homebrew/share/proj")


@dataclass(frozen=True)
class Sample:
    """Fields on one grid, with what is needed to label and to credit them.

    Attributes:
        name: Short name.
        title: What it is, in words.
        fields: Arrays (nlat, nlon) float32 by name, rows from north to south, columns from longitude 0.
        units: Unit of each field.
        grid: Their grid.
        attribution: Sentence that must accompany what is made from it.
    """

    name: str
    title: str
    fields: Mapping[str, Field]
    units: Mapping[str, str]
    grid: SphereGrid
    attribution: str
    long_names: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Field:
        """A field (nlat, nlon) by name.

        Raises:
            KeyError: there is none of that name; the message lists those there are.
        """
        if name not in self.fields:
            raise KeyError(f"{self.name} has no field {name!r}; it has {', '.join(self.fields)}")
        return self.fields[name]

    def stack(self, names: Sequence[str] | None = None) -> Field:
        """Fields (len(names), nlat, nlon); all of them, in their order, by default."""
        return np.stack([self[name] for name in (self.fields if names is None else names)])

    @property
    def wind(self) -> Field:
        """(u eastward, v northward), shape (2, nlat, nlon) [m s-1].

        Raises:
            KeyError: this sample has no wind.
        """
        return self.stack(("u", "v"))

    def to_xarray(self, time: tuple[Any, str] | None = None) -> Any:
        """An `xarray.Dataset` with coordinates in degrees (needs the extra `sfno-jax[io]`).

        Args:
            time: Values and unit of a time axis, if the fields are (time, nlat, nlon).

        Raises:
            ModuleNotFoundError: xarray is not installed.
        """
        import xarray

        leading = () if time is None else ("time",)
        variables = {
            name: (
                (*leading, "latitude", "longitude"),
                values,
                {"units": self.units[name], "long_name": self.long_names.get(name, name)},
            )
            for name, values in self.fields.items()
        }
        axis = {} if time is None else {"time": ("time", time[0], {"long_name": f"time [{time[1]}]"})}
        return xarray.Dataset(
            variables,
            coords={
                **axis,
                "latitude": ("latitude", np.rad2deg(self.grid.latitudes), {"units": "degrees_north"}),
                "longitude": ("longitude", np.rad2deg(self.grid.longitudes), {"units": "degrees_east"}),
            },
            attrs={"title": self.title, "source": self.attribution},
        )


def era5_500hpa() -> Sample:
    """Wind and geopotential at 500 hPa on 2 January 1959, 00 UTC, from ERA5; ships with the package.

    Contains modified Copernicus Climate Change Service information 1959; neither the European Commission nor ECMWF is
    responsible for any use that may be made of it.

    Returns:
        Fields `u` (eastward) and `v` (northward) [m s-1] and `geopotential` [m2 s-2] on 32 x 64 Gauss points.
    """
    resource = resources.files("sfno_jax") / "data_files" / "era5_500hpa.npz"
    with resources.as_file(resource) as path, np.load(path, allow_pickle=False) as file:
        fields = {name: file[name] for name in ("u", "v", "geopotential")}
    return Sample(
        name="era5",
        title="ERA5, 500 hPa, 1959-01-02 00 UTC",
        fields=fields,
        units={"u": "m s-1", "v": "m s-1", "geopotential": "m2 s-2"},
        grid=SphereGrid(32, 64, "legendre-gauss"),
        attribution="Contains modified Copernicus Climate Change Service information 1959 (ERA5)",
        long_names={"u": "eastward wind", "v": "northward wind", "geopotential": "geopotential"},
    )


def egm96_file(path: str | Path | None = None) -> Path:
    """The file that `egm96` reads.

    Looked for in this order: `path`; the environment variable SFNO_JAX_EGM96; the folders of PROJ_DATA and PROJ_LIB;
    the folders where Debian, Homebrew and others install PROJ's data.

    Args:
        path: A file, or a folder that holds it.

    Raises:
        FileNotFoundError: it is not there; the message says how to get it.
    """
    given = path or os.environ.get(EGM96_VARIABLE)
    if given:
        candidates = [Path(given)]
    else:
        listed = [os.environ.get(name, "") for name in ("PROJ_DATA", "PROJ_LIB")]
        folders = [folder for item in listed for folder in item.split(os.pathsep) if folder]
        candidates = [Path(folder) for folder in (*folders, *_PROJ_FOLDERS)]
    for candidate in candidates:
        file = candidate / _EGM96_NAME if candidate.is_dir() else candidate
        if file.is_file():
            return file
    places = ", ".join(map(str, candidates))
    raise FileNotFoundError(
        f"the EGM96 geoid {_EGM96_NAME} is not at {places}. It is part of PROJ's data: `{_INSTALL}` on Debian and "
        f"Ubuntu; or set {EGM96_VARIABLE} to where it lies."
    )


def egm96(path: str | Path | None = None) -> Sample:
    """Height of the geoid over the ellipsoid, EGM96, every quarter of a degree.

    Public domain (NGA and NASA: Lemoine et al. 1998, NASA/TP-1998-206861), read from PROJ's data, which most systems
    have or can install.

    Args:
        path: File or folder; None for the places that `egm96_file` looks in.

    Returns:
        Field `geoid` [m] on 721 x 1440 equiangular points, poles included.

    Raises:
        FileNotFoundError: the file is not there; the message says how to get it.
        ValueError: the file is another grid, or damaged.
    """
    file = egm96_file(path)
    content = file.read_bytes()
    # NOAA's vertical grid shift format, big-endian: south, west, two steps [degree], rows and columns, then float32
    # rows from south to north.
    header = struct.calcsize(">4d2i")
    if len(content) < header:
        raise ValueError(f"{file} has {len(content)} bytes; an EGM96 grid has a header of {header}")
    south, west, *steps, nlat, nlon = struct.unpack_from(">4d2i", content)
    expected = (-90.0, -180.0, [0.25, 0.25], _EGM96_SHAPE)
    if (south, west, steps, (nlat, nlon)) != expected or len(content) != header + 4 * nlat * nlon:
        raise ValueError(
            f"{file} starts at ({south}, {west}) with steps {steps}, {nlat} x {nlon} points and {len(content)} bytes; "
            "expected the 721 x 1440 grid of egm96_15.gtx, from (-90, -180) in steps of 0.25 degrees"
        )
    rows = np.frombuffer(content, ">f4", offset=header).reshape(nlat, nlon)
    # North to south, and from Greenwich instead of the date line.
    geoid = np.roll(rows[::-1], -nlon // 2, axis=1).astype(np.float32)
    return Sample(
        name="egm96",
        title="EGM96 geoid height",
        fields={"geoid": geoid},
        units={"geoid": "m"},
        grid=SphereGrid(nlat, nlon, "equiangular"),
        attribution="EGM96 (NGA, NASA; public domain), as distributed by PROJ",
        long_names={"geoid": "geoid height over the ellipsoid"},
    )


SAMPLES = {"era5": era5_500hpa, "egm96": egm96}
"""Samples by the names that the command line takes."""


def load_sample(name: str) -> Sample:
    """A sample by its name in `SAMPLES`.

    Raises:
        ValueError: unknown name.
        FileNotFoundError: the data are not on this machine.
    """
    if name not in SAMPLES:
        raise ValueError(f"sample {name!r} is unknown; there are {', '.join(SAMPLES)}")
    return SAMPLES[name]()

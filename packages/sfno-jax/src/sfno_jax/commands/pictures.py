"""`plot`: a map of any field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfno_jax.commands.console import AsJson, BadInput, Out, guarded, show
from sfno_jax.commands.spectral import Input, Time, Variables

__all__ = ["plot"]


@guarded
def plot(
    source: Input,
    variable: Variables = None,
    time: Time = 0,
    projection: Annotated[str, typer.Option(help="orthographic or plate-carree.")] = "orthographic",
    center: Annotated[str, typer.Option(help="LATITUDE,LONGITUDE in the middle [degree].")] = "35,0",
    both: Annotated[bool, typer.Option("--both", help="Both hemispheres of an orthographic map.")] = False,
    cmap: Annotated[str | None, typer.Option(help="A matplotlib colour map.")] = None,
    vmin: Annotated[float | None, typer.Option(help="Value of the first colour.")] = None,
    vmax: Annotated[float | None, typer.Option(help="Value of the last colour.")] = None,
    out: Out = Path("out/plot"),
    as_json: AsJson = False,
) -> None:
    """Maps of fields, one PNG each.

    Example: sfno-jax plot egm96 --projection plate-carree
    """
    import matplotlib
    import numpy as np

    from sfno_jax.commands.fields import read_fields
    from sfno_jax.plotting import Map, map_figure, save_figure

    if cmap is not None and cmap not in matplotlib.colormaps:
        raise BadInput(f"--cmap {cmap!r} is not one of matplotlib's colour maps, such as viridis or RdBu_r")
    try:
        latitude, longitude = (float(part) for part in center.split(","))
    except ValueError:
        raise BadInput(f"--center {center!r}; expected LATITUDE,LONGITUDE in degrees, such as 35,0") from None
    style = Map(projection, (latitude, longitude), cmap, vmin, vmax)
    fields = read_fields(source, variable, time=time, allow_missing=True)
    files, rows = [], []
    for name, values in fields.fields.items():
        units = fields.units[name]
        title = f"{fields.title}, {fields.long_names.get(name, name)}"
        figure = map_figure(
            values, fields.grid, style, title=title, units=units, both_hemispheres=both, note=fields.attribution
        )
        files.append(save_figure(figure, out / f"{name}.png"))
        rows.append([name, units, float(np.nanmin(values)), float(np.nanmax(values))])
    show(
        {"input": source, "range": {row[0]: row[2:] for row in rows}},
        as_json,
        columns=("variable", "unit", "least", "largest"),
        rows=rows,
        files=files,
    )

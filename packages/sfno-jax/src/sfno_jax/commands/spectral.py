"""`sht`, `spectrum`, `helmholtz` and `regrid`: transforms of real files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfno_jax.commands.console import AsJson, BadInput, Out, guarded, show

if TYPE_CHECKING:
    from sfno_jax.samples import Sample

__all__ = ["Input", "Time", "Variables", "helmholtz", "regrid", "sht", "spectrum"]

Input = Annotated[str, typer.Argument(metavar="INPUT", help="A netCDF file, a Zarr store, or a sample: era5, egm96.")]
Variables = Annotated[
    list[str] | None, typer.Option("--variable", "-v", help="Variable to take; repeat for more [default: all].")
]
Time = Annotated[int, typer.Option("--time", help="Which time of a file, counted from 0; -1 is the last.")]
Lmax = Annotated[
    int | None, typer.Option("--lmax", help="Number of degrees, l < LMAX [default: all that the grid resolves].")
]

EARTH_RADIUS = 6.37122e6


@guarded
def sht(
    source: Input,
    variable: Variables = None,
    time: Time = 0,
    lmax: Lmax = None,
    out: Out = Path("out/sht"),
    as_json: AsJson = False,
) -> None:
    """Spherical harmonic coefficients of fields, with a picture of each.

    Writes coefficients.npz: an array (lmax, mmax) of complex numbers for each variable, l first, m >= 0, orthonormal
    harmonics with the Condon-Shortley phase. The residual is what the truncation leaves, weighted by area.

    Example: sfno-jax sht egm96 --lmax 361
    """
    import numpy as np

    from sfno_jax.plotting import map_figure, save_figure

    fields = _read(source, variable, time)
    analysis, synthesis = _transforms(fields, lmax)
    rows, files, arrays = [], [], {}
    weights = fields.grid.area_weights / (4 * np.pi)
    for name, values in fields.fields.items():
        coefficients = np.asarray(analysis(values))
        back = np.asarray(synthesis(coefficients))
        arrays[name] = coefficients
        rms = [float(np.sqrt((weights * x.astype(np.float64) ** 2).sum())) for x in (values, values - back)]
        rows.append([name, fields.units[name], *rms])
        picture = out / f"{name}.png"
        style = _style(fields.grid.nlat)
        title = f"{_label(fields, name)}, l < {analysis.lmax}"
        figure = map_figure(back, fields.grid, style, title=title, units=fields.units[name], note=fields.attribution)
        files.append(save_figure(figure, picture))
    out.mkdir(parents=True, exist_ok=True)
    target = out / "coefficients.npz"
    np.savez_compressed(target, allow_pickle=False, **arrays)
    result = {
        "input": source,
        "grid": _grid(fields),
        "lmax": analysis.lmax,
        "mmax": analysis.mmax,
        "backend": analysis.backend,
        "variables": {row[0]: {"units": row[1], "rms": row[2], "residual_rms": row[3]} for row in rows},
        "attribution": fields.attribution,
    }
    show(
        result,
        as_json,
        columns=("variable", "unit", "rms", "residual rms"),
        rows=rows,
        title=f"{fields.title}: {_grid(fields)}, lmax {analysis.lmax}, {analysis.backend}",
        files=[target, *files],
    )


@guarded
def spectrum(
    source: Input,
    variable: Variables = None,
    time: Time = 0,
    lmax: Lmax = None,
    out: Out = Path("out/spectrum"),
    as_json: AsJson = False,
) -> None:
    """Power per degree of fields: a table, spectrum.csv and a picture.

    Example: sfno-jax spectrum era5 --variable geopotential
    """
    import numpy as np

    from sfno_jax.plotting import save_figure, spectrum_figure
    from sfno_jax.plotting.canvas import write
    from sfno_jax.spectral import power_spectrum

    fields = _read(source, variable, time)
    analysis, _ = _transforms(fields, lmax)
    powers = {name: np.asarray(power_spectrum(analysis(values))) for name, values in fields.fields.items()}
    lines = [",".join(["degree", *powers])]
    lines += [",".join(map(repr, [l, *(float(p[l]) for p in powers.values())])) for l in range(analysis.lmax)]
    units = sorted({f"({fields.units[name]})²" for name in powers})
    figure = spectrum_figure(
        {f"{name} [{fields.units[name]}]": power for name, power in powers.items()},
        title=f"{fields.title}: power per degree",
        units=units[0] if len(units) == 1 else "unit²",
        slopes={"$l^{-3}$": -3.0},
        note=fields.attribution,
    )
    files = [
        write(out / "spectrum.csv", ("\n".join(lines) + "\n").encode()),
        save_figure(figure, out / "spectrum.png"),
    ]
    shown = sorted({l for l in (0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512) if l < analysis.lmax})
    show(
        {
            "input": source,
            "grid": _grid(fields),
            "lmax": analysis.lmax,
            "power": {name: power.tolist() for name, power in powers.items()},
            "units": {name: fields.units[name] for name in powers},
            "attribution": fields.attribution,
        },
        as_json,
        columns=("degree", *powers),
        rows=[[l, *(float(p[l]) for p in powers.values())] for l in shown],
        title=f"{fields.title}: power per degree",
        files=files,
    )


@guarded
def helmholtz(
    source: Annotated[str, typer.Argument(metavar="[INPUT]", help="As for sht [default: era5].")] = "era5",
    u: Annotated[str, typer.Option(help="Variable of the eastward wind [m s-1].")] = "u",
    v: Annotated[str, typer.Option(help="Variable of the northward wind [m s-1].")] = "v",
    time: Time = 0,
    lmax: Lmax = None,
    radius: Annotated[float, typer.Option(help="Radius of the sphere [m].")] = EARTH_RADIUS,
    out: Out = Path("out/helmholtz"),
    as_json: AsJson = False,
) -> None:
    """Vorticity, divergence, streamfunction and velocity potential of a wind: netCDF and a picture.

    The wind is split into a rotational part k x grad(psi) and a divergent part grad(chi). Prints how much of the
    kinetic energy each holds and what the truncation leaves.

    Example: sfno-jax helmholtz era5
    """
    import numpy as np

    from sfno_jax.commands.fields import write_fields
    from sfno_jax.plotting import panel_figure, save_figure

    fields = _read(source, [u, v], time)
    wind = fields.stack((u, v))
    parts = split_wind(wind, fields.grid, lmax, radius)
    weights = fields.grid.area_weights / (4 * np.pi)

    def energy(part: Any) -> float:
        return float(0.5 * (weights * (np.asarray(part, np.float64) ** 2).sum(0)).sum())

    residual = wind - np.asarray(parts.rotational) - np.asarray(parts.divergent)
    result = {
        "input": source,
        "grid": _grid(fields),
        "kinetic_energy": energy(wind),
        "rotational_energy": energy(parts.rotational),
        "divergent_energy": energy(parts.divergent),
        "residual_energy": energy(residual),
        "vorticity_min": float(parts.vorticity.min()),
        "vorticity_max": float(parts.vorticity.max()),
        "divergence_min": float(parts.divergence.min()),
        "divergence_max": float(parts.divergence.max()),
        "attribution": fields.attribution,
    }
    panels = {
        ("vorticity", "s-1"): parts.vorticity,
        ("divergence", "s-1"): parts.divergence,
        ("streamfunction", "m2 s-1"): parts.streamfunction,
        ("velocity potential", "m2 s-1"): parts.velocity_potential,
    }
    figure = panel_figure(panels, fields.grid, _style(fields.grid.nlat), title=fields.title, note=fields.attribution)
    files = [
        *write_fields(_parts(fields, parts), out / "helmholtz.nc"),
        save_figure(figure, out / "helmholtz.png"),
    ]
    show(result, as_json, title=f"{fields.title}: Helmholtz decomposition", files=files)


def split_wind(wind: Any, grid: Any, lmax: int | None = None, radius: float = EARTH_RADIUS) -> Any:
    """The `HelmholtzDecomposition` of a wind (2, nlat, nlon) on a `SphereGrid`, at all degrees it resolves."""
    from sfno_jax.differential import helmholtz as decompose
    from sfno_jax.transforms import InverseRealSHT, InverseRealVectorSHT, RealVectorSHT

    lmax = _largest_lmax(grid) if lmax is None else lmax
    options: dict[str, Any] = {"lmax": lmax, "grid": grid.kind}
    analysis = RealVectorSHT(*grid.shape, **options)
    return decompose(
        wind, analysis, InverseRealSHT(*grid.shape, **options), InverseRealVectorSHT(*grid.shape, **options), radius
    )


@guarded
def regrid(
    source: Input,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File to write: .nc, or .zarr.")],
    nlat: Annotated[int, typer.Option(help="Latitudes of the new grid.")],
    nlon: Annotated[int, typer.Option(help="Longitudes of the new grid.")],
    grid: Annotated[
        str, typer.Option(help="legendre-gauss, equiangular (poles included), lobatto or trapezoidal.")
    ] = "legendre-gauss",
    variable: Variables = None,
    time: Time = 0,
    lmax: Lmax = None,
    as_json: AsJson = False,
) -> None:
    """Fields on another grid, by way of their spherical harmonics: smooth, and with the same area mean.

    Example: sfno-jax regrid era5 era5_gauss64.nc --nlat 64 --nlon 128
    """
    import dataclasses

    import numpy as np

    from sfno_jax.commands.fields import write_dataset
    from sfno_jax.grids import SphereGrid
    from sfno_jax.spectral import regrid as carry

    if target.suffix not in (".nc", ".zarr"):
        raise BadInput(f"TARGET is {target}; expected a name ending in .nc or .zarr")
    new = SphereGrid(nlat, nlon, grid)
    fields = _read(source, variable, time)
    moved = {name: np.asarray(carry(values, fields.grid, new, lmax=lmax)) for name, values in fields.fields.items()}
    result = dataclasses.replace(fields, fields=moved, grid=new)
    file = write_dataset(result.to_xarray(), target)
    rows = [
        [name, fields.units[name], _mean(fields[name], fields.grid), _mean(values, new)]
        for name, values in moved.items()
    ]
    show(
        {
            "input": source,
            "from": _grid(fields),
            "to": _grid(result),
            "area_means": {row[0]: {"before": row[2], "after": row[3]} for row in rows},
            "attribution": fields.attribution,
        },
        as_json,
        columns=("variable", "unit", "mean before", "mean after"),
        rows=rows,
        title=f"{_grid(fields)} to {_grid(result)}",
        files=[file],
    )


def _read(source: str, variables: list[str] | None, time: int) -> Sample:
    from sfno_jax.commands.fields import read_fields

    return read_fields(source, variables, time=time)


def _transforms(fields: Sample, lmax: int | None) -> tuple[Any, Any]:
    from sfno_jax.transforms import InverseRealSHT, RealSHT

    options: dict[str, Any] = {
        "lmax": _largest_lmax(fields.grid) if lmax is None else lmax,
        "grid": fields.grid.kind,
        "check_finite": True,
    }
    return RealSHT(*fields.grid.shape, **options), InverseRealSHT(*fields.grid.shape, **options)


def _largest_lmax(grid: Any) -> int:
    """All that a grid resolves, without the Nyquist order, whose phase it cannot tell."""
    limit = grid.default_lmax if grid.kind == "trapezoidal" else grid.max_lmax
    return int(min(limit, grid.nlon // 2))


def _label(fields: Sample, name: str) -> str:
    return f"{fields.title}, {fields.long_names.get(name, name)}"


def _grid(fields: Sample) -> str:
    return f"{fields.grid.nlat}x{fields.grid.nlon} {fields.grid.kind}"


def _style(nlat: int) -> Any:
    from sfno_jax.plotting import Map

    return Map("plate-carree" if nlat > 200 else "orthographic")


def _mean(values: Any, grid: Any) -> float:
    weights = grid.area_weights
    return float((weights * values).sum() / weights.sum())


def _parts(fields: Sample, parts: Any) -> Sample:
    import numpy as np

    from sfno_jax.samples import Sample

    units = {
        "vorticity": "s-1",
        "divergence": "s-1",
        "streamfunction": "m2 s-1",
        "velocity_potential": "m2 s-1",
        "u_rotational": "m s-1",
        "v_rotational": "m s-1",
        "u_divergent": "m s-1",
        "v_divergent": "m s-1",
    }
    values = {name: getattr(parts, name) for name in list(units)[:4]}
    for part in ("rotational", "divergent"):
        values |= {f"{axis}_{part}": getattr(parts, part)[i] for i, axis in enumerate("uv")}
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return Sample("helmholtz", fields.title, arrays, units, fields.grid, fields.attribution)

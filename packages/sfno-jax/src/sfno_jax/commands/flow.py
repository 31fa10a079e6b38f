"""`swe`: integrate the shallow-water equations, draw and animate them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sfno_jax.commands.console import AsJson, BadInput, Out, guarded, progress, show

__all__ = ["swe"]


@guarded
def swe(
    initial: Annotated[str, typer.Option(help="galewsky (a jet that breaks up) or random.")] = "galewsky",
    nlat: Annotated[int, typer.Option(help="Latitudes (Gauss).")] = 64,
    nlon: Annotated[int, typer.Option(help="Longitudes.")] = 128,
    hours: Annotated[float, typer.Option(help="How long [h].")] = 144.0,
    every: Annotated[float, typer.Option(help="Time between the states that are kept [h].")] = 3.0,
    dt: Annotated[float | None, typer.Option(help="Time step [s] [default: what is stable].")] = None,
    lmax: Annotated[int | None, typer.Option(help="Degrees [default: no aliasing of products].")] = None,
    scheme: Annotated[str, typer.Option(help="ab3, semi-implicit, or reference (torch-harmonics').")] = "ab3",
    mach: Annotated[float, typer.Option(help="Size of random winds over the wave speed.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of random states.")] = 0,
    animate: Annotated[bool, typer.Option(help="Also write an animated GIF.")] = True,
    out: Out = Path("out/swe"),
    as_json: AsJson = False,
) -> None:
    """Integrate the shallow-water equations on the rotating sphere.

    Writes swe.nc (geopotential, vorticity and divergence over time; needs sfno-jax[io]), diagnostics.json, a picture of
    the last vorticity, and swe.gif. Prints what is conserved and by how much it drifts.

    Example: sfno-jax swe --hours 144
    """
    import numpy as np

    from sfno_jax.physics import diagnose
    from sfno_jax.plotting import Map, map_figure, save_figure
    from sfno_jax.plotting import animate as write_animation
    from sfno_jax.plotting.canvas import write

    if hours <= 0 or every <= 0:
        raise BadInput(f"--hours {hours} and --every {every}; expected positive numbers")
    solver, state = _start(initial, nlat, nlon, dt, every, lmax, scheme, mach, seed)
    step = solver.parameters.dt
    block = max(1, round(every * 3600 / step))
    count = max(1, round(hours * 3600 / (block * step)))
    fields, rows = [np.asarray(solver.to_grid(state))], [(0.0, diagnose(solver, state))]
    with progress("integrating", count) as done:
        for number in range(1, count + 1):
            state = solver.integrate(state, block)
            fields.append(np.asarray(solver.to_grid(state)))
            rows.append((number * block * step / 3600, diagnose(solver, state)))
            done(number)
    states, times = np.stack(fields), np.array([time for time, _ in rows])
    first, last = rows[0][1], rows[-1][1]
    result = {
        "initial": initial,
        "nlat": nlat,
        "nlon": nlon,
        "lmax": solver.parameters.lmax,
        "scheme": scheme,
        "dt": step,
        "hours": float(times[-1]),
        "steps": block * count,
        "mass_drift": last.mass / first.mass - 1,
        "energy_drift": last.energy / first.energy - 1,
        "enstrophy_drift": last.potential_enstrophy / first.potential_enstrophy - 1,
        "largest_wind": max(abs(last.extremes[k]) for k in ("u_max", "u_min", "v_max")),
        "vorticity_max": last.extremes["vort_max"],
    }
    from sfno_jax.grids import SphereGrid

    grid = SphereGrid(nlat, nlon, "legendre-gauss")
    style = Map(center=(50.0, 270.0) if initial == "galewsky" else (35.0, 0.0))
    title = f"{'Galewsky jet' if initial == 'galewsky' else 'Random state'}, vorticity"
    picture = map_figure(states[-1, 1], grid, style, title=f"{title} after {times[-1]:g} h", units="s-1")
    table = [{"hours": float(time), **vars(d)} for time, d in rows]
    files = [
        write(out / "diagnostics.json", (json.dumps(table, indent=1) + "\n").encode()),
        save_figure(picture, out / "vorticity.png"),
    ]
    files += _netcdf(out / "swe.nc", states, times, grid)
    if animate:
        shown = np.unique(np.linspace(0, count, min(count + 1, 49)).astype(int))
        captions = [f"{times[i]:.0f} h" for i in shown]
        panels = {"vorticity": states[shown, 1]}
        style = Map(style.projection, style.center, vmin=-_range(states[:, 1]), vmax=_range(states[:, 1]))
        title = title.split(",", maxsplit=1)[0]
        files.append(write_animation(panels, grid, out / "swe.gif", style, captions=captions, title=title, units="s-1"))
    show(result, as_json, title="Shallow water", files=files)


def _start(
    initial: str,
    nlat: int,
    nlon: int,
    dt: float | None,
    every: float,
    lmax: int | None,
    scheme: str,
    mach: float,
    seed: int,
) -> tuple[Any, Any]:
    import jax

    from sfno_jax.grids import choose
    from sfno_jax.physics import ShallowWaterSolver, galewsky, random_state

    choose("--initial", initial, ("galewsky", "random"))
    options: dict[str, Any] = {"lmax": lmax, "scheme": scheme}
    if dt is None:
        # A step that divides --every, and that the wave speed at the last degree allows with some room for winds.
        probe = ShallowWaterSolver(nlat, nlon, 1.0, **options).parameters
        longest = 0.6 / (probe.largest_wavenumber * (probe.wave_speed + 100.0))
        if scheme == "semi-implicit":
            longest = 1.2 / (probe.largest_wavenumber * 100.0 + 2 * probe.omega)
        dt = every * 3600 / max(1, -(-every * 3600 // longest))
    solver = ShallowWaterSolver(nlat, nlon, dt, **options)
    state = galewsky(solver) if initial == "galewsky" else random_state(solver, jax.random.key(seed), mach=mach)
    return solver, state


def _range(values: Any) -> float:
    import numpy as np

    return float(np.quantile(np.abs(values), 0.9995)) or 1.0


def _netcdf(path: Path, states: Any, times: Any, grid: Any) -> list[Path]:
    from sfno_jax.commands.fields import write_fields
    from sfno_jax.data.shallow_water import CHANNELS, UNITS
    from sfno_jax.samples import Sample

    units = dict(zip(CHANNELS, UNITS, strict=True))
    fields = {name: states[:, i] for i, name in enumerate(CHANNELS)}
    sample = Sample("swe", "Shallow water", fields, units, grid, "sfno-jax")
    return write_fields(sample, path, time=(times, "hours"))

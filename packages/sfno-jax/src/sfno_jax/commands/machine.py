"""`doctor`, `demo` and `bench`: what runs on this machine, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sfno_jax.commands.console import AsJson, Out, guarded, show, stage

__all__ = ["bench", "demo", "doctor"]


@guarded
def doctor(as_json: AsJson = False) -> None:
    """What runs here: versions, backend, devices, data; and a check of a few known answers.

    Exit code 1 if a check fails.

    Example: sfno-jax doctor --json
    """
    from sfno_jax.doctor import describe, report, self_check

    with stage("checking"):
        facts, checks = report(), self_check()
    result = describe(facts, checks)
    if as_json:
        show(result, True)
    else:
        show(_readable(facts), False, title="sfno-jax doctor")
        rows = [
            [c.name, c.error, c.tolerance, f"{c.milliseconds:.2f} ms", "ok" if c.passed else "WRONG"] for c in checks
        ]
        show({}, False, columns=("check", "error", "tolerance", "one call", ""), rows=rows)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    native, threads, data = facts["native"], facts["threads"], facts["data"]
    kernel = f"yes, {native['instruction_set']}" if native["available"] else f"no: {native['reason']}"
    return {
        "sfno-jax": facts["sfno_jax"],
        "python": f"{facts['python']} on {facts['platform']}",
        "libraries": ", ".join(f"{k} {v or 'missing'}" for k, v in facts["libraries"].items()),
        "devices": ", ".join(facts["devices"]),
        "backend": facts["backend"],
        "native kernel": kernel,
        "processors": threads["processors"],
        "64-bit mode": "on" if facts["x64"] else "off",
        "ERA5 sample": data["era5"],
        "EGM96 geoid": data["egm96"] or data["egm96_hint"],
        **({"netCDF and Zarr": data["netcdf_hint"]} if "netcdf_hint" in data else {}),
    }


@guarded
def demo(
    seconds: Annotated[float | None, typer.Option(help="Training per network [s].")] = None,
    out: Out = Path("out/sfno-jax"),
) -> None:
    """Train an SFNO and an FNO on shallow water, roll both out, and draw it all: about two minutes.

    Example: sfno-jax demo --out out/demo
    """
    from sfno_jax.demo import DemoSettings, main

    main(out, DemoSettings() if seconds is None else DemoSettings(seconds=seconds))


@guarded
def bench(
    size: Annotated[list[int] | None, typer.Option("--nlat", help="Latitudes; repeat for more.")] = None,
    batch: Annotated[int, typer.Option(help="Fields transformed together.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Quick timing of the transforms here, Gauss grid, lmax = nlat, float32: best of several calls.

    The comparison with ducc0, torch-harmonics and s2fft, interleaved and checked for equality, is run in a clone of the
    repository by `uv run bench sfno-jax`, which writes benchmarks/sfno_jax/RESULTS.md.

    Example: sfno-jax bench --nlat 128 --nlat 256
    """
    import numpy as np

    from sfno_jax.transforms import InverseRealSHT, RealSHT

    if batch < 1:
        raise ValueError(f"--batch {batch}; expected at least 1")
    rows = []
    rng = np.random.default_rng(0)
    for nlat in size or [64, 128, 256]:
        sht = RealSHT(nlat, 2 * nlat, grid="legendre-gauss")
        isht = InverseRealSHT(nlat, 2 * nlat, grid="legendre-gauss")
        for count in sorted({1, batch}):
            field = rng.standard_normal((count, nlat, 2 * nlat)).astype(np.float32)
            forward, first = _time(sht, field)
            inverse, _ = _time(isht, np.asarray(sht(field)))
            rows.append([f"{nlat}x{2 * nlat}", count, forward, inverse, first, sht.backend])
    names = ("grid", "batch", "forward_ms", "inverse_ms", "first_call_ms", "backend")
    show(
        {"rows": [dict(zip(names, row, strict=True)) for row in rows]},
        as_json,
        columns=("grid", "batch", "forward [ms]", "inverse [ms]", "first call [ms]", "backend"),
        rows=rows,
        title="Transforms (beside other packages: `uv run bench sfno-jax` in a clone)",
    )


def _time(function: Any, x: Any, budget: float = 0.3) -> tuple[float, float]:
    """Best and first time of a call [ms]."""
    import time

    times: list[float] = []
    while len(times) < 4 or (sum(times[1:]) < budget and len(times) < 200):
        began = time.perf_counter()
        function(x).block_until_ready()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[1:]), 1e3 * times[0]

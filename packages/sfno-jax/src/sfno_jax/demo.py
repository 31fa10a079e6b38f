"""The package in two minutes: learn shallow-water dynamics on the sphere, roll them out, and draw what came of it.

An SFNO and an FNO of the same width and depth are trained for the same number of seconds on the same trajectories of
the shallow-water solver, first one step ahead, then tuned over several. Everything is seeded; what depends on the
machine is how many steps fit into the seconds.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfno_jax._files import write_atomically
from sfno_jax.experiment import Data, Experiment, Forecaster, assemble, read_data, true_trajectories
from sfno_jax.grids import SphereGrid
from sfno_jax.heap import keep_freed_memory
from sfno_jax.models import parameter_count
from sfno_jax.plotting import (
    Map,
    animate,
    curve_figure,
    map_figure,
    panel_figure,
    save_figure,
    spectrum_figure,
    triptych,
)
from sfno_jax.spectral import power_spectrum
from sfno_jax.training import TrainingConfig, load_config
from sfno_jax.training.rollout import rollout, rollout_chunks
from sfno_jax.transforms import RealSHT

__all__ = ["DemoSettings", "main"]

States = NDArray[np.float32]
Floats = NDArray[np.float64]

_LMAX = 11  # of the solver: what the networks see is resolved many times over
_ONE_STEP = "one-step training"
_AT_ONCE = 2  # programs that are compiled or rolled out side by side
_COLOURS = {"SFNO": "#2563a8", "FNO": "#d9622b"}


@dataclass(frozen=True)
class DemoSettings:
    """How much of everything; the defaults take 90 to 120 seconds on two cores.

    Attributes:
        seconds: Training time of each network at most [s], compilation not counted.
        budget: What the whole should take [s]: a slower machine trains for less, but not below `least`.
        least: See `budget` [s].
        tuning: Part of it for the multi-step fine-tune.
        n_future: Steps that the fine-tune predicts in a row.
        trajectories: Training trajectories.
        hours: Length of each [h].
        samples: Test trajectories.
        leads: Leads that are scored [h].
        long: Steps of the rollouts that test stability.
        bound: Largest value that counts as bounded [std].
        fine: Grid of the test at another resolution.
        jet: Grid and hours of the Galewsky jet.
        frames: Frames of the animation.
        seed: Of everything.
    """

    seconds: float = 27.0
    budget: float = 102.0
    least: float = 8.0
    tuning: float = 0.3
    n_future: int = 4
    trajectories: int = 40
    hours: int = 72
    samples: int = 6
    leads: tuple[int, ...] = (1, 5, 10, 48)
    long: int = 400
    bound: float = 8.0
    fine: tuple[int, int] = (64, 128)
    jet: tuple[int, int, float] = (64, 128, 144.0)
    frames: int = 17
    seed: int = 333


@dataclass
class _Result:
    """What `result.json` will hold, filled stage by stage."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        self.tables.append({"title": title, "columns": columns, "rows": [[_plain(v) for v in row] for row in rows]})

    def figure(self, path: Path, caption: str) -> None:
        self.figures.append({"file": path.name, "caption": caption})


@dataclass(frozen=True)
class _Rollout:
    """Rollouts of a network.

    Attributes:
        states: (lead, sample, channel, nlat, nlon) up to the longest lead, normalised.
        error: (lead, sample) relative L2.
        largest: (step, sample) largest absolute value [std]; NaN after all rollouts have left their bounds.
        bounded: (sample,) steps before the bound is exceeded.
        variance: (sample,) at the end, over the solver's: near 0 a rollout is bounded because it is dead.
        change: (sample,) in the last step (rms), over the solver's: near 0 it is bounded because it is frozen.
    """

    states: States
    error: Floats
    largest: Floats
    bounded: NDArray[np.int64]
    variance: Floats
    change: Floats


@dataclass(frozen=True)
class _Trained:
    """A network after each stage, with the optimiser steps each took."""

    name: str
    parameters: int
    steps: tuple[int, int]
    one_step: Forecaster
    tuned: Forecaster


def main(out: Path, settings: DemoSettings | None = None) -> None:
    """Run the demo.

    Args:
        out: Folder for the pictures and result.json.
        settings: How much of everything.
    """
    settings = settings or DemoSettings()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    keep_freed_memory()
    with np.errstate(over="ignore", invalid="ignore"):  # a rollout that blows up is a result here
        _run(out, settings)


def _run(out: Path, settings: DemoSettings) -> None:
    began = time.perf_counter()
    result = _Result()

    config = _config("sfno", settings)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        # Solving and compiling go on behind the first pictures.
        solving = pool.submit(true_trajectories, config, settings.samples, settings.long, settings.seed + 2)
        preparing = pool.submit(_prepare, config, settings, Path(folder))
        _say("real winds: ERA5 at 500 hPa, split into rotation and divergence")
        _real_wind(out, result)
        _say("shallow water: the Galewsky jet")
        _jet(out, result, settings)
        _say(
            f"shallow water: {settings.trajectories} trajectories of {settings.hours} h to learn from, and compilation"
        )
        data, runs = preparing.result()
        truth = solving.result()
        settings = _within_budget(settings, time.perf_counter() - began)
        networks = [_train(name, runs[name], settings) for name in _COLOURS]
    exact = data.normalizer.normalize(truth)
    result.table(
        "Networks, trained for the same time",
        ["network", "parameters", "one-step iterations", "multi-step iterations", "seconds"],
        [[n.name, n.parameters, *n.steps, settings.seconds] for n in networks],
    )
    _say(f"rolling out {settings.long} steps from {settings.samples} new states, beside persistence")
    forecasters = {
        f"{network.name}, {stage}": forecaster
        for network in networks
        for stage, forecaster in ((_ONE_STEP, network.one_step), (_tuned(settings), network.tuned))
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = pool.map(lambda forecaster: _roll(forecaster, exact, settings), forecasters.values())
        rollouts = dict(zip(forecasters, parts, strict=True))
    _say(f"drawing, and the same weights at {settings.fine[0]} x {settings.fine[1]}, without retraining")
    with ThreadPoolExecutor(1) as pool:
        refining = pool.submit(_fine_rollout, networks[0].tuned, config, settings)
        _errors(rollouts, exact, result, out, settings)
        _stability(rollouts, result, out, settings)
        forecasts = {n.name: rollouts[f"{n.name}, {_tuned(settings)}"].states[:, 0] for n in networks}
        _rollout_pictures(networks[0].tuned, forecasts, truth, out, result, settings)
        fine = refining.result()
    _finer(fine, networks[0].tuned, rollouts[f"SFNO, {_tuned(settings)}"], out, result, settings)

    spent = time.perf_counter() - began
    summary = _summary(rollouts, settings, spent)
    values = {
        "title": "Spherical Fourier Neural Operators on shallow water",
        "summary": summary,
        "tables": result.tables,
        "figures": result.figures,
    }
    for name, content in (("settings", dataclasses.asdict(settings)), ("result", values)):
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        write_atomically(out / f"{name}.json", text.encode())
    _say(summary)


def _within_budget(settings: DemoSettings, spent: float) -> DemoSettings:
    """Training seconds that a machine has which took so long until then; the rest takes 0.7 as long again."""
    left = (settings.budget - 1.7 * spent) / len(_COLOURS)
    return dataclasses.replace(settings, seconds=min(settings.seconds, max(settings.least, round(left, 1))))


def _say(text: str) -> None:
    print(text, flush=True)


def _plain(value: Any) -> Any:
    """A value as a table shows it: three digits, or what became of it."""
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.3g}") if np.isfinite(value) else "not finite"
    return value.item() if isinstance(value, np.generic) else value


def _config(kind: str, settings: DemoSettings) -> TrainingConfig:
    """The preset `swe-small` with the demo's sizes and two stages within its seconds."""
    tuning = settings.tuning * settings.seconds
    stages = [
        {"n_future": 1, "seconds": settings.seconds - tuning, "learning_rate": 8e-3},
        {"n_future": settings.n_future, "seconds": tuning, "learning_rate": 3e-4},
    ]
    preset = load_config("swe-small").to_dict()
    preset["model"]["kind"] = kind
    preset["data"] |= {
        "trajectories": settings.trajectories,
        "steps": settings.hours,
        "lmax": _LMAX,
        "solver_seconds": 600.0,
        "validation_trajectories": 1,
    }
    preset["trainer"] |= {"validate_every": 0, "checkpoint_every": 10**9, "remat": False}  # memory is no concern here
    return TrainingConfig.from_dict({**preset, "seed": settings.seed, "stages": stages})


def _prepare(config: TrainingConfig, settings: DemoSettings, folder: Path) -> tuple[Data, dict[str, list[Experiment]]]:
    """The data, and for each network a run of each stage, compiled."""
    data = read_data(config)
    runs: dict[str, list[Experiment]] = {name: [] for name in _COLOURS}
    for name, parts in runs.items():
        config = _config(name.lower(), settings)
        for number, stage in enumerate(config.stages):
            part = dataclasses.replace(config, stages=(stage,))
            parts.append(assemble(part, data, folder / f"{name}-{number}"))
            parts[-1].trainer.compile()
    return data, runs


def _train(name: str, runs: list[Experiment], settings: DemoSettings) -> _Trained:
    """Both stages of a network, one after the other, so that the weights between them are kept."""
    after, steps = [], []
    for number, stage in enumerate(_config(name.lower(), settings).stages):
        what = "one step ahead" if stage.n_future == 1 else f"{stage.n_future} steps ahead"
        _say(f"{name}: training {stage.seconds:.3g} s, {what}")
        trainer = runs[number].trainer
        trainer.config = dataclasses.replace(trainer.config, stages=(stage,))
        if number > 0:
            trainer.load_weights(runs[number - 1].trainer.folder)
        steps.append(trainer.run().step)
        after.append(runs[number].forecaster())
    return _Trained(name, parameter_count(after[0].model), (steps[0], steps[1]), after[0], after[1])


def _tuned(settings: DemoSettings) -> str:
    return f"{settings.n_future}-step tuned"


def _roll(forecaster: Forecaster, exact: States, settings: DemoSettings) -> _Rollout:
    """Roll out from the first true states, until the end or until every rollout has left its bounds."""
    with np.errstate(over="ignore", invalid="ignore"):  # of this thread
        return _rolled(forecaster, exact, settings)


def _rolled(forecaster: Forecaster, exact: States, settings: DemoSettings) -> _Rollout:
    first = max(settings.leads)
    kept, largest = np.empty(0, np.float32), np.full((settings.long, len(exact)), np.nan)
    variance, change = np.full((2, len(exact)), np.nan)
    for number, states in enumerate(rollout_chunks(forecaster.stepper, exact[:, 0], settings.long, chunk=first)):
        if number == 0:
            kept = states
        peak = np.abs(states).max((2, 3, 4))
        at = number * first
        largest[at : at + len(states)] = np.where(np.isfinite(peak), peak, np.inf)
        if (largest[: at + len(states)] > settings.bound).any(0).all():
            break  # what comes after is not better
        if at + len(states) == settings.long and len(states) > 1:
            (before, end), (y, z) = exact[:, settings.long - 1 : settings.long + 1].swapaxes(0, 1), states[-2:]
            grid = forecaster.grid
            variance = _square(z, grid) / _square(end, grid)
            change = np.sqrt(_square(z - y, grid) / _square(end - before, grid))
            variance, change = (np.nan_to_num(x, nan=np.inf, posinf=np.inf) for x in (variance, change))
    beyond = largest > settings.bound
    bounded = np.where(beyond.any(0), beyond.argmax(0), settings.long)
    return _Rollout(kept, _relative_l2(kept, exact, forecaster.grid), largest, bounded, variance, change)


def _relative_l2(states: States, exact: States, grid: SphereGrid) -> Floats:
    """Error of states (lead, sample, channel, nlat, nlon) over the norm of the truth: (lead, sample)."""
    truth = np.swapaxes(exact[:, 1 : len(states) + 1], 0, 1).astype(np.float64)
    return np.sqrt(_square(states - truth, grid) / _square(truth, grid))


def _square(states: NDArray[Any], grid: SphereGrid) -> Floats:
    """Integral of the square over the sphere, summed over channels: (...) of (..., channel, nlat, nlon)."""
    return np.asarray((states.astype(np.float64) ** 2 * grid.area_weights).sum((-3, -2, -1)))


def _persistence(exact: States, grid: SphereGrid, leads: int) -> Floats:
    return _relative_l2(np.repeat(exact[None, :, 0], leads, axis=0), exact, grid)


def _line(label: str) -> dict[str, Any]:
    return {"color": _COLOURS[label.partition(",")[0]], "linestyle": "--" if label.endswith(_ONE_STEP) else "-"}


def _errors(rollouts: dict[str, _Rollout], exact: States, result: _Result, out: Path, settings: DemoSettings) -> None:
    """L2 at the leads before and after the fine-tune, and the growth of errors as a picture."""
    every = np.arange(1, max(settings.leads) + 1)
    errors = {label: one.error for label, one in rollouts.items()}
    errors["persistence"] = _persistence(exact, SphereGrid(*exact.shape[-2:]), len(every))
    rows = [[label, *(error[lead - 1].mean() for lead in settings.leads)] for label, error in errors.items()]
    title = f"Relative L2 error, mean of {settings.samples} test trajectories"
    result.table(title, ["model", *(f"{lead} h" for lead in settings.leads)], rows)
    figure = curve_figure(
        every,
        {label: np.where(error < 10, error, np.nan) for label, error in errors.items()},
        styles={**{label: _line(label) for label in rollouts}, "persistence": {"color": "#6b7280", "linewidth": 1.2}},
        xlabel="lead [h]",
        title=f"Error of rollouts, {settings.samples} new trajectories",
    )
    caption = "Relative L2 error: median and range over the test trajectories"
    result.figure(save_figure(figure, out / "errors.png"), caption)


def _stability(rollouts: dict[str, _Rollout], result: _Result, out: Path, settings: DemoSettings) -> None:
    """How long each rollout stays bounded."""
    rows = [
        [
            label,
            f"{(one.bounded == settings.long).sum()} of {len(one.bounded)}",
            int(np.median(one.bounded)),
            int(one.bounded.min()),
            *(
                "stopped" if np.isnan(value) else value
                for value in (one.largest[-1].max(), np.median(one.variance), np.median(one.change))
            ),
        ]
        for label, one in rollouts.items()
    ]
    title = f"Rollouts of {settings.long} steps: bounded means within {settings.bound:g} standard deviations"
    steps = ["bounded to the end", "median steps", "fewest steps"]
    end = ["largest value at the end [std]", "variance then / solver's", "change per step then / solver's"]
    columns = ["model", *steps, *end]
    result.table(title, columns, rows)
    figure = curve_figure(
        np.arange(1, settings.long + 1),
        {label: np.where(one.largest < 1e4, one.largest, np.nan) for label, one in rollouts.items()},
        styles={label: _line(label) for label in rollouts},
        xlabel="step [h]",
        ylabel="largest value [std]",
        title=f"Stability over {settings.long} steps",
        limit=settings.bound,
        limit_label="bound",
    )
    caption = "Largest value of each rollout: median and range over the test trajectories (up to 10,000)"
    result.figure(save_figure(figure, out / "stability.png"), caption)


def _rollout_pictures(
    forecaster: Forecaster,
    forecasts: dict[str, States],
    truth: States,
    out: Path,
    result: _Result,
    settings: DemoSettings,
) -> None:
    """Animation, triptych and spectra of the first test trajectory."""
    grid, last = forecaster.grid, max(settings.leads)
    fields = {"solver": truth[0, :, 1]}
    for name, states in forecasts.items():
        fields[name] = np.concatenate([truth[0, :1, 1], forecaster.normalizer.denormalize(states)[:, 1]])
    shown = np.unique(np.linspace(0, last, min(last + 1, settings.frames)).astype(int))
    captions = [f"{i} h" for i in shown]
    panels = {name: values[shown] for name, values in fields.items()}
    largest = float(np.quantile(np.abs(panels["solver"]), 0.997))  # the first hours alone would set the range
    style = Map(vmin=-largest, vmax=largest)
    path = animate(
        panels, grid, out / "rollout.gif", style, captions=captions, title="vorticity", units="s-1", pixels=190
    )
    result.figure(path, f"Vorticity over {last} h: solver, SFNO and FNO from the same initial state")
    middle = settings.leads[-2]
    figure = triptych(
        fields["solver"][middle],
        fields["SFNO"][middle],
        grid,
        title=f"SFNO, vorticity after {middle} h",
        units="s-1",
        names=("solver", "SFNO", "error"),
    )
    result.figure(save_figure(figure, out / "triptych.png"), f"Solver, SFNO and their difference after {middle} h")
    sht = RealSHT(*grid.shape, grid=grid.kind)
    powers = {
        name: np.asarray(power_spectrum(sht((1e5 * values[middle]).astype(np.float32)))) * 1e-10
        for name, values in fields.items()
        if np.isfinite(values[middle]).all()
    }
    styles = {name: {"color": _COLOURS.get(name, "#1d2433")} for name in powers}
    title = f"Vorticity after {middle} h"
    figure = spectrum_figure(powers, truncation=_LMAX, title=title, units="s-2", decades=8, styles=styles)
    result.figure(save_figure(figure, out / "spectrum.png"), f"Power per degree of the vorticity after {middle} h")


@dataclass(frozen=True)
class _Fine:
    """The tuned SFNO on a grid it never saw, from the same initial states.

    Attributes:
        forecaster: The same weights.
        truth: (sample, time, channel, nlat, nlon) of the solver there.
        states: (lead, sample, channel, nlat, nlon), normalised.
    """

    forecaster: Forecaster
    truth: States
    states: States


def _fine_rollout(coarse: Forecaster, config: TrainingConfig, settings: DemoSettings) -> _Fine:
    nlat, nlon = settings.fine
    fine, steps = coarse.on_grid(nlat, nlon), max(settings.leads)
    truth = true_trajectories(config, settings.samples, steps, settings.seed + 2, nlat=nlat, nlon=nlon)
    return _Fine(fine, truth, rollout(fine.stepper, fine.normalizer.normalize(truth)[:, 0], steps))


def _finer(
    fine_rollout: _Fine, coarse: Forecaster, known: _Rollout, out: Path, result: _Result, settings: DemoSettings
) -> None:
    """Errors and a picture of it."""
    fine, truth, states = fine_rollout.forecaster, fine_rollout.truth, fine_rollout.states
    (nlat, nlon), steps = fine.grid.shape, len(states)
    exact = fine.normalizer.normalize(truth)
    at = [lead - 1 for lead in settings.leads]
    rows = {
        f"{coarse.grid.nlat} x {coarse.grid.nlon} (trained)": known.error,
        f"{nlat} x {nlon}": _relative_l2(states, exact, fine.grid),
        "persistence": _persistence(exact, fine.grid, steps),
    }
    result.table(
        f"The same SFNO weights at {nlat} x {nlon}, without retraining: relative L2 error",
        ["grid", *(f"{lead} h" for lead in settings.leads)],
        [[label, *error[at].mean(1)] for label, error in rows.items()],
    )
    lead = settings.leads[-2]
    figure = triptych(
        truth[0, lead, 1],
        fine.normalizer.denormalize(states[lead - 1, 0])[1],
        fine.grid,
        title=f"Trained at {coarse.grid.nlat} x {coarse.grid.nlon}, run at {nlat} x {nlon}: vorticity after {lead} h",
        units="s-1",
        names=("solver", "SFNO", "error"),
    )
    result.figure(save_figure(figure, out / "finer.png"), "The same weights on a finer grid, without retraining")


def _jet(out: Path, result: _Result, settings: DemoSettings) -> None:
    """The barotropically unstable jet of Galewsky et al., six days."""
    from sfno_jax.physics import ShallowWaterSolver, galewsky, mass

    nlat, nlon, hours = settings.jet
    solver = ShallowWaterSolver(nlat, nlon, 300.0)
    start = galewsky(solver)
    state = solver.integrate(start, round(hours * 12))
    grid = SphereGrid(nlat, nlon, "legendre-gauss")
    vorticity = np.asarray(solver.vorticity(state))
    figure = map_figure(
        vorticity,
        grid,
        Map(center=(60.0, 270.0)),
        title=f"Galewsky jet, vorticity after {hours / 24:g} days",
        units="s-1",
        both_hemispheres=False,
    )
    drift = float(mass(solver, state) / mass(solver, start) - 1)
    caption = f"The solver at {nlat} x {nlon}, T{solver.parameters.lmax - 1}: mass changed by {drift:.1e} of itself"
    result.figure(save_figure(figure, out / "galewsky.png"), caption)


def _real_wind(out: Path, result: _Result) -> None:
    """Helmholtz decomposition of a real wind."""
    from sfno_jax.commands.spectral import split_wind
    from sfno_jax.samples import era5_500hpa

    sample = era5_500hpa()
    parts = split_wind(sample.wind, sample.grid)
    panels = {
        ("vorticity", "s-1"): parts.vorticity,
        ("divergence", "s-1"): parts.divergence,
        ("streamfunction", "m2 s-1"): parts.streamfunction,
        ("velocity potential", "m2 s-1"): parts.velocity_potential,
    }
    figure = panel_figure(panels, sample.grid, Map(), title=sample.title, note=sample.attribution)
    result.figure(save_figure(figure, out / "helmholtz.png", dpi=90), f"Real wind, taken apart. {sample.attribution}")


def _summary(rollouts: dict[str, _Rollout], settings: DemoSettings, spent: float) -> str:
    first, last = settings.leads[0], settings.leads[-1]
    parts = []
    for name in _COLOURS:
        one = rollouts[f"{name}, {_tuned(settings)}"]
        errors = " / ".join(str(_plain(one.error[lead - 1].mean())) for lead in (first, last))
        whole = int((one.bounded == settings.long).sum())
        parts.append(f"{name} {errors}, bounded in {whole} of {settings.samples} rollouts of {settings.long} steps")
    return f"L2 at {first} / {last} h: {'; '.join(parts)}; {spent:.0f} s"

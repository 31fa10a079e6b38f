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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfno_jax._files import write_atomically
from sfno_jax.experiment import Data, Forecaster, assemble, read_data, true_trajectories
from sfno_jax.grids import SphereGrid
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
from sfno_jax.training import TrainingConfig, load_config
from sfno_jax.training.rollout import LeadScores, evaluate_leads, rollout

__all__ = ["DemoSettings", "main"]

States = NDArray[np.float32]

_COLOURS = {"SFNO": "#2563a8", "FNO": "#d9622b"}


@dataclass(frozen=True)
class DemoSettings:
    """How much of everything; the defaults take about 100 seconds on two cores.

    Attributes:
        seconds: Training time of each network [s], compilation not counted.
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

    seconds: float = 24.0
    tuning: float = 0.5
    n_future: int = 4
    trajectories: int = 40
    hours: int = 72
    samples: int = 6
    leads: tuple[int, ...] = (1, 5, 10, 48)
    long: int = 400
    bound: float = 8.0
    fine: tuple[int, int] = (64, 128)
    jet: tuple[int, int, float] = (64, 128, 144.0)
    frames: int = 49
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
    began = time.perf_counter()
    settings = settings or DemoSettings()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    result = _Result()

    _say("real winds: ERA5 at 500 hPa, split into rotation and divergence")
    _real_wind(out, result)
    _say("shallow water: the Galewsky jet")
    _jet(out, result, settings)

    config = _config("sfno", settings)
    _say(f"shallow water: {settings.trajectories} trajectories of {settings.hours} h to learn from")
    data = read_data(config)
    truth = true_trajectories(config, settings.samples, max(settings.leads), settings.seed + 2)
    exact = data.normalizer.normalize(truth)
    networks = []
    for name in ("SFNO", "FNO"):
        networks.append(_train(name, _config(name.lower(), settings), data, settings))
    result.table(
        "Networks, trained for the same time",
        ["network", "parameters", "one-step iterations", "multi-step iterations", "seconds"],
        [[n.name, n.parameters, *n.steps, settings.seconds] for n in networks],
    )
    _say("scoring rollouts beside persistence")
    scores = _scores(networks, exact, result, out, settings)
    _say(f"rolling out {settings.long} steps")
    bounded = _stability(networks, exact[:, 0], result, out, settings)
    _say("drawing")
    _rollout_pictures(networks, truth, out, result, settings)
    _say(f"the same weights at {settings.fine[0]} x {settings.fine[1]}, without retraining")
    _finer(networks[0], config, scores, out, result, settings)

    spent = time.perf_counter() - began
    summary = _summary(scores, bounded, settings, spent)
    values = {
        "title": "Spherical Fourier Neural Operators on shallow water",
        "summary": summary,
        "tables": result.tables,
        "figures": result.figures,
        "seconds": round(spent, 1),
        "settings": dataclasses.asdict(settings),
    }
    write_atomically(out / "result.json", (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
    _say(summary)


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
        {"n_future": 1, "seconds": settings.seconds - tuning, "learning_rate": 2e-3},
        {"n_future": settings.n_future, "seconds": tuning, "learning_rate": 5e-4},
    ]
    preset = load_config("swe-small").to_dict()
    preset["model"]["kind"] = kind
    preset["data"] |= {
        "trajectories": settings.trajectories,
        "steps": settings.hours,
        "lmax": 11,
        "solver_seconds": 600.0,
        "validation_trajectories": 1,
    }
    preset["trainer"] |= {"validate_every": 0, "checkpoint_every": 10**9}
    return TrainingConfig.from_dict({**preset, "seed": settings.seed, "stages": stages})


def _train(name: str, config: TrainingConfig, data: Data, settings: DemoSettings) -> _Trained:
    """Both stages of a network, as two runs, so that the weights between them are kept."""
    after, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        weights = None
        for number, stage in enumerate(config.stages):
            what = "one step ahead" if stage.n_future == 1 else f"{stage.n_future} steps ahead"
            _say(f"{name}: training {stage.seconds:.3g} s, {what}")
            run = Path(folder) / str(number)
            part = dataclasses.replace(config, stages=(stage,))
            experiment = assemble(part, data, run)
            if weights is not None:
                experiment.trainer.load_weights(weights)
            steps.append(experiment.trainer.run().step)
            after.append(experiment.forecaster())
            weights = run
    return _Trained(name, parameter_count(after[0].model), (steps[0], steps[1]), after[0], after[1])


def _scores(
    networks: list[_Trained], exact: States, result: _Result, out: Path, settings: DemoSettings
) -> dict[str, LeadScores]:
    """L2 at the leads before and after the fine-tune, and the growth of errors as a picture."""
    every = list(range(1, max(settings.leads) + 1))
    scores: dict[str, LeadScores] = {}
    curves: dict[str, Any] = {}
    styles: dict[str, dict[str, Any]] = {}
    for network in networks:
        for label, forecaster in ((f"{network.name}, one-step", network.one_step), (network.name, network.tuned)):
            scores[label] = evaluate_leads(forecaster.stepper, exact, every, forecaster.grid.kind)
            curves[label if "," in label else f"{label}, {settings.n_future}-step tuned"] = scores[label].relative_l2
    for label in curves:
        one = "one-step" in label
        styles[label] = {"color": _COLOURS[label.split(",")[0]], "linestyle": "--" if one else "-"}
    curves["persistence"] = scores["SFNO"].persistence_l2
    styles["persistence"] = {"color": "#6b7280", "linewidth": 1.2}
    figure = curve_figure(
        every,
        {label: np.where(values < 10, values, np.nan) for label, values in curves.items()},
        styles=styles,
        xlabel="lead [h]",
        title=f"Error of rollouts, {settings.samples} new trajectories",
    )
    result.figure(save_figure(figure, out / "errors.png"), "Relative L2 error; bands run over the test trajectories")
    rows = [
        [label, *(score.relative_l2[lead - 1].mean() for lead in settings.leads)]
        for label, score in {**{k.replace("one-step", "one-step training"): v for k, v in scores.items()}}.items()
    ]
    rows = [[row[0] if "," in row[0] else f"{row[0]}, {settings.n_future}-step tuned", *row[1:]] for row in rows]
    persistence = [scores["SFNO"].persistence_l2[lead - 1].mean() for lead in settings.leads]
    rows.append(["persistence", *persistence])
    columns = ["model", *(f"{lead} h" for lead in settings.leads)]
    result.table(f"Relative L2 error, mean of {settings.samples} test trajectories", columns, rows)
    return scores


def _stability(
    networks: list[_Trained], initial: States, result: _Result, out: Path, settings: DemoSettings
) -> dict[str, NDArray[np.int64]]:
    """How long each rollout stays bounded."""
    rows, curves, bounded = [], {}, {}
    styles: dict[str, dict[str, Any]] = {}
    for network in networks:
        for stage, forecaster in (("one-step training", network.one_step), ("tuned", network.tuned)):
            states = rollout(forecaster.stepper, initial, settings.long)
            with np.errstate(invalid="ignore"):
                largest = np.abs(states).max((2, 3, 4))
            largest = np.where(np.isfinite(largest), largest, np.inf)
            beyond = largest > settings.bound
            steps = np.where(beyond.any(0), beyond.argmax(0), settings.long)
            label = f"{network.name}, {stage}"
            bounded[label] = steps
            curves[label] = np.minimum(largest, 1e4)
            styles[label] = {"color": _COLOURS[network.name], "linestyle": "-" if stage == "tuned" else "--"}
            whole = int((steps == settings.long).sum())
            rows.append([label, f"{whole} of {len(steps)}", int(np.median(steps)), int(steps.min()), largest[-1].max()])
    title = f"Rollouts of {settings.long} steps: bounded means within {settings.bound:g} standard deviations"
    columns = ["model", "bounded to the end", "median steps", "fewest steps", "largest value at the end [std]"]
    result.table(title, columns, rows)
    figure = curve_figure(
        np.arange(1, settings.long + 1),
        curves,
        styles=styles,
        xlabel="step [h]",
        ylabel="largest value [std]",
        title=f"Stability over {settings.long} steps",
        limit=settings.bound,
        limit_label="bound",
    )
    caption = "Largest value of each rollout: median and range over the test trajectories (cut at 10,000)"
    result.figure(save_figure(figure, out / "stability.png"), caption)
    return bounded


def _rollout_pictures(
    networks: list[_Trained], truth: States, out: Path, result: _Result, settings: DemoSettings
) -> None:
    """Animation, triptych and spectra of the first test trajectory."""
    from sfno_jax.spectral import power_spectrum
    from sfno_jax.transforms import RealSHT

    sfno = networks[0].tuned
    grid, last = sfno.grid, max(settings.leads)
    forecasts = {}
    for network in networks:
        start = network.tuned.normalizer.normalize(truth[:1, 0])
        states = rollout(network.tuned.stepper, start, last)[:, 0]
        forecasts[network.name] = np.concatenate([truth[0, :1], network.tuned.normalizer.denormalize(states)])
    shown = np.unique(np.linspace(0, last, min(last + 1, settings.frames)).astype(int))
    panels = {"solver": truth[0, shown, 1], **{name: states[shown, 1] for name, states in forecasts.items()}}
    captions = [f"{i} h" for i in shown]
    path = animate(panels, grid, out / "rollout.gif", captions=captions, title="vorticity", units="s-1", pixels=190)
    result.figure(path, f"Vorticity over {last} h: solver, SFNO and FNO from the same initial state")
    middle = settings.leads[-2]
    figure = triptych(
        truth[0, middle, 1],
        forecasts["SFNO"][middle, 1],
        grid,
        title=f"SFNO, vorticity after {middle} h",
        units="s-1",
        names=("solver", "SFNO", "error"),
    )
    result.figure(save_figure(figure, out / "triptych.png"), f"Solver, SFNO and their difference after {middle} h")
    sht = RealSHT(*grid.shape, grid=grid.kind)
    powers = {"solver": truth[0, last, 1], **{name: states[last, 1] for name, states in forecasts.items()}}
    figure = spectrum_figure(
        {name: np.asarray(power_spectrum(sht(values * 1e5))) * 1e-10 for name, values in powers.items()},
        truncation=11,
        title=f"Vorticity after {last} h",
        units="s-2",
    )
    result.figure(save_figure(figure, out / "spectrum.png"), f"Power per degree of the vorticity after {last} h")


def _finer(
    network: _Trained,
    config: TrainingConfig,
    scores: dict[str, LeadScores],
    out: Path,
    result: _Result,
    settings: DemoSettings,
) -> None:
    """The tuned SFNO on a grid it never saw, from the same initial states."""
    nlat, nlon = settings.fine
    fine = network.tuned.on_grid(nlat, nlon)
    steps = max(settings.leads)
    truth = true_trajectories(config, settings.samples, steps, settings.seed + 2, nlat=nlat, nlon=nlon)
    exact = fine.normalizer.normalize(truth)
    score = evaluate_leads(fine.stepper, exact, settings.leads, fine.grid.kind)
    coarse = [scores["SFNO"].relative_l2[lead - 1].mean() for lead in settings.leads]
    grid = network.tuned.grid
    result.table(
        f"The same SFNO weights at {nlat} x {nlon}, without retraining: relative L2 error",
        ["grid", *(f"{lead} h" for lead in settings.leads)],
        [
            [f"{grid.nlat} x {grid.nlon} (trained)", *coarse],
            [f"{nlat} x {nlon}", *score.relative_l2.mean(1)],
            ["persistence", *score.persistence_l2.mean(1)],
        ],
    )
    lead = settings.leads[-2]
    forecast = fine.normalizer.denormalize(rollout(fine.stepper, exact[:1, 0], lead)[-1, 0])
    figure = triptych(
        truth[0, lead, 1],
        forecast[1],
        fine.grid,
        title=f"Trained at {grid.nlat} x {grid.nlon}, run at {nlat} x {nlon}: vorticity after {lead} h",
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


def _summary(
    scores: dict[str, LeadScores], bounded: dict[str, NDArray[np.int64]], settings: DemoSettings, spent: float
) -> str:
    first, last = settings.leads[0], settings.leads[-1]

    def l2(name: str, lead: int) -> str:
        return f"{_plain(scores[name].relative_l2[lead - 1].mean())}"

    whole = {name: int((bounded[f"{name}, tuned"] == settings.long).sum()) for name in ("SFNO", "FNO")}
    return (
        f"L2 at {first} / {last} h: SFNO {l2('SFNO', first)} / {l2('SFNO', last)}, "
        f"FNO {l2('FNO', first)} / {l2('FNO', last)}; bounded for {settings.long} steps: SFNO {whole['SFNO']}, "
        f"FNO {whole['FNO']} of {settings.samples}; {spent:.0f} s"
    )

"""`train`, `finetune`, `rollout`, `evaluate` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfno_jax.commands.console import AsJson, BadInput, Out, guarded, notice, progress, show, stage

if TYPE_CHECKING:
    from sfno_jax.experiment import Forecaster
    from sfno_jax.training import TrainingConfig

__all__ = ["evaluate", "export", "finetune", "rollout", "train"]

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a run or of an exported model, or a Hugging Face hub id.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as trainer.batch_size=4."),
]
Cache = Annotated[Path | None, typer.Option(help="Folder where generated data are kept for the next run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")]


@guarded
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or a preset: swe-small, swe-paper.")],
    settings: Settings = None,
    out: Out = Path("out/train"),
    cache: Cache = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a network as a configuration says; a killed run goes on exactly with --resume.

    Example: sfno-jax train swe-small --set stages.0.seconds=60 --out out/small
    """
    from sfno_jax.training import load_config

    _run(load_config(config, settings or ()), out, cache, resume=resume, as_json=as_json)


@guarded
def finetune(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    n_future: Annotated[int, typer.Option(help="Steps that are predicted in a row.")] = 4,
    steps: Annotated[int | None, typer.Option(help="Budget in optimiser steps.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget in seconds [default: 300].")] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")] = 5e-4,
    noise: Annotated[float, typer.Option(help="Noise added to inputs [std].")] = 0.0,
    settings: Settings = None,
    out: Out = Path("out/finetune"),
    cache: Cache = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Tune a trained network on several steps in a row: what makes long rollouts stable.

    Example: sfno-jax finetune out/small --n-future 4 --seconds 120
    """
    import json

    from sfno_jax.experiment import overridden
    from sfno_jax.training import TrainingConfig

    if not (model / "config.json").is_file():
        raise BadInput(f"no training run in {model}: expected a folder that `sfno-jax train` wrote")
    if steps is None and seconds is None:
        seconds = 300.0
    budget: dict[str, Any] = {} if steps is None else {"steps": steps}
    budget |= {} if seconds is None else {"seconds": seconds}
    stage = {"n_future": n_future, "learning_rate": learning_rate, "noise": noise, **budget}
    before = TrainingConfig.from_dict(json.loads((model / "config.json").read_text()))
    config = overridden(before, settings or (), stages=[stage])
    _run(config, out, cache, resume=resume, as_json=as_json, weights=model)


def _run(
    config: TrainingConfig,
    out: Path,
    cache: Path | None,
    *,
    resume: bool,
    as_json: bool,
    weights: Path | None = None,
) -> None:
    from sfno_jax.experiment import prepare
    from sfno_jax.models import parameter_count

    started = any((out / "checkpoints").glob("step-*"))
    if started and not resume:
        raise BadInput(f"{out} holds a run already: go on with --resume, or choose another --out")
    with progress("trajectories", 1.0) as done:
        experiment = prepare(config, out, cache=cache, report=lambda n, total: done(n / total))
    trainer = experiment.trainer
    if resume and not trainer.resume():
        notice(f"no checkpoint in {out}: starting anew")
        started = False
    if weights is not None and not started:
        trainer.load_weights(weights)
    reached = trainer.run()
    validated = {
        f"validation_loss_{n}": trainer.validate(n) for n in sorted({1, max(s.n_future for s in config.stages)})
    }
    result = {
        "run": str(out),
        "model": config.model.kind,
        "parameters": parameter_count(trainer.model()),
        "steps": reached.step,
        **validated,
    }
    show(result, as_json, title="Trained", files=[out / "config.json", out / "log.jsonl"])


@guarded
def rollout(
    model: Model,
    source: Annotated[
        str, typer.Option("--input", help="Initial fields: a file or store with the model's channels, or `random`.")
    ] = "random",
    time: Annotated[int, typer.Option("--time", help="Which time of the file.")] = 0,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 48,
    seed: Annotated[int, typer.Option(help="Of a random initial state.")] = 12345,
    nlat: Annotated[int | None, typer.Option(help="Roll out on another grid (with --nlon).")] = None,
    nlon: Annotated[int | None, typer.Option(help="Its longitudes.")] = None,
    channel: Annotated[str | None, typer.Option(help="What is drawn [default: vorticity, or the first].")] = None,
    out: Out = Path("out/rollout"),
    as_json: AsJson = False,
) -> None:
    """Apply a model to its own output: rollout.nc, a picture and an animated GIF.

    From a random state of the shallow-water equations the solver runs beside the model.

    Example: sfno-jax rollout out/small --steps 72
    """
    import numpy as np

    from sfno_jax.plotting import Map, animate, save_figure, triptych
    from sfno_jax.training.rollout import rollout as roll

    if steps < 1:
        raise BadInput(f"--steps {steps}; expected at least 1")
    forecaster = _open(model, nlat, nlon)
    names = forecaster.normalizer.channels
    channel = channel or ("vorticity" if "vorticity" in names else names[0])
    if channel not in names:
        raise BadInput(f"--channel {channel!r} is not one of the model's: {', '.join(names)}")
    truth = None
    if source == "random":
        truth = _truth(forecaster, 1, steps, seed)[0]
        start = truth[0]
    else:
        start = _initial(forecaster, source, time)
    with stage("rolling out"):
        first = forecaster.normalizer.normalize(np.asarray(start, np.float32))
        states = roll(forecaster.stepper, first[None], steps)[:, 0]
    largest = np.abs(states).max((1, 2, 3))
    finite = np.isfinite(largest)
    fields = np.concatenate([np.asarray(start)[None], forecaster.normalizer.denormalize(states)])
    at, units = names.index(channel), forecaster.normalizer.units[names.index(channel)]
    last = int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0
    result = {
        "model": model,
        "steps": steps,
        "grid": f"{forecaster.grid.nlat}x{forecaster.grid.nlon} {forecaster.grid.kind}",
        "finite_steps": last,
        "largest_std_at_end": float(largest[-1]),
    }
    shown = np.unique(np.linspace(0, last, min(last + 1, 49)).astype(int))
    panels = {} if truth is None else {"solver": truth[shown, at]}
    panels["model"] = fields[shown, at]
    hours = forecaster.config.data.step_seconds / 3600 if forecaster.config else None
    captions = [f"{i * hours:g} h" if hours else f"step {i}" for i in shown]
    files = [
        *_save_states(forecaster, fields, out / "rollout.nc"),
        animate(panels, forecaster.grid, out / "rollout.gif", captions=captions, title=channel, units=units),
    ]
    if truth is not None:
        figure = triptych(
            truth[last, at], fields[last, at], forecaster.grid, Map(), title=f"{channel}, {captions[-1]}", units=units
        )
        files.append(save_figure(figure, out / "last.png"))
    show(result, as_json, title="Rollout", files=files)


@guarded
def evaluate(
    model: Model,
    leads: Annotated[str, typer.Option(help="Leads that are scored [steps].")] = "1,5,10,48",
    samples: Annotated[int, typer.Option(help="Trajectories.")] = 6,
    long: Annotated[int, typer.Option(help="Steps of the stability test; 0 for none.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the test trajectories.")] = 12345,
    nlat: Annotated[int | None, typer.Option(help="Evaluate on another grid (with --nlon).")] = None,
    nlon: Annotated[int | None, typer.Option(help="Its longitudes.")] = None,
    out: Out = Path("out/evaluate"),
    as_json: AsJson = False,
) -> None:
    """Score a shallow-water model beside persistence on new trajectories, and say how long it stays stable.

    Relative L2 is over all channels, normalised by the training statistics; 1 is as far off as the mean state.

    Example: sfno-jax evaluate out/small --leads 1,10,48 --long 1460
    """
    import numpy as np

    from sfno_jax.plotting import curve_figure, save_figure
    from sfno_jax.training.rollout import evaluate_leads, evaluate_stability

    try:
        wanted = [int(part) for part in leads.split(",")]
    except ValueError:
        raise BadInput(f"--leads {leads!r}; expected numbers of steps, such as 1,5,10,48") from None
    if samples < 1 or long < 0:
        raise BadInput(f"--samples {samples} and --long {long}; expected at least 1 and 0")
    forecaster = _open(model, nlat, nlon)
    with stage("integrating the truth"):
        truth = forecaster.normalizer.normalize(_truth(forecaster, samples, max([*wanted, 1]), seed))
    with stage("scoring"):
        scores = evaluate_leads(forecaster.stepper, truth, wanted, forecaster.grid.kind)
    result: dict[str, Any] = {"model": model, "samples": samples, "leads": scores.rows()}
    if long:
        with stage(f"rolling out {long} steps"):
            report = evaluate_stability(forecaster.stepper, truth[:, 0], truth, forecaster.grid.kind, steps=long)
        result["stability"] = {
            "steps": long,
            "bounded_for": report.bounded_for.tolist(),
            "plausible": report.plausible.tolist(),
            "reasons": list(report.reasons),
        }
    curves = {"model": scores.relative_l2, "persistence": scores.persistence_l2}
    figure = curve_figure(np.array(scores.leads), curves, title=f"{model}: relative L2 of {samples} trajectories")
    rows = [[row["lead"], row["l2"], row["persistence_l2"], row["acc"]] for row in result["leads"]]
    files = [save_figure(figure, out / "errors.png")]
    columns = ("lead [steps]", "relative L2", "persistence", "anomaly correlation")
    show(result, as_json, columns=columns, rows=rows, title=f"{model}, {samples} trajectories", files=files)
    if long and not as_json:
        show({"bounded for [steps]": str(result["stability"]["bounded_for"])}, False, title=f"{long} steps")
        for reason in result["stability"]["reasons"]:
            notice(reason)


@guarded
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to write.")],
    stablehlo: Annotated[bool, typer.Option("--stablehlo", help="Also write one step as portable StableHLO.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained network as a folder with safetensors, config.json and a model card.

    `sfno_jax.from_pretrained(TARGET)` reads it. With --stablehlo, step.stablehlo holds one step in normalised units for
    CPU, CUDA and TPU; `jax.export.deserialize` reads it without this package.

    Example: sfno-jax export out/small out/model
    """
    from sfno_jax.experiment import export_run, export_stablehlo, open_run
    from sfno_jax.models import parameter_count

    if not (run / "config.json").is_file():
        raise BadInput(f"no training run in {run}: expected a folder that `sfno-jax train` wrote")
    export_run(run, target)
    if stablehlo:
        export_stablehlo(run, target / "step.stablehlo")
    files = sorted(file for file in target.iterdir() if file.is_file())
    result = {"run": str(run), "target": str(target), "parameters": parameter_count(open_run(target).model)}
    show(result, as_json, title="Exported", files=files)


def _open(model: str, nlat: int | None, nlon: int | None) -> Forecaster:
    from sfno_jax.experiment import open_run

    if (nlat is None) != (nlon is None):
        raise BadInput("--nlat and --nlon belong together")
    forecaster = open_run(model)
    return forecaster if nlat is None or nlon is None else forecaster.on_grid(nlat, nlon)


def _truth(forecaster: Forecaster, count: int, steps: int, seed: int) -> Any:
    from sfno_jax.experiment import true_trajectories

    config, grid = forecaster.config, forecaster.grid
    if config is None or config.data.source != "shallow-water":
        raise BadInput(
            "this model was not trained on shallow water (or training.json is missing from its folder), so there is no "
            "solver to compare with; give initial fields with `rollout --input`"
        )
    if seed in (config.seed, config.seed + 1):
        raise BadInput(f"--seed {seed} is that of the training data; choose another")
    return true_trajectories(config, count, steps, seed, nlat=grid.nlat, nlon=grid.nlon)


def _initial(forecaster: Forecaster, source: str, time: int) -> Any:
    from sfno_jax.commands.fields import read_fields

    names = list(forecaster.normalizer.channels)
    fields = read_fields(source, names, time=time)
    if fields.grid != forecaster.grid:
        raise BadInput(
            f"{source} is on {fields.grid}, the model on {forecaster.grid}: bring the fields there with `sfno-jax "
            "regrid`, or the model with --nlat and --nlon"
        )
    return fields.stack(names)


def _save_states(forecaster: Forecaster, fields: Any, path: Path) -> list[Path]:
    import numpy as np

    from sfno_jax.commands.fields import write_fields
    from sfno_jax.samples import Sample

    n = forecaster.normalizer
    arrays = {name: fields[:, i] for i, name in enumerate(n.channels)}
    units = dict(zip(n.channels, n.units, strict=True))
    sample = Sample("rollout", "Rollout", arrays, units, forecaster.grid, "sfno-jax")
    return write_fields(sample, path, time=(np.arange(len(fields)), "steps"))

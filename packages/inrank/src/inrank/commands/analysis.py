"""`theory`, `null-model`, `plan` and `spectrum`: what ranks mean, before and after training."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inrank.commands.console import AsJson, BadInput, Out, Seed, guarded, notice, progress, show, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inrank.experiments import DigitsRun
    from inrank.memory import StateBytes
    from inrank.spectrum_history import SpectrumRecord

__all__ = ["null_model", "plan", "spectrum", "theory"]

Threshold = Annotated[float, typer.Option("--threshold", help="Explained ratio, in (0, 1].")]

_THEORY_TOLERANCE = 1e-6
_MEGABYTE = 1e6
_SHARE = 0.9  # of the energy: what counts as explained when networks learn digits


@guarded
def theory(
    gain: Annotated[
        list[float] | None, typer.Option("--gain", help="Gain; repeat for more [default: .1 .3 1].")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Fail if theory and simulation differ by 1e-6.")] = False,
    out: Out = Path("out/theory"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Three-layer linear networks: closed-form modes of D against simulation, and where D is not of low rank.

    Writes theory.png.

    Example: inrank theory --out out/theory --check
    """
    import numpy as np

    from inrank.linear_network import ThreeLayerLinear
    from inrank.plotting import save_figure, theory_figure
    from inrank.theory import check as compare

    gains = tuple(sorted(gain or (0.1, 0.3, 1.0)))
    for value in gains:
        if not 0 < value < math.inf:
            raise BadInput(f"--gain is {value}; a gain must be positive and finite")
    target = (10.0, 7.0, 5.0, 3.0, 2.0)
    size, end = 20, 4.0
    with stage("gradient flow"):
        rows = compare(gains, singular_values=target, size=size, end=end, seed=seed)
        s = np.pad(target, (0, size - len(target)))
        times = np.linspace(0, end, 25)
        runs = [ThreeLayerLinear.aligned(s, gain=a, seed=seed).flow(times) for a in gains]
    dots = [(run.times, run.update_spectra[:, 0]) for run in runs]
    figure = theory_figure(gains, singular_values=target, unused=size - len(target), simulated=dots, end=end)
    path = save_figure(figure, out / "theory.png")
    worst = max(row.largest_difference for row in rows)
    not_low = [row for row in rows if not row.is_low_rank]
    statement = "D is of low rank at every gain shown."
    if not_low:
        row = not_low[-1]
        statement = (
            f"At gain {row.gain:g} D is not of low rank although the target is: the {size - row.rank} directions that "
            f"the target does not use have all moved by {row.null_shift:.3f} at t = {end:g}, and {row.numerical_rank} "
            f"singular values of D are above a tenth of the largest. Incremental learning of low rank needs a small "
            "gain (0.3 or less), or early times."
        )
    show(
        {
            "gains": [{**dataclasses.asdict(row), "is_low_rank": row.is_low_rank} for row in rows],
            "largest_difference": worst,
            "tolerance": _THEORY_TOLERANCE,
            "statement": statement,
        },
        as_json,
        columns=("gain", "s a t(half), s=10..2", "|sigma(D) - |w-a||", "unused moved", "weakest mode", "rank of D"),
        rows=[
            (
                f"{row.gain:g}",
                f"{max(row.half_rise):.3f}..{min(row.half_rise):.3f}",
                f"{row.largest_difference:.1e}",
                f"{row.null_shift:.3f}",
                f"{row.smallest_learned:.3f}",
                f"{row.numerical_rank} (target {row.rank})",
            )
            for row in rows
        ],
        title=f"Three-layer linear network, {size} x {size}, target of rank {len(target)}, at t = {end:g}",
        note=statement,
        files=[path],
    )
    if check and worst >= _THEORY_TOLERANCE:
        raise ArithmeticError(f"theory and simulation differ by {worst:.1e}; expected less than {_THEORY_TOLERANCE}")


@guarded
def null_model(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHAPE...]", help="small, medium, large, xl or OUTxIN [default: the first three]."),
    ] = None,
    threshold: Threshold = 0.9,
    buffer: Annotated[int, typer.Option("--buffer", min=1, help="Directions beyond the rank.")] = 100,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Initial rank.")] = 2,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Rank that the official rule gives on layers that were never trained, beside the published ranks.

    Example: inrank null-model small 512x2048 --threshold 0.9
    """
    from inrank.config import InRankConfig
    from inrank.null_model import GPT2_MLP_SHAPES, PUBLISHED_RANKS, mean_null_rank

    config = InRankConfig.official(threshold=threshold, buffer=buffer, rank=rank)
    asked = shapes or ["small", "medium", "large"]
    found = []
    with progress("untrained layers", len(asked)) as done:
        for number, name in enumerate(asked, 1):
            short = name.lower().removeprefix("gpt2-")
            sizes = GPT2_MLP_SHAPES[short] if short in GPT2_MLP_SHAPES else (_shape(name),)
            mean, layers = mean_null_rank(sizes, config, seeds=range(seeds))
            standard = buffer == 100 and rank == 2
            published = PUBLISHED_RANKS.get((short, threshold)) if standard else None
            found.append(
                {
                    "shape": name,
                    "layers": [f"{m}x{n}" for m, n in sizes],
                    "null_rank": mean,
                    "ranks": [layer.rank for layer in layers],
                    "checks": max(layer.checks for layer in layers),
                    "of_full_rank": mean / min(sizes[0]),
                    "published": published,
                    "difference": None if published is None else mean / published - 1,
                }
            )
            done(number)
    show(
        {"threshold": threshold, "buffer": buffer, "initial_rank": rank, "seeds": seeds, "shapes": found},
        as_json,
        columns=("shape", "null rank", "of min(m, n)", "checks", "published", "difference"),
        rows=[
            (
                row["shape"],
                f"{row['null_rank']:.1f}",
                f"{row['of_full_rank']:.1%}",
                row["checks"],
                row["published"],
                None if row["difference"] is None else f"{row['difference']:+.2%}",
            )
            for row in found
        ],
        title=f"The official rule (threshold {threshold:g}, buffer {buffer}) without any training",
        note="Published: mean rank after training. Where both agree, the rank says nothing about the task.",
    )


@guarded
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="gpt2-small, -medium, -large, -xl, or OUTxIN.")],
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Directions, buffer included.")],
    attention: Annotated[
        bool, typer.Option("--attention", help="Attention's matrices too, not just the MLP's.")
    ] = False,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, momentum, adam or adamw.")] = "adamw",
    as_json: AsJson = False,
) -> None:
    """Parameters, operations and memory of a shape at a rank, before anything is allocated.

    Example: inrank plan gpt2-medium --rank 287
    """
    from inrank.flops import BLOCK_MATRICES, MLP_MATRICES, break_even_rank, gpt_cost, gpt_shape, layer_cost
    from inrank.memory import planned_states

    costs: dict[str, tuple[int, int, int, int]] = {}  # trained, frozen, operations in weights, all operations
    if re.fullmatch(r"\d+[xX]\d+", model):
        m, n = _shape(model)
        shape, limit = (m, n), break_even_rank(m, n)
        for name, layer in (
            ("dense", layer_cost(m, n)),
            ("InRank-Efficient", layer_cost(m, n, rank)),
            ("InRank (W_0 kept)", layer_cost(m, n, rank, keeps_dense=True)),
        ):
            costs[name] = (layer.trained, layer.frozen, layer.training, layer.training)
    else:
        config = gpt_shape(model)
        shape = (4 * config.width, config.width)
        matrices = BLOCK_MATRICES if attention else MLP_MATRICES
        limit = min(break_even_rank(*shape), config.width / 2) if attention else break_even_rank(*shape)
        for name, gpt in (
            ("dense", gpt_cost(config)),
            ("InRank-Efficient", gpt_cost(config, rank, matrices=matrices)),
            ("InRank (W_0 kept)", gpt_cost(config, rank, matrices=matrices, keeps_dense=True)),
        ):
            costs[name] = (gpt.parameters, gpt.frozen, gpt.weights_training, gpt.training)
    states = {name: planned_states(c[0], c[1], optimizer=optimizer) for name, c in costs.items()}
    variants = {name: _variant(cost, states[name], costs["dense"], states["dense"]) for name, cost in costs.items()}
    without_training = _official_null(shape)
    if rank > limit:
        notice(f"warning: rank {rank} is above the break-even rank {limit:.0f}; it costs more than the dense weight")
    null = "" if without_training is None else f"; the official rule gives {without_training} without training"
    show(
        {
            "model": model,
            "rank": rank,
            "optimizer": optimizer,
            "break_even_rank": limit,
            "null_rank": without_training,
            "variants": variants,
        },
        as_json,
        columns=("variant", "trained", "frozen", "of dense", "FLOP/token", "of dense", "with attn", "MB", "of dense"),
        rows=[
            (
                name,
                _short(v["trained"]),
                _short(v["frozen"]),
                f"{v['parameter_ratio']:.3f}",
                _short(v["training_flops"]),
                f"{v['weight_flop_ratio']:.3f}",
                f"{v['flop_ratio']:.3f}",
                f"{v['state_bytes'] / _MEGABYTE:,.1f}",
                f"{v['state_ratio']:.3f}",
            )
            for name, v in variants.items()
        ],
        title=f"{model} at rank {rank}, {optimizer}, float32",
        note=f"MB: weights, gradients and moments. Break-even rank {limit:.0f}{null}.",
    )


@guarded
def spectrum(
    checkpoints: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BEFORE AFTER]", help="Two safetensors files or folders; none: train on digits."),
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option("--network", help="mlp, cnn or vit; repeat for more [default: all].")
    ] = None,
    optimizer: Annotated[
        list[str] | None, typer.Option("--optimizer", help="sgd or adam; repeat for more [default: both].")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps on digits.")] = 300,
    digits: Annotated[
        Path | None, typer.Option("--digits", help="npz with x (count, h, w) and y [default: generated digits].")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", help="Weights of the checkpoints, by name or expression.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only the leading values of large weights.")] = None,
    threshold: Threshold = 0.9,
    out: Out = Path("out/spectrum"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Spectra of D = W - W_0: between two checkpoints, or while small networks learn digits.

    Writes pictures and spectra.json.

    Example: inrank spectrum before.safetensors after.safetensors
    """
    if checkpoints and len(checkpoints) != 2:
        raise BadInput(f"{len(checkpoints)} checkpoint was given; expected two, before and after, or none")
    if checkpoints:
        _between(checkpoints[0], checkpoints[1], include, top, threshold, seed, out, as_json)
        return
    if include or top is not None or threshold != _SHARE:
        raise BadInput("--include, --top and --threshold are for two checkpoints, and none were given")
    from inrank.experiments import NETWORKS, OPTIMIZERS, read_digits, track_digits
    from inrank.plotting import save_figure, spectrum_figure

    data = None if digits is None else read_digits(digits, seed=seed)
    runs, files = [], []
    for name in network or list(NETWORKS):
        for kind in optimizer or list(OPTIMIZERS):
            with progress(f"{name} under {kind}", steps) as done:
                every = max(1, steps // 30)
                run = track_digits(name, kind, steps=steps, every=every, seed=seed, digits=data, progress=done)
            runs.append(run)
            ranks = run.history.ranks()
            kept = [layer.layer for layer in run.layers if layer.full_rank > 10][:6]
            figure = spectrum_figure(
                {layer: run.history.spectra(layer) for layer in kept},
                ranks={layer: ranks[layer] for layer in kept},
                title=f"Singular values of D: {name} under {kind}, {run.accuracy:.0%} of test digits right",
                note="Rank: fewest directions with 90% of the energy of D, first and last record.",
            )
            files.append(save_figure(figure, out / f"spectrum-{name}-{kind}.png"))
    rows = [
        (f"{run.network}, {run.optimizer}", c.layer, c.full_rank, c.first, c.update, c.weight, c.random)
        for run in runs
        for c in run.layers
        if c.full_rank > 10
    ]
    result = {"threshold": _SHARE, "steps": steps, "seed": seed, "runs": [_plain_run(run) for run in runs]}
    show(
        result,
        as_json,
        columns=("run", "layer", "min(m, n)", "D first", "D last", "W last", "random"),
        rows=rows,
        title=f"Directions with 90% of the energy after {steps} steps",
        note="random: a Gaussian matrix of the same shape, what D would need if it had no structure.",
        files=[*files, _write_json(out / "spectra.json", result)],
    )


def _between(
    before: Path,
    after: Path,
    include: Sequence[str] | None,
    top: int | None,
    threshold: float,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    from inrank.checkpoint_spectra import update_spectra
    from inrank.plotting import rank_map_figure, save_figure

    with stage("spectra"):
        found = update_spectra(before, after, include=include or None, top=top, threshold=threshold, seed=seed)
    for name, reason in found.skipped.items():
        notice(f"skipped {name}: {reason}")
    shares = [[(r.update_ranks.energy or math.nan) / r.full_rank] for r in found.records]
    label = f"rank of D ({threshold:.0%} of the energy) / full rank"
    names = [r.layer for r in found.records]
    figure = rank_map_figure([0], names, shares, label=label, xlabel="", title="Cumulative update")
    result: dict[str, Any] = {
        "before": str(before),
        "after": str(after),
        "threshold": threshold,
        "layers": [_plain_record(record) for record in found.records],
        "skipped": found.skipped,
    }
    show(
        result,
        as_json,
        columns=("weight", "shape", "full rank", "D energy", "D variance", "D stable", "W energy", "|D| / |W|"),
        rows=[
            (
                r.layer,
                f"{r.shape[0]} x {r.shape[1]}",
                r.full_rank,
                r.update_ranks.energy,
                r.update_ranks.variance,
                r.update_ranks.stable,
                r.weight_ranks.energy if r.weight_ranks else None,
                r.update_ranks.norm / r.weight_ranks.norm if r.weight_ranks and r.weight_ranks.norm else None,
            )
            for r in found.records
        ],
        title=f"D = {after.name} - {before.name}, ranks at {threshold:g}",
        files=[save_figure(figure, out / "update-ranks.png"), _write_json(out / "spectra.json", result)],
    )


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)[xX](\d+)", text)
    if not match:
        raise BadInput(f"shape {text!r} is not known; expected small, medium, large, xl, or OUTxIN such as 3072x768")
    return int(match[1]), int(match[2])


def _variant(
    cost: tuple[int, int, int, int], states: StateBytes, dense: tuple[int, int, int, int], dense_states: StateBytes
) -> dict[str, Any]:
    trained, frozen, weights, total = cost
    return {
        "trained": trained,
        "frozen": frozen,
        "parameter_ratio": trained / dense[0],
        "training_flops": total,
        "weight_flop_ratio": weights / dense[2],
        "flop_ratio": total / dense[3],
        "state_bytes": states.total,
        "states": dataclasses.asdict(states),
        "state_ratio": states.total / dense_states.total,
    }


def _official_null(shape: tuple[int, int]) -> int | None:
    """The official rule's rank without training; None for layers too small for its buffer of 100."""
    from inrank.null_model import null_rank

    try:
        return null_rank(*shape).rank
    except ValueError:
        return None


def _short(count: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def _plain_run(run: DigitsRun) -> dict[str, Any]:
    return {
        "network": run.network,
        "optimizer": run.optimizer,
        "steps": run.steps,
        "accuracy": run.accuracy,
        "loss": run.loss,
        "cpu_seconds": run.seconds,
        "layers": [dataclasses.asdict(layer) for layer in run.layers],
        "recorded_steps": run.history.steps,
        "update_ranks": {name: ranks.tolist() for name, ranks in run.history.ranks().items()},
    }


def _plain_record(record: SpectrumRecord) -> dict[str, Any]:
    values = dataclasses.asdict(record)
    del values["step"], values["weight"]
    return {**values, "update": [float(x) for x in record.update]}


def _write_json(path: Path, result: dict[str, Any]) -> Path:
    import json

    from inrank._files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    return path

"""The paper's headline claim: rollouts of 1,460 steps stay bounded and physically plausible.

    python benchmarks/sfno_jax/claim_stability.py [--minutes 3] [--seeds 0 1] [--arms sfno fno-time ...]
        [--out DIR] [--budget-seconds 540] [--quick]

An SFNO learns shallow water (32 x 64, steps of one hour) and is rolled out for 1,460 hours from 16 initial states that
it has not seen. Every rollout is compared with the solver's own run from the same state at the same hours
(claim_plausibility.py). Beside it, with the very same data, curriculum and constraints: FNOs on the latitude-longitude
rectangle at equal CPU time and at equal parameters (the null control), persistence, and the SFNO with one ingredient
taken away.

A run may be killed at any time, or stopped by --budget-seconds (exit code 75); the same command goes on where it was.
When all runs are there, claim_stability.json, .md and .png are written. CPU seconds are those of the process; the
recorded numbers were made on one thread: XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 python ...

Source: Bonev et al. 2023, "Spherical Fourier Neural Operators", ICML (1,460 steps are a year of 6-hour steps there).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import claim_report
import jax
import numpy as np
import safetensors.numpy
from claim_plausibility import Describer, History
from flax import nnx

from sfno_jax.data.normalization import Normalizer
from sfno_jax.data.shallow_water import TrajectoryData, fit_normalizer, generate_trajectories
from sfno_jax.data.trajectories import ArrayTrajectories, WindowSampler
from sfno_jax.models import build_model, parameter_count
from sfno_jax.physics import ShallowWaterSolver
from sfno_jax.training import Trainer, TrainingConfig
from sfno_jax.training.rollout import Stepper, evaluate_leads, rollout_chunks
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.training.step import ModelParts, train_steps

HERE = Path(__file__).parent
UNFINISHED = 75  # EX_TEMPFAIL of sysexits.h: run again


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that all arms share.

    Attributes:
        nlat: Latitudes; nlon is twice as many.
        lmax: Degrees of the solver, and of the states that a model may return.
        trajectories: Solver runs for training.
        batch: Solver runs integrated together.
        hours: Length of all runs [h].
        starts: Where in a run training segments begin [h]: dense where the flow changes fast, but all along the run.
        segment: Steps of a segment.
        tests: Solver runs, from other initial states, for testing.
        stages: (steps ahead in the loss, optimiser steps per CPU minute of the whole training, learning rate).
        marks: Hours at which rollouts are judged.
        leads: Hours at which they are compared state by state.
    """

    nlat: int = 32
    lmax: int = 11
    trajectories: int = 48
    batch: int = 12
    hours: int = 1460
    starts: tuple[int, ...] = (0, 16, 40, 80, 140, 230, 360, 540, 780, 1080, 1420)
    segment: int = 32
    tests: int = 16
    stages: tuple[tuple[int, float, float], ...] = ((1, 3300, 8e-3), (4, 133, 2e-4), (16, 100, 6e-5))
    marks: tuple[int, ...] = (100, 200, 400, 800, 1200, 1460)
    leads: tuple[int, ...] = (1, 5, 10, 24, 48, 120, 240)


QUICK = Recipe(
    nlat=16,
    lmax=6,
    trajectories=2,
    batch=2,
    hours=60,
    starts=(0, 20),
    segment=4,
    tests=2,
    stages=((1, 16, 2e-3), (2, 8, 1e-3)),
    marks=(30, 60),
    leads=(1, 5, 10),
)

SHARED = {"num_layers": 3, "scale_factor": 2, "norm": "none", "residual_prediction": True}
SHARED |= {"inner_skip": "linear", "position_embedding": "learnable lat"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        title: Row of the table.
        kind: "sfno" or "fno".
        model: Options of the network beside `SHARED`.
        equal_time: Gets as many steps as fit into the SFNO's CPU time, not as many as it.
        constraints: Truncation and projection of the output.
        stages: How many stages of the curriculum; the last one takes the steps (in CPU time) of those left out.
        latest: Training data end here [h].
    """

    title: str
    kind: str = "sfno"
    model: dict[str, Any] = dataclasses.field(default_factory=lambda: {"embed_dim": 32})
    equal_time: bool = False
    constraints: bool = True
    stages: int = 99
    latest: int = 10**6


ARMS = {
    "sfno": Arm("SFNO"),
    "fno-time": Arm("FNO of equal width, equal CPU time", "fno", equal_time=True),
    "fno-parameters": Arm("FNO, equal parameters, equal steps", "fno", {"embed_dim": 9}),
    "fno-both": Arm("FNO, equal parameters, equal CPU time", "fno", {"embed_dim": 9}, equal_time=True),
    "no-position": Arm("SFNO without position embedding", model={"embed_dim": 32, "position_embedding": "none"}),
    "early-data": Arm("SFNO, data of the first 72 h only", latest=72),
    "one-step": Arm("SFNO, one-step loss only", stages=1),
    "unconstrained": Arm("SFNO without projection and truncation", constraints=False),
    "fno-unconstrained": Arm("FNO (equal time) without them", "fno", equal_time=True, constraints=False),
}


# -------------------------------------------------------------------------------------------- data


def make_solver(recipe: Recipe) -> ShallowWaterSolver:
    """The solver whose runs are learned and are the reference."""
    return ShallowWaterSolver(recipe.nlat, 2 * recipe.nlat, 300.0, lmax=recipe.lmax)


def training_data(recipe: Recipe, folder: Path) -> TrajectoryData:
    """Segments ``(trajectory and start, time, 3, nlat, nlon)`` of the training runs, kept in a folder."""
    description = {
        key: value for key, value in dataclasses.asdict(recipe).items() if key not in ("stages", "marks", "leads")
    }
    description = json.loads(json.dumps(description))
    if (folder / "description.json").is_file():
        data = TrajectoryData.load(folder)
        if data.description == description:
            return data
    solver, segments = make_solver(recipe), []
    for first in range(0, recipe.trajectories, recipe.batch):
        # one key per batch: no run of another seed, nor of the tests, starts from the same state
        key = jax.random.fold_in(jax.random.key(20), first)
        runs = generate_trajectories(solver, recipe.batch, recipe.hours, 1.0, key, batch_size=recipe.batch)
        segments += [runs[:, start : start + recipe.segment + 1] for start in recipe.starts]
    states = np.concatenate(segments)
    data = TrajectoryData(states, fit_normalizer(solver, states), description)
    data.save(folder)
    return data


def test_runs(recipe: Recipe, normalizer: Normalizer, path: Path) -> np.ndarray:
    """The solver's runs from unseen states ``(run, hour, 3, nlat, nlon)``, normalised; kept in a file."""
    if not path.is_file():
        states = generate_trajectories(
            make_solver(recipe), recipe.tests, recipe.hours, 1.0, 2023, batch_size=recipe.tests
        )
        part = path.with_suffix(".part")
        safetensors.numpy.save_file({"states": states}, part)
        part.rename(path)
    return np.asarray(normalizer.normalize(safetensors.numpy.load_file(path)["states"]))


# ---------------------------------------------------------------------------------------- training


def stage_steps(recipe: Recipe, arm: Arm, minutes: float, speed: float) -> list[tuple[int, int, float]]:
    """(steps ahead, optimiser steps, learning rate) per stage of an arm's curriculum."""
    stages = recipe.stages[: arm.stages]
    # a step of a stage costs about as much as it looks ahead (1.3 times that with rematerialisation)
    cost = [rate * ahead for ahead, rate, _ in recipe.stages]
    factor = sum(cost) / sum(cost[: len(stages)]) / (speed if arm.equal_time else 1.0)
    return [(ahead, max(8, round(rate * minutes * factor / 8) * 8), lr) for ahead, rate, lr in stages]


def configuration(recipe: Recipe, arm: Arm, seed: int, minutes: float, speed: float) -> TrainingConfig:
    """The run as the library's training loop takes it."""
    stages = [
        {"n_future": ahead, "steps": steps, "learning_rate": lr}
        for ahead, steps, lr in stage_steps(recipe, arm, minutes, speed)
    ]
    constraints = {"conserve": ["geopotential"], "zero_mean": ["vorticity", "divergence"], "lmax": recipe.lmax}
    return TrainingConfig.from_dict(
        {
            "seed": seed,
            "data": {"nlat": recipe.nlat, "nlon": 2 * recipe.nlat, "lmax": recipe.lmax, "steps": recipe.segment},
            "model": {"kind": arm.kind, **SHARED, **arm.model},
            "optimizer": {"name": "adamw", "clip_norm": 1.0, "ema_decay": 0.99},
            "schedule": {"kind": "cosine", "warmup": 20},
            "trainer": {"loss": "relative_squared_l2", "batch_size": 4, "validate_every": 0, "checkpoint_every": 160},
            "stabiliser": constraints if arm.constraints else {},
            "stages": stages,
        }
    )


def make_trainer(config: TrainingConfig, segments: np.ndarray, normalizer: Normalizer, folder: Path) -> Trainer:
    """Model, constraints and loop of a configuration."""
    d, s = config.data, config.stabiliser
    operator = config.model.operator_config(d.nlat, d.nlon, d.grid, 3)
    stabiliser = Stabiliser.create(
        d.nlat,
        d.nlon,
        d.grid,
        normalizer.channels,
        conserve=s.conserve,
        zero_mean=s.zero_mean,
        mean=normalizer.mean,
        std=normalizer.std,
        lmax=s.lmax,
    )
    model = build_model(operator, rngs=nnx.Rngs(config.seed))
    source = ArrayTrajectories(segments)
    return Trainer(model, config, source, folder=folder, stabiliser=stabiliser if s.conserve else None)


def relative_speed(name: str, recipe: Recipe, segments: np.ndarray, normalizer: Normalizer, out: Path) -> float:
    """CPU time of an arm's training step over that of the SFNO's; measured once and kept."""
    path = out / "speed" / f"{name}.json"
    if path.is_file():
        return float(json.loads(path.read_text())["over_sfno"])
    dispatches = {}
    for each in ("sfno", name):
        config = configuration(recipe, ARMS[each], 0, 1.0, 1.0)
        dispatches[each] = _dispatch(make_trainer(config, segments, normalizer, out / "speed"))
        next(dispatches[each])  # compiles
    pairs = [{each: next(seconds) for each, seconds in dispatches.items()} for _ in range(7)]
    ratio = float(np.median([pair[name] / pair["sfno"] for pair in pairs]))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"over_sfno": ratio, "cpu_seconds_of_8_steps": pairs}))
    return ratio


def _dispatch(trainer: Trainer) -> Iterator[float]:
    """CPU seconds of 8 one-step-ahead optimiser steps, again and again; the weights stay as they are."""
    windows = WindowSampler(trainer.train, 1, trainer.config.trainer.batch_size, (0,)).batches(0, 8)
    parts = ModelParts.split(trainer.model(average=False), training=True)
    static = {"optimizer": trainer.optimizer, "graph": parts.graph, "score": "all", "remat": True, "noise": 0.0}
    rates, key = np.zeros(8, np.float32), jax.random.key(0)
    while True:
        state = jax.tree.map(lambda leaf: leaf + 0, trainer.state)  # donated below
        began = time.process_time()
        _, losses, _ = train_steps(
            state, parts.constants, trainer.loss, trainer.stabiliser, windows, rates, np.int32(0), key,
            ema_decay=0.99, **static,
        )  # fmt: skip
        losses.block_until_ready()
        yield time.process_time() - began


@contextmanager
def accounted(path: Path) -> Iterator[None]:
    """Add what the block takes to the CPU and wall seconds in a file, also when it is interrupted."""
    spent = json.loads(path.read_text()) if path.is_file() else {"cpu": 0.0, "wall": 0.0}
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield
    finally:
        spent = {"cpu": spent["cpu"] + time.process_time() - cpu, "wall": spent["wall"] + time.perf_counter() - wall}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spent))


# -------------------------------------------------------------------------------------- evaluation


def evaluate(
    recipe: Recipe, trainer: Trainer, truth: np.ndarray, describer: Describer
) -> tuple[dict[str, Any], History]:
    """Scores at the leads, and the long rollout hour by hour."""
    step = Stepper.of(trainer.model(), trainer.stabiliser)
    scores = evaluate_leads(step, truth[:, : recipe.leads[-1] + 1], recipe.leads, "legendre-gauss")
    initial = truth[:, 0]
    history = describer.history(initial, rollout_chunks(step, initial, recipe.hours, chunk=20))
    l2 = {
        "leads": list(scores.leads),
        "relative_l2": scores.relative_l2.tolist(),
        "persistence_l2": scores.persistence_l2.tolist(),
    }
    return l2, history


def run_arm(
    recipe: Recipe, name: str, seed: int, minutes: float, data: TrajectoryData, truth: np.ndarray,
    describer: Describer, out: Path,
) -> None:  # fmt: skip
    """Train an arm with a seed, or go on with it, and roll it out; nothing to do where its result is there."""
    folder, arm = out / "runs" / f"{name}-{seed}", ARMS[name]
    if (folder / "history.safetensors").is_file():
        return
    segments = data.normalized
    if arm.latest < recipe.hours:
        early = [start + recipe.segment <= arm.latest for start in recipe.starts]
        segments = segments.reshape(-1, len(recipe.starts), recipe.batch, *segments.shape[1:])[:, early]
        segments = segments.reshape(-1, *segments.shape[3:])
    speed = relative_speed(name, recipe, data.normalized, data.normalizer, out) if arm.equal_time else 1.0
    config = configuration(recipe, arm, seed, minutes, speed)
    trainer = make_trainer(config, segments, data.normalizer, folder)
    print(f"{name}, seed {seed}: {sum(stage.steps or 0 for stage in config.stages)} steps", flush=True)
    with accounted(folder / "training_seconds.json"):
        trainer.resume()
        trainer.run()
    with accounted(folder / "rollout_seconds.json"):
        l2, history = evaluate(recipe, trainer, truth, describer)
    result = {
        "arm": name,
        "title": arm.title,
        "seed": seed,
        "parameters": parameter_count(trainer.model()),
        "stages": [[stage.n_future, stage.steps, stage.learning_rate] for stage in config.stages],
        "seconds": json.loads((folder / "training_seconds.json").read_text()),
        **l2,
    }
    (folder / "result.json").write_text(json.dumps(result))
    save_history(folder / "history.safetensors", history)  # last: its presence says that the run is complete


def save_history(path: Path, history: History) -> None:
    """Write a history, in single precision."""
    values = {key: np.asarray(value, np.float32) for key, value in dataclasses.asdict(history).items()}
    safetensors.numpy.save_file(values, path)


def load_history(path: Path) -> History:
    """Read what `save_history` wrote."""
    return History(**{key: value.astype(np.float64) for key, value in safetensors.numpy.load_file(path).items()})


# -------------------------------------------------------------------------------------------- main


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="SFNO rollouts of 1,460 steps beside the solver's and FNO's")
    parser.add_argument("--minutes", type=float, default=3.0, help="about so many CPU minutes of training per run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("out/claim-stability"), help="data, checkpoints, histories")
    parser.add_argument("--results", type=Path, default=None, help="where the report goes (default: here)")
    parser.add_argument("--budget-seconds", type=int, default=0, help="stop after so long; run again to go on")
    parser.add_argument("--quick", action="store_true", help="toy sizes, in seconds: shows that it runs, nothing else")
    parser.add_argument("--report-only", action="store_true", help="report the runs that are there")
    return parser.parse_args(argv)


class BudgetSpentError(Exception):
    """--budget-seconds are over."""


def _stop(signum: int, frame: Any) -> None:
    raise BudgetSpentError


def main(argv: list[str] | None = None) -> int:
    """Run what is missing, then report."""
    options = arguments(argv)
    recipe = QUICK if options.quick else Recipe()
    out = options.out / ("quick" if options.quick else "full")
    out.mkdir(parents=True, exist_ok=True)
    if options.budget_seconds:
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(options.budget_seconds)
    try:
        with accounted(out / "data_seconds.json"):
            data = training_data(recipe, out / "data")
            truth = test_runs(recipe, data.normalizer, out / "tests.safetensors")
        describer = Describer(make_solver(recipe), data.normalizer.std)
        if not options.report_only:
            for seed in options.seeds:
                for name in options.arms:
                    run_arm(recipe, name, seed, options.minutes, data, truth, describer, out)
    except BudgetSpentError:
        print("budget spent; run the same command again to go on")
        return UNFINISHED
    reference = describer.history(truth[:, 0], [np.swapaxes(truth[:, 1:], 0, 1)])
    results = options.results or (out if options.quick else HERE)
    claim_report.write(
        results, runs(out), reference, describer, recipe, {"minutes": options.minutes, "quick": options.quick}
    )
    print((results / "claim_stability.md").read_text())
    return 0


def runs(out: Path) -> list[tuple[dict[str, Any], History]]:
    """All complete runs in a folder: main arms first, by seed."""
    found = []
    for path in out.glob("runs/*/history.safetensors"):
        result = json.loads((path.parent / "result.json").read_text())
        found.append((result | {"title": ARMS[result["arm"]].title}, load_history(path)))
    return sorted(found, key=lambda run: (list(ARMS).index(run[0]["arm"]), run[0]["seed"]))


if __name__ == "__main__":
    code = main()
    if code == UNFINISHED:
        # The alarm may have come in the middle of a compilation, which goes on in a thread of XLA's and crashes when
        # the interpreter is taken down around it. Everything that is kept was already renamed into place.
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)

"""The training loop: stages, clock or step budgets, validation, logs, exact resume.

Everything that decides the next step (weights, optimiser, averages, random streams, which windows
come next, learning rate, noise) is a function of what a checkpoint holds, so that a run killed at
any instant continues bit for bit on the same machine. With budgets in seconds the number of steps
depends on the clock, and that alone is not repeatable.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sfno_jax._files import write_atomically
from sfno_jax.data.trajectories import TrajectorySource, WindowSampler
from sfno_jax.losses import SphereLoss
from sfno_jax.training.checkpoint import (
    ArchitectureError,
    Checkpoint,
    CheckpointStore,
    architecture,
    restore,
)
from sfno_jax.training.config import ScheduleConfig, StageConfig, TrainingConfig
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.training.step import ModelParts, TrainState, make_optimizer, train_steps, window_loss

__all__ = ["Trainer", "TrainingError", "learning_rate", "load_weights"]


class TrainingError(RuntimeError):
    """Training cannot go on: the loss or a gradient is not finite."""


@dataclass(frozen=True)
class Progressed:
    """Where a run stands.

    Attributes:
        step: Optimiser steps in all.
        stage: Current stage.
        stage_step: Steps within it, which is also the position in its data.
        stage_seconds: Seconds of training within it (no compilation, validation or writing).
        plateau_scale: Factor of the plateau schedule.
        plateau_best: Its best validation loss in this stage.
        plateau_bad: Validations since then.
        done: All stages are finished.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    stage_seconds: float = 0.0
    plateau_scale: float = 1.0
    plateau_best: float = math.inf
    plateau_bad: int = 0
    done: bool = False


def learning_rate(
    schedule: ScheduleConfig,
    stage: StageConfig,
    stage_step: int,
    stage_seconds: float = 0.0,
    plateau_scale: float = 1.0,
) -> float:
    """Learning rate of a step.

    Args:
        schedule: Shape within the stage.
        stage: Its budget and peak rate.
        stage_step: Steps done in the stage.
        stage_seconds: Seconds spent in it (for a budget in seconds).
        plateau_scale: Current factor of the plateau schedule.

    Returns:
        ``peak * warm-up * shape``; the cosine runs over what the warm-up leaves of a step budget.
    """
    rate = stage.learning_rate
    if schedule.warmup and stage_step < schedule.warmup:
        return rate * (stage_step + 1) / schedule.warmup
    if schedule.kind == "plateau":
        return rate * plateau_scale
    if schedule.kind == "constant":
        return rate
    if stage.seconds is not None:
        part = stage_seconds / stage.seconds
    else:
        assert stage.steps is not None
        part = (stage_step - schedule.warmup) / max(stage.steps - schedule.warmup, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * min(part, 1.0)))
    return rate * (schedule.final + (1 - schedule.final) * cosine)


class Trainer:
    """Trains a model on trajectories.

    Args:
        model: Any nnx module that maps ``(batch, channel, nlat, nlon)`` to the same shape.
        config: The run.
        train: Training trajectories in normalised units.
        validation: Held-out trajectories, or None.
        folder: Where ``checkpoints/``, ``log.jsonl`` and ``config.json`` go.
        loss: Loss of one predicted state; from ``config.trainer.loss`` when left out.
        stabiliser: Constraint on the model's output, or None.
        grid: Grid of the data, for the default loss.
        mesh: Devices over which each batch is split (:func:`sfno_jax.parallel.make_mesh`), or None.

    Raises:
        ValueError: When the number of devices does not divide the batch.
    """

    def __init__(
        self,
        model: nnx.Module,
        config: TrainingConfig,
        train: TrajectorySource,
        validation: TrajectorySource | None = None,
        *,
        folder: str | Path,
        loss: SphereLoss | None = None,
        stabiliser: Stabiliser | None = None,
        grid: str | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        nlat, nlon = train.shape[-2:]
        self.config, self.train, self.validation = config, train, validation
        self.folder = Path(folder)
        self.loss = loss or SphereLoss.create(config.trainer.loss, nlat, nlon, grid or config.data.grid)
        self.stabiliser = stabiliser
        self.mesh = mesh
        if mesh is not None and config.trainer.batch_size % mesh.shape["batch"]:
            raise ValueError(
                f"trainer.batch_size = {config.trainer.batch_size} cannot be split over "
                f"{mesh.shape['batch']} devices: it must be a multiple of their number"
            )
        self.optimizer = make_optimizer(config.optimizer)
        # split last in training mode: merge() of these parts is what train_steps runs
        self._evaluation = ModelParts.split(model, training=False)
        parts = ModelParts.split(model, training=True)
        self._graph, self._constants = parts.graph, parts.constants
        average = config.optimizer.ema_decay > 0
        self.state = TrainState(
            params=jax.tree.map(jnp.copy, parts.params),
            random=jax.tree.map(jnp.copy, parts.random),
            optimizer=self.optimizer.init(parts.params),
            average=jax.tree.map(jnp.copy, parts.params) if average else None,
        )
        self.progress = Progressed()
        self.store = CheckpointStore(self.folder / "checkpoints", config.trainer.keep)
        self._key = jax.random.key(config.seed)
        self._evaluate = jax.jit(window_loss, static_argnames=("score", "remat"))
        self._compiled: dict[tuple[int, int], Any] = {}  # by stage and length

    # ------------------------------------------------------------------ weights and checkpoints

    def model(self, *, average: bool = True) -> Any:
        """The model in evaluation mode with the present weights.

        Args:
            average: Take the moving average where there is one.
        """
        return self._evaluation_parts(average=average).merge()

    def _evaluation_parts(self, *, average: bool = True) -> ModelParts:
        averaged = average and self.state.average is not None
        params = self.state.average if averaged else self.state.params
        return dataclasses.replace(self._evaluation, params=params)

    def save(self) -> Path:
        """Write a checkpoint of the present state."""
        groups = {
            "weights": self.state.params,
            "optimizer": self.state.optimizer,
            "random": {"streams": self.state.random, "key": self._key},
        }
        if self.state.average is not None:
            groups["ema"] = self.state.average
        meta = {
            "progress": dataclasses.asdict(self.progress),
            "config": self.config.to_dict(),
            "architecture": architecture(self.state.params),
        }
        return self.store.save(self.progress.step, groups, meta)

    def resume(self) -> bool:
        """Go back to the newest good checkpoint of the folder.

        Returns:
            Whether there was one.

        Raises:
            ArchitectureError: When it belongs to another network.
            TrainingError: When it was made with another configuration of optimiser or seed.
            CheckpointError: When all checkpoints are damaged.
        """
        checkpoint = self.store.latest()
        if checkpoint is None:
            return False
        _check_architecture(checkpoint, self.state.params)
        saved = TrainingConfig.from_dict(checkpoint.meta["config"])
        for section in ("seed", "data", "model", "optimizer", "schedule", "stabiliser", "stages", "trainer"):
            if _decisive(saved, section) != _decisive(self.config, section):
                raise TrainingError(
                    f"{checkpoint.path} was made with another [{section}] "
                    f"({getattr(saved, section)}); an exact resume needs the same. Use another "
                    f"folder, and load_weights() to start from these weights."
                )
        groups = checkpoint.groups
        random = restore(groups["random"], {"streams": self.state.random, "key": self._key}, "random streams")
        self._key = random["key"]
        average = self.state.average
        self.state = TrainState(
            params=restore(groups["weights"], self.state.params, "weights"),
            random=random["streams"],
            optimizer=restore(groups["optimizer"], self.state.optimizer, "optimiser state"),
            average=None if average is None else restore(groups["ema"], average, "averaged weights"),
        )
        self.progress = Progressed(**checkpoint.meta["progress"])
        _truncate_log(self.folder / "log.jsonl", self.progress.step)
        return True

    def load_weights(self, path: str | Path) -> None:
        """Start from the weights of a checkpoint of another run; everything else starts anew.

        The averaged weights are taken where the checkpoint has them.
        """
        params = load_weights(path, self.state.params)
        average = None if self.state.average is None else jax.tree.map(jnp.copy, params)
        self.state = TrainState(params, self.state.random, self.optimizer.init(params), average)

    # ------------------------------------------------------------------------------ the run

    def compile(self) -> None:
        """Compile the next dispatch, which `run` otherwise does; several trainers can do so at once, in threads."""
        if self.progress.done:
            return
        stage = self.config.stages[self.progress.stage]
        length = self._next_length(stage)
        if length > 0:
            self._program(stage, self._arguments(stage, self._sampler(stage), length))

    def run(self) -> Progressed:
        """Train from the present state through the last stage.

        Returns:
            Where the run ended.

        Raises:
            TrainingError: When the loss is not finite; the last good checkpoint stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config.to_dict(), indent=1) + "\n"
        write_atomically(self.folder / "config.json", text.encode())
        with (self.folder / "log.jsonl").open("a") as log, _bar() as bar:
            while not self.progress.done:
                self._run_stage(log, bar)
        return self.progress

    def _run_stage(self, log: Any, bar: Progress) -> None:
        number = self.progress.stage
        stage = self.config.stages[number]
        sampler = self._sampler(stage)
        budget = stage.steps if stage.seconds is None else stage.seconds
        task = bar.add_task(f"stage {number + 1}, {stage.n_future} ahead", total=budget, loss="")
        while (length := self._next_length(stage)) > 0:
            before = self.progress
            arguments = self._arguments(stage, sampler, length)
            program = self._program(stage, arguments)  # before the clock starts: a budget buys training only
            began = time.perf_counter()
            state, losses, norms = program(*arguments)
            values, norms = np.asarray(losses), np.asarray(norms)
            spent = time.perf_counter() - began
            rates = arguments[5]
            self._check_finite(values, norms, rates)
            self.state = state
            self.progress = dataclasses.replace(
                before,
                step=before.step + length,
                stage_step=before.stage_step + length,
                stage_seconds=before.stage_seconds + spent,
            )
            self._log(log, values, norms, rates)
            done = self.progress.stage_step if stage.seconds is None else self.progress.stage_seconds
            bar.update(task, completed=done, loss=f"loss {values[-1]:.3e}")
            self._validate_and_save(stage, before.step, log)
        self._compiled.clear()
        self._next_stage()
        self.save()

    def _sampler(self, stage: StageConfig) -> WindowSampler:
        seed = (self.config.seed, self.progress.stage)
        return WindowSampler(self.train, stage.n_future, self.config.trainer.batch_size, seed)

    def _arguments(self, stage: StageConfig, sampler: WindowSampler, length: int) -> tuple[Any, ...]:
        """Of `train_steps` from the present state on."""
        windows = sampler.batches(self.progress.stage_step, length)
        return (self.state, self._constants, self.loss, self.stabiliser, windows, self._rates(stage, length),
                np.int32(self.progress.step), self._key)  # fmt: skip

    def _next_length(self, stage: StageConfig) -> int:
        """Steps in the next dispatch; boundaries are the same however often a run is resumed."""
        size = self.config.trainer.steps_per_dispatch
        if stage.seconds is not None:
            return size if self.progress.stage_seconds < stage.seconds else 0
        assert stage.steps is not None
        return min(size, stage.steps - self.progress.stage_step)

    def _rates(self, stage: StageConfig, length: int) -> np.ndarray:
        at = self.progress
        return np.array(
            [
                learning_rate(
                    self.config.schedule,
                    stage,
                    at.stage_step + i,
                    at.stage_seconds,
                    at.plateau_scale,
                )
                for i in range(length)
            ],
            np.float32,
        )

    def _program(self, stage: StageConfig, arguments: tuple[Any, ...]) -> Any:
        """`train_steps`, compiled for these arguments."""
        key = (self.progress.stage, len(arguments[4]))
        if key not in self._compiled:
            self._compiled[key] = train_steps.lower(
                *arguments,
                optimizer=self.optimizer,
                graph=self._graph,
                score=stage.score,
                remat=self.config.trainer.remat,
                noise=stage.noise,
                ema_decay=self.config.optimizer.ema_decay,
                mesh=self.mesh,
            ).compile()
        return self._compiled[key]

    def _check_finite(self, losses: np.ndarray, norms: np.ndarray, rates: np.ndarray) -> None:
        bad = ~(np.isfinite(losses) & np.isfinite(norms))
        if not bad.any():
            return
        at = int(np.argmax(bad))
        paths = self.store.paths()
        kept = f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint yet"
        raise TrainingError(
            f"loss {losses[at]} with gradient norm {norms[at]} at step "
            f"{self.progress.step + at + 1} (stage {self.progress.stage + 1}, learning rate "
            f"{rates[at]:.3g}); {kept}. Lower the learning rate or clip the gradient harder."
        )

    def _validate_and_save(self, stage: StageConfig, previous: int, log: Any) -> None:
        trainer = self.config.trainer
        every = trainer.validate_every
        if every and self.validation is not None and _crossed(previous, self.progress.step, every):
            value = self.validate(stage.n_future)
            self._plateau(value)
            _write_line(log, {"step": self.progress.step, "validation": value})
        if _crossed(previous, self.progress.step, trainer.checkpoint_every):
            self.save()

    def validate(self, n_future: int = 1) -> float:
        """Loss on held-out windows, always the same ones, with the averaged weights."""
        if self.validation is None:
            raise ValueError("this trainer has no validation trajectories")
        trainer = self.config.trainer
        longest = min(n_future, self.validation.shape[1] - 1)
        windows = self.validation.shape[0] * (self.validation.shape[1] - longest)
        sampler = WindowSampler(self.validation, longest, min(trainer.batch_size, windows), (self.config.seed,))
        parts = self._evaluation_parts()
        count = min(trainer.validation_batches, sampler.batches_per_epoch)
        values: list[Array] = [
            self._evaluate(parts, self.loss, self.stabiliser, sampler.batch(i), remat=False)[0] for i in range(count)
        ]
        return float(np.mean([float(value) for value in values]))

    def _plateau(self, value: float) -> None:
        at, schedule = self.progress, self.config.schedule
        if value < at.plateau_best * (1 - 1e-4):
            self.progress = dataclasses.replace(at, plateau_best=value, plateau_bad=0)
        elif at.plateau_bad + 1 > schedule.patience:
            scale = at.plateau_scale * schedule.factor
            self.progress = dataclasses.replace(at, plateau_scale=scale, plateau_bad=0)
        else:
            self.progress = dataclasses.replace(at, plateau_bad=at.plateau_bad + 1)

    def _next_stage(self) -> None:
        at = self.progress
        last = at.stage + 1 == len(self.config.stages)
        # a new stage starts its own clock, data order and plateau
        self.progress = dataclasses.replace(at, done=True) if last else Progressed(step=at.step, stage=at.stage + 1)

    def _log(self, log: Any, losses: np.ndarray, norms: np.ndarray, rates: np.ndarray) -> None:
        at = self.progress
        _write_line(
            log,
            {
                "step": at.step,
                "stage": at.stage,
                "loss": float(losses.mean()),
                "gradient_norm": float(norms.mean()),
                "learning_rate": float(rates[-1]),
                "stage_seconds": round(at.stage_seconds, 3),
            },
        )


def _decisive(config: TrainingConfig, section: str) -> Any:
    """A section of the configuration without what does not change the weights."""
    value = getattr(config, section)
    if section == "trainer":
        free = {"keep": 1, "checkpoint_every": 1}
        free |= {} if config.schedule.kind == "plateau" else {"validate_every": 0, "validation_batches": 1}
        return dataclasses.replace(value, **free)
    return value


def _crossed(before: int, after: int, every: int) -> bool:
    return before // every != after // every


def _write_line(log: Any, values: dict[str, Any]) -> None:
    log.write(json.dumps(values) + "\n")
    log.flush()


def _truncate_log(path: Path, step: int) -> None:
    """Drop what a killed run logged after its last checkpoint, and a torn last line."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry["step"] <= step:
            kept.append(line + "\n")
    write_atomically(path, "".join(kept).encode())


def _check_architecture(checkpoint: Checkpoint, params: Any) -> None:
    if checkpoint.meta["architecture"] != architecture(params):
        try:
            restore(checkpoint.groups["weights"], params, "weights")
        except ArchitectureError as error:
            raise ArchitectureError(
                f"{checkpoint.path} holds another network: {error}. Build the model with the "
                f"[model] table of its configuration, or choose another folder."
            ) from error


def load_weights(path: str | Path, like: Any, *, average: bool = True) -> Any:
    """Weights of a checkpoint (a ``step-…`` folder, or a run's folder for its newest one).

    Args:
        path: The folder.
        like: Parameters of the model (``nnx.state(model, nnx.Param)``).
        average: Take averaged weights where the checkpoint has them.

    Returns:
        Parameters like ``like``.

    Raises:
        FileNotFoundError: When there is no checkpoint.
        ArchitectureError: When they belong to another network.
    """
    path = Path(path)
    if (path / "state.json").is_file():
        checkpoint: Checkpoint | None = CheckpointStore.load(path)
    else:
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        checkpoint = CheckpointStore(folder).latest()
    if checkpoint is None:
        raise FileNotFoundError(f"no checkpoint in {path}")
    _check_architecture(checkpoint, like)
    averaged = average and "ema" in checkpoint.groups
    return restore(checkpoint.groups["ema" if averaged else "weights"], like, "weights")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )

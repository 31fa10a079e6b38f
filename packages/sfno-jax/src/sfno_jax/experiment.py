"""From a configuration to a run: data, statistics, network, constraints and trainer put together.

`prepare` builds everything that a `TrainingConfig` describes; `open_run` reads back what a run, or an exported model,
left in its folder, ready to forecast.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from sfno_jax._files import write_atomically
from sfno_jax.data.normalization import Normalizer
from sfno_jax.data.shallow_water import CHANNELS, UNITS, cached_trajectories, fit_normalizer, generate_trajectories
from sfno_jax.data.trajectories import ArrayTrajectories, TrajectorySource
from sfno_jax.grids import SphereGrid, area_weights
from sfno_jax.models import FNO, SFNO, build_model, from_pretrained, save_pretrained
from sfno_jax.physics import ShallowWaterSolver
from sfno_jax.training import Stabiliser, Trainer, TrainingConfig, load_weights
from sfno_jax.training.config import _override
from sfno_jax.training.rollout import Stepper
from sfno_jax.transforms import InverseRealSHT, RealSHT

__all__ = [
    "Data",
    "Experiment",
    "Forecaster",
    "assemble",
    "export_run",
    "export_stablehlo",
    "make_solver",
    "open_run",
    "overridden",
    "prepare",
    "read_data",
    "true_trajectories",
]

Report = Callable[[int, int], None]

_NORMALIZER, _GRID, _TRAINING = "normalizer.json", "grid.json", "training.json"


@dataclass(frozen=True)
class Data:
    """What a run learns from.

    Attributes:
        train: Training trajectories in normalised units.
        validation: Held-out trajectories in normalised units.
        normalizer: Statistics of the training data.
        grid: Grid of the fields.
    """

    train: TrajectorySource
    validation: TrajectorySource
    normalizer: Normalizer
    grid: SphereGrid


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start.

    Attributes:
        trainer: Trains the network in its folder.
        normalizer: Statistics of the training data.
        grid: Grid of the fields.
    """

    trainer: Trainer
    normalizer: Normalizer
    grid: SphereGrid

    def forecaster(self) -> Forecaster:
        """The network as it is now, ready to forecast."""
        config = self.trainer.config
        return Forecaster(self.trainer.model(), self.normalizer, self.grid, self.trainer.stabiliser, config)


@dataclass(frozen=True)
class Forecaster:
    """A trained network with what is needed to roll it out on fields in their units.

    Attributes:
        model: In evaluation mode.
        normalizer: Between units and the network's numbers.
        grid: Grid of the fields.
        stabiliser: Constraint it was trained with, or None.
        config: The run it comes from, or None.
    """

    model: SFNO | FNO
    normalizer: Normalizer
    grid: SphereGrid
    stabiliser: Stabiliser | None = None
    config: TrainingConfig | None = None

    @property
    def stepper(self) -> Stepper:
        """One step in normalised units, for `sfno_jax.training.rollout`."""
        return Stepper.of(self.model, self.stabiliser)

    def on_grid(self, nlat: int, nlon: int) -> Forecaster:
        """The same weights on another grid of the same kind, as they are.

        Raises:
            ValueError: the grid does not hold the modes, or weights are tied to the grid.
        """
        model = self.model.on_grid(nlat, nlon)
        grid = SphereGrid(nlat, nlon, self.grid.kind)
        return dataclasses.replace(
            self, model=model, grid=grid, stabiliser=_stabiliser(self.config, grid, self.normalizer)
        )


def make_solver(config: TrainingConfig, nlat: int | None = None, nlon: int | None = None) -> ShallowWaterSolver:
    """The solver that makes a configuration's shallow-water data, with its truncation, perhaps on a finer grid.

    Raises:
        ValueError: the data are not shallow water.
    """
    data = config.data
    if data.source != "shallow-water":
        raise ValueError(f"data.source is {data.source!r}; a solver belongs to 'shallow-water'")
    lmax = -(-data.nlat // 3) if data.lmax is None else data.lmax
    return ShallowWaterSolver(nlat or data.nlat, nlon or data.nlon, data.solver_seconds, grid=data.grid, lmax=lmax)


def true_trajectories(
    config: TrainingConfig, count: int, steps: int, seed: int, *, nlat: int | None = None, nlon: int | None = None
) -> NDArray[np.float32]:
    """Trajectories of the solver that the training did not see.

    Args:
        config: The run.
        count: Number of trajectories.
        steps: Model steps in each.
        seed: Of their initial states; the training data use ``config.seed``, validation ``config.seed + 1``.
        nlat: Another grid's latitudes.
        nlon: Its longitudes.

    Returns:
        (count, steps + 1, 3, nlat, nlon), in the channels' units.
    """
    solver, hours = make_solver(config, nlat, nlon), config.data.step_seconds / 3600
    return generate_trajectories(solver, count, steps * hours, hours, seed, mach=config.data.mach)


def prepare(
    config: TrainingConfig, folder: str | Path, *, cache: str | Path | None = None, report: Report | None = None
) -> Experiment:
    """Data, statistics, network and trainer of a configuration.

    Args:
        config: The run.
        folder: Where its checkpoints and logs go.
        cache: Folder where generated data are kept for the next run; None to make them anew.
        report: Called with (trajectories done, of how many) while data are generated.

    Returns:
        The experiment; ``experiment.trainer.run()`` trains.

    Raises:
        ValueError: the data and the network do not fit together.
        FileNotFoundError: the data file is missing.
    """
    return assemble(config, read_data(config, cache=cache, report=report), folder)


def assemble(config: TrainingConfig, data: Data, folder: str | Path) -> Experiment:
    """Network and trainer of a configuration on data that are there already.

    Args:
        config: The run.
        data: What it learns from.
        folder: Where checkpoints, logs and statistics go.

    Raises:
        ValueError: the data and the network do not fit together.
    """
    grid, normalizer = data.grid, data.normalizer
    network = config.model.operator_config(grid.nlat, grid.nlon, grid.kind, len(normalizer.channels))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    normalizer.save(folder / _NORMALIZER)
    write_atomically(folder / _GRID, json.dumps(dataclasses.asdict(grid)).encode())
    trainer = Trainer(
        build_model(network, nnx.Rngs(config.seed)),
        config,
        data.train,
        data.validation,
        folder=folder,
        stabiliser=_stabiliser(config, grid, normalizer),
        grid=grid.kind,
    )
    return Experiment(trainer, normalizer, grid)


def open_run(folder: str | Path) -> Forecaster:
    """A trained network from the folder of a run, or from one that `export_run` or `save_pretrained` wrote.

    Args:
        folder: The folder, or a Hugging Face hub id.

    Raises:
        FileNotFoundError: there is no run and no model.
        ValueError: the model has no statistics, or the folder is damaged.
    """
    path = Path(folder)
    if (path / _NORMALIZER).is_file() and (path / "config.json").is_file() and (path / "checkpoints").is_dir():
        config = TrainingConfig.from_dict(json.loads((path / "config.json").read_text()))
        normalizer = Normalizer.load(path / _NORMALIZER)
        grid = SphereGrid(**json.loads((path / _GRID).read_text()))
        network = config.model.operator_config(grid.nlat, grid.nlon, grid.kind, len(normalizer.channels))
        model = build_model(network, nnx.Rngs(0))
        nnx.update(model, load_weights(path, nnx.state(model, nnx.Param)))
        model.eval()  # type: ignore[no-untyped-call]
        return Forecaster(model, normalizer, grid, _stabiliser(config, grid, normalizer), config)
    model = from_pretrained(folder)
    if model.statistics is None:
        raise ValueError(f"the model in {folder} was saved without statistics: it cannot be used on fields in units")
    s = model.statistics
    names = s.channels or tuple(f"channel {i}" for i in range(len(s.mean)))
    units = dict(zip(CHANNELS, UNITS, strict=True))
    normalizer = Normalizer(names, np.array(s.mean), np.array(s.std), tuple(units.get(n, "") for n in names))
    settings = path / _TRAINING
    training = TrainingConfig.from_dict(json.loads(settings.read_text())) if settings.is_file() else None
    c = model.config
    grid = SphereGrid(c.nlat, c.nlon, getattr(c, "grid", None) or (training.data.grid if training else "equiangular"))
    return Forecaster(model, normalizer, grid, _stabiliser(training, grid, normalizer), training)


def export_run(folder: str | Path, target: str | Path) -> Path:
    """Write the newest weights of a run as a pretrained model, with the settings it was trained with.

    Args:
        folder: Of the run.
        target: Of the model; `from_pretrained` and `open_run` read it.

    Returns:
        The target folder.

    Raises:
        FileNotFoundError: there is no run.
    """
    forecaster = open_run(folder)
    n = forecaster.normalizer
    statistics = {"mean": n.mean.tolist(), "std": n.std.tolist(), "channels": list(n.channels)}
    target = save_pretrained(forecaster.model, target, statistics=statistics)
    if forecaster.config is not None:
        text = json.dumps(forecaster.config.to_dict(), indent=1) + "\n"
        write_atomically(target / _TRAINING, text.encode())
    return target


def overridden(config: TrainingConfig, overrides: Sequence[str], **sections: Any) -> TrainingConfig:
    """A configuration with whole sections replaced and single keys overridden, see `load_config`.

    Raises:
        ConfigError: an unknown key, a wrong type or a bad value.
    """
    table = {**config.to_dict(), **sections}
    for item in overrides:
        _override(table, item)
    return TrainingConfig.from_dict(table)


def export_stablehlo(folder: str | Path, target: str | Path) -> Path:
    """Write one step of a model in normalised units, (1, channel, nlat, nlon) float32, as portable StableHLO.

    Constraints of the training are part of the step. It runs on CPU, CUDA and TPU without this package:
    ``jax.export.deserialize(bytearray(Path(target).read_bytes())).call(x)``.

    Args:
        folder: As for `open_run`.
        target: The file to write.

    Returns:
        The file.
    """
    forecaster = open_run(folder)
    model = forecaster.model
    model.analyses, model.syntheses = (nnx.data(_portable(x)) for x in (model.analyses, model.syntheses))
    for block in model.blocks:
        if block.mlp is not None:
            block.mlp.may_use_kernel = False
    stepper = Stepper.of(model, _portable(forecaster.stabiliser))
    shape = (1, len(forecaster.normalizer.channels), *forecaster.grid.shape)

    def step(x: jax.Array) -> jax.Array:
        return stepper(x)

    exported = jax.export.export(jax.jit(step), platforms=("cpu", "cuda", "tpu"))(
        jax.ShapeDtypeStruct(shape, np.float32)  # type: ignore[no-untyped-call]
    )
    target = Path(target)
    write_atomically(target, bytes(exported.serialize()))
    return target


_TRANSFORMS = (RealSHT, InverseRealSHT)


def _portable(tree: Any) -> Any:
    """A pytree with its transforms on the einsum path, which every platform has."""
    return jax.tree.map(_without_kernel, tree, is_leaf=lambda x: isinstance(x, _TRANSFORMS))


def _without_kernel(leaf: Any) -> Any:
    if not isinstance(leaf, _TRANSFORMS):
        return leaf
    return type(leaf)(
        leaf.nlat,
        leaf.nlon,
        leaf.lmax,
        leaf.mmax,
        leaf.grid,
        leaf.norm,
        leaf.csphase,
        leaf.truncation,
        backend="einsum",
        allow_aliasing=True,
    )


def read_data(config: TrainingConfig, *, cache: str | Path | None = None, report: Report | None = None) -> Data:
    """The data of a configuration: integrated by the shallow-water solver, or read from a file.

    Args:
        config: The run.
        cache: As in `prepare`.
        report: As in `prepare`.

    Raises:
        ValueError: the file's fields cannot be used, with the reason.
        FileNotFoundError: the file is missing.
    """
    if config.data.source == "file":
        return _file_data(config)
    data, solver = config.data, make_solver(config)
    hours = data.step_seconds / 3600
    count, length = data.trajectories, data.steps * hours
    if cache is None:
        states = generate_trajectories(solver, count, length, hours, config.seed, mach=data.mach, progress=report)
        normalizer = fit_normalizer(solver, states)
    else:
        kept = cached_trajectories(cache, solver, count, length, hours, config.seed, mach=data.mach, progress=report)
        states, normalizer = kept.states, kept.normalizer
    held_out = true_trajectories(config, data.validation_trajectories, data.steps, config.seed + 1)
    train, validation = (ArrayTrajectories(normalizer.normalize(x)) for x in (states, held_out))
    return Data(train, validation, normalizer, SphereGrid(data.nlat, data.nlon, data.grid))


def _file_data(config: TrainingConfig) -> Data:
    from sfno_jax.data.gridded import open_gridded

    data = config.data
    assert data.path is not None
    fields = open_gridded(data.path, data.variables, missing="mean" if data.fill_missing else "refuse")
    whole = fields.trajectories()
    train, _ = whole.split(data.validation_fraction)
    weights = area_weights(fields.grid.kind, *fields.grid.shape)
    # Statistics of what is trained on, not of what is held out.
    chunks = (fields.read(start, min(start + 32, train.last)) for start in range(train.first, train.last, 32))
    normalizer = Normalizer.fit(chunks, weights, fields.channels, units=fields.units)
    train, validation = fields.trajectories(normalizer).split(data.validation_fraction)
    return Data(train, validation, normalizer, fields.grid)


def _stabiliser(config: TrainingConfig | None, grid: SphereGrid, normalizer: Normalizer) -> Stabiliser | None:
    if config is None:
        return None
    s = config.stabiliser
    if not (s.conserve or s.zero_mean or s.damping or s.lmax):
        return None
    return Stabiliser.create(
        grid.nlat,
        grid.nlon,
        grid.kind,
        normalizer.channels,
        conserve=s.conserve,
        zero_mean=s.zero_mean,
        mean=normalizer.mean,
        std=normalizer.std,
        damping=s.damping,
        damping_order=s.damping_order,
        lmax=s.lmax,
    )

"""What a training run is: frozen dataclasses, read from TOML, overridable key by key.

``load_config("swe-small", ["trainer.batch_size=4", "stages.0.steps=200"])`` reads a shipped preset
or a file, applies the overrides and checks every key and type. An unknown key, a wrong type or a
value out of range is a :class:`ConfigError` that names the key; nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from sfno_jax.losses import LOSSES
from sfno_jax.models.config import FNOConfig, SFNOConfig

__all__ = [
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "StabiliserConfig",
    "StageConfig",
    "TrainerConfig",
    "TrainingConfig",
    "load_config",
    "preset_names",
]

_MODELS: dict[str, type[SFNOConfig] | type[FNOConfig]] = {"sfno": SFNOConfig, "fno": FNOConfig}


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        hint = _near(value, allowed)
        raise ConfigError(f"{key} = {value!r} is unknown{hint}; choose one of {', '.join(allowed)}")


def _near(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


@dataclass(frozen=True)
class DataConfig:
    """Where trajectories come from.

    Attributes:
        source: ``"shallow-water"`` integrates the solver; ``"file"`` reads netCDF or Zarr.
        nlat: Latitudes (shallow water; a file has its own).
        nlon: Longitudes.
        grid: One of :data:`sfno_jax.grids.GRIDS`.
        lmax: Truncation of the solver; ceil(nlat/3) when left out.
        mach: Ratio of the initial wind to the gravity wave speed.
        trajectories: Training trajectories.
        validation_trajectories: Held-out trajectories.
        steps: Model steps per trajectory; it has ``steps + 1`` states.
        step_seconds: Model time step [s].
        solver_seconds: Solver time step [s], a divisor of ``step_seconds``.
        path: File or Zarr store (source ``"file"``).
        variables: Variables to read; all when empty.
        validation_fraction: Last part of a file's time axis kept for validation.
        fill_missing: Replace NaN by the channel mean instead of refusing the file.
    """

    source: str = "shallow-water"
    nlat: int = 32
    nlon: int = 64
    grid: str = "legendre-gauss"
    lmax: int | None = None
    mach: float = 0.2
    trajectories: int = 40
    validation_trajectories: int = 4
    steps: int = 72
    step_seconds: float = 3600.0
    solver_seconds: float = 300.0
    path: str | None = None
    variables: tuple[str, ...] = ()
    validation_fraction: float = 0.1
    fill_missing: bool = False

    def __post_init__(self) -> None:
        _one_of("data.source", self.source, ("shallow-water", "file"))
        for name in ("nlat", "nlon", "trajectories", "validation_trajectories", "steps"):
            _require(getattr(self, name) >= 1, f"data.{name} must be at least 1")
        for name in ("step_seconds", "solver_seconds", "mach"):
            _require(getattr(self, name) > 0, f"data.{name} must be positive")
        ratio = self.step_seconds / self.solver_seconds
        _require(
            abs(ratio - round(ratio)) < 1e-9,
            f"data.step_seconds = {self.step_seconds} must be a multiple of data.solver_seconds = "
            f"{self.solver_seconds}",
        )
        _require(0 < self.validation_fraction < 1, "data.validation_fraction must be in (0, 1)")
        _require(
            (self.path is not None) == (self.source == "file"),
            'data.path belongs to data.source = "file": give both or neither',
        )


@dataclass(frozen=True)
class ModelConfig:
    """Which network.

    Attributes:
        kind: ``"sfno"`` or ``"fno"``.
        options: Everything else in the ``[model]`` table: options of
            :class:`sfno_jax.models.SFNOConfig` or ``FNOConfig``. Grid and channels come from the
            data and cannot be given.
    """

    kind: str = "sfno"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of("model.kind", self.kind, tuple(_MODELS))
        known = [f.name for f in dataclasses.fields(_MODELS[self.kind])]
        for key in self.options:
            if key in ("nlat", "nlon", "grid", "in_channels", "out_channels"):
                raise ConfigError(f"model.{key} follows from the data; leave it out")
            if key not in known:
                raise ConfigError(f"unknown key model.{key}{_near(key, known)}")
        self.operator_config(32, 64, "legendre-gauss", 3)

    def operator_config(self, nlat: int, nlon: int, grid: str, channels: int) -> SFNOConfig | FNOConfig:
        """The network's own configuration on a grid.

        Raises:
            ConfigError: When the options do not fit together or the grid.
        """
        values = {**self.options, "nlat": nlat, "nlon": nlon}
        values |= {"in_channels": channels, "out_channels": channels}
        if self.kind == "sfno":
            values["grid"] = grid
        try:
            return _MODELS[self.kind].from_dict(values)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"model: {error}") from error


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam or AdamW, with clipping and an exponential moving average of the weights.

    Attributes:
        name: ``"adam"`` or ``"adamw"``.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled weight decay (``adamw`` only).
        clip_norm: Largest global gradient norm; 0 switches clipping off.
        ema_decay: Decay of the averaged weights, with a warm-up ``(1+t)/(10+t)``; 0 is off.
    """

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    ema_decay: float = 0.0

    def __post_init__(self) -> None:
        _one_of("optimizer.name", self.name, ("adam", "adamw"))
        for name in ("beta1", "beta2", "ema_decay"):
            _require(0 <= getattr(self, name) < 1, f"optimizer.{name} must be in [0, 1)")
        for name in ("eps", "weight_decay", "clip_norm"):
            _require(getattr(self, name) >= 0, f"optimizer.{name} must not be negative")
        _require(
            self.name == "adamw" or self.weight_decay == 0,
            'optimizer.weight_decay has no effect on "adam"; use optimizer.name = "adamw"',
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate runs within a stage.

    Attributes:
        kind: ``"constant"``, ``"cosine"`` (to ``final`` times the peak over the stage's budget) or
            ``"plateau"`` (times ``factor`` when the validation loss has not improved for
            ``patience`` validations).
        warmup: Steps of linear warm-up, for every kind.
        final: End of the cosine, as a fraction of the peak.
        factor: Of ``"plateau"``.
        patience: Of ``"plateau"``.
    """

    kind: str = "cosine"
    warmup: int = 0
    final: float = 0.0
    factor: float = 0.5
    patience: int = 5

    def __post_init__(self) -> None:
        _one_of("schedule.kind", self.kind, ("constant", "cosine", "plateau"))
        _require(self.warmup >= 0, "schedule.warmup must not be negative")
        _require(0 <= self.final <= 1, "schedule.final must be in [0, 1]")
        _require(0 < self.factor < 1, "schedule.factor must be in (0, 1)")
        _require(self.patience >= 1, "schedule.patience must be at least 1")


@dataclass(frozen=True)
class StageConfig:
    """One stage of the curriculum.

    Attributes:
        n_future: Future states the model predicts autoregressively in one training step (1 is
            one-step training; torch-harmonics counts one less).
        steps: Budget in optimiser steps, or
        seconds: in seconds of training (give exactly one).
        learning_rate: Peak learning rate.
        noise: Standard deviation of the normal noise added to the inputs [std].
        score: ``"all"`` averages the loss over the predicted states, ``"last"`` scores the last.
    """

    n_future: int = 1
    steps: int | None = None
    seconds: float | None = None
    learning_rate: float = 1e-3
    noise: float = 0.0
    score: str = "all"

    def __post_init__(self) -> None:
        _one_of("stages.score", self.score, ("all", "last"))
        _require(self.n_future >= 1, "stages.n_future must be at least 1")
        _require(
            (self.steps is None) != (self.seconds is None),
            "a stage needs exactly one of stages.steps and stages.seconds",
        )
        _require((self.steps or 1) > 0, "stages.steps must be positive")
        _require((self.seconds or 1) > 0, "stages.seconds must be positive")
        _require(0 < self.learning_rate < math.inf, "stages.learning_rate must be positive and finite")
        _require(self.noise >= 0, "stages.noise must not be negative")


@dataclass(frozen=True)
class TrainerConfig:
    """The loop.

    Attributes:
        loss: One of :data:`sfno_jax.losses.LOSSES`.
        batch_size: Windows per step.
        steps_per_dispatch: Steps that run in one compiled ``lax.scan``.
        remat: Recompute the states of a multi-step rollout in the backward pass.
        validate_every: Steps between validations (rounded to dispatches); 0 is never.
        validation_batches: Batches per validation.
        checkpoint_every: Steps between checkpoints (rounded to dispatches).
        keep: Checkpoints kept.
    """

    loss: str = "squared_l2"
    batch_size: int = 8
    steps_per_dispatch: int = 8
    remat: bool = True
    validate_every: int = 200
    validation_batches: int = 4
    checkpoint_every: int = 200
    keep: int = 3

    def __post_init__(self) -> None:
        _one_of("trainer.loss", self.loss, LOSSES)
        _require(self.validate_every >= 0, "trainer.validate_every must not be negative")
        for name in ("batch_size", "steps_per_dispatch", "validation_batches"):
            _require(getattr(self, name) >= 1, f"trainer.{name} must be at least 1")
        for name in ("checkpoint_every", "keep"):
            _require(getattr(self, name) >= 1, f"trainer.{name} must be at least 1")


@dataclass(frozen=True)
class StabiliserConfig:
    """Optional constraints on the model's output, in training and in rollouts alike.

    Attributes:
        conserve: Channels whose area mean is carried over from the input (mass).
        zero_mean: Channels whose physical area mean is zero (vorticity, divergence).
        damping: Strength of ``exp(-damping (l/(lmax-1))^order)`` per step; 0 is off.
        damping_order: Even order of the damping.
        lmax: Degrees kept; the grid's default when left out, and no truncation at all when
            ``damping`` is 0 too.
    """

    conserve: tuple[str, ...] = ()
    zero_mean: tuple[str, ...] = ()
    damping: float = 0.0
    damping_order: int = 8
    lmax: int | None = None

    def __post_init__(self) -> None:
        both = sorted(set(self.conserve) & set(self.zero_mean))
        _require(not both, f"stabiliser.conserve and stabiliser.zero_mean both name {both}")
        _require(self.damping >= 0, "stabiliser.damping must not be negative")
        _require(self.damping_order >= 1, "stabiliser.damping_order must be at least 1")
        _require((self.lmax or 1) >= 1, "stabiliser.lmax must be at least 1")


@dataclass(frozen=True)
class TrainingConfig:
    """A whole run. ``seed`` drives initial weights, data, sampling and noise."""

    seed: int = 333
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    stabiliser: StabiliserConfig = field(default_factory=StabiliserConfig)
    stages: tuple[StageConfig, ...] = (StageConfig(steps=1000),)

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed must not be negative")
        _require(len(self.stages) > 0, "stages must hold at least one [[stages]] table")
        _require(
            self.schedule.kind != "plateau" or self.trainer.validate_every > 0,
            'schedule.kind = "plateau" needs trainer.validate_every > 0',
        )
        longest = max(stage.n_future for stage in self.stages)
        _require(
            self.data.source != "shallow-water" or longest <= self.data.steps,
            f"stages.n_future = {longest} is longer than data.steps = {self.data.steps}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that :meth:`from_dict` takes back, JSON-serialisable."""
        values = _plain(dataclasses.asdict(self))
        values["model"] = {"kind": self.model.kind, **_plain(dict(self.model.options))}
        return dict(values)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> TrainingConfig:
        """Check a nested mapping (as read from TOML or JSON) and build the configuration.

        Raises:
            ConfigError: On an unknown key, a wrong type or a bad value, named by its dotted key.
        """
        table = dict(table)
        model = table.get("model")
        if isinstance(model, Mapping):
            options = {key: value for key, value in model.items() if key != "kind"}
            kind = model.get("kind", "sfno")
            table["model"] = {"kind": kind, "options": options}
        result = _convert(table, cls, "")
        assert isinstance(result, cls)
        return result


def _plain(value: Any) -> Any:
    """Drop None (TOML has none) and turn tuples into lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _convert(value: Any, kind: Any, key: str) -> Any:
    """``value`` as ``kind``, or a ConfigError that names ``key``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (item for item in arguments if item is not type(None))
        return _convert(value, inner, key)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _convert_table(value, kind, key)
    if origin is tuple:
        _expect(isinstance(value, (list, tuple)), key, value, "a list")
        return tuple(_convert(item, arguments[0], f"{key}.{index}") for index, item in enumerate(value))
    if origin is Mapping:
        _expect(isinstance(value, Mapping), key, value, "a table")
        return dict(value)
    if kind is float:
        _expect(isinstance(value, (int, float)) and type(value) is not bool, key, value, "a number")
        return float(value)
    _expect(type(value) is kind, key, value, {int: "an integer", bool: "true or false"}.get(kind))
    return value


def _expect(condition: bool, key: str, value: Any, expected: str | None) -> None:
    if not condition:
        raise ConfigError(f"{key} must be {expected or 'a string'}, got {value!r}")


def _convert_table(value: Any, kind: type, key: str) -> Any:
    _expect(isinstance(value, Mapping), key, value, "a table")
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    for name in value:
        if name not in known:
            raise ConfigError(f"unknown key {prefix}{name}{_near(name, known)}; known here: {', '.join(known)}")
    return kind(**{name: _convert(item, hints[name], prefix + name) for name, item in value.items()})


def preset_names() -> list[str]:
    """Names of the configurations that ship with the package."""
    folder = resources.files("sfno_jax.training") / "presets"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if ".toml" in p.name)


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainingConfig:
    """Read a configuration.

    Args:
        source: A preset's name or the path of a TOML file.
        overrides: ``"section.key=value"`` each, the value written as in TOML (a bare word is taken
            as a string); list items by number, ``"stages.0.steps=100"``.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: When the file is missing or not TOML, or a key, type or value is wrong.
    """
    if str(source) in preset_names():
        text = (resources.files("sfno_jax.training") / "presets" / f"{source}.toml").read_text()
    else:
        path = Path(source)
        if not path.is_file():
            raise ConfigError(
                f"no configuration {str(source)!r}: not a file, and not one of the presets {', '.join(preset_names())}"
            )
        text = path.read_text()
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    for item in overrides:
        _override(table, item)
    return TrainingConfig.from_dict(table)


def _override(table: dict[str, Any], item: str) -> None:
    key, separator, text = item.partition("=")
    key = key.strip()
    if not separator or not key:
        raise ConfigError(f"override {item!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    node: Any = table
    *parents, last = key.split(".")
    for part in parents:
        listed = isinstance(node, list)
        node = node[_index(node, part, key)] if listed else node.setdefault(part, {})
        if not isinstance(node, (dict, list)):
            raise ConfigError(f"override {key}: {part} holds a value, not a table")
    if isinstance(node, list):
        node[_index(node, last, key)] = value
    else:
        node[last] = value


def _index(node: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(f"override {key}: {part!r} is not one of the {len(node)} items (0, 1, …)")
    return int(part)

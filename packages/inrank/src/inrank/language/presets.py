"""What a language-model run is: frozen dataclasses, read from TOML, overridable key by key.

``load_config("tiny", ["trainer.steps=100", "method.name=full-rank"])`` reads a preset that ships or a file, applies the
overrides and checks every key and type. An unknown key, a wrong type or a value out of range is a `ConfigError` that
names the key; nothing is ignored.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from inrank.config import InRankConfig
from inrank.language.config_tables import ConfigError, convert_table, named_table, one_of, require
from inrank.language.gpt import GPTConfig
from inrank.language.tokenizers import TOKENIZERS

__all__ = [
    "LAYERS",
    "METHODS",
    "ConfigError",
    "DataConfig",
    "MethodConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "ScheduleConfig",
    "TrainerConfig",
    "load_config",
    "override",
    "preset_names",
]

METHODS = ("full-rank", "inrank-efficient", "inrank-full", "fixed-rank", "lora", "galore")
LAYERS = ("mlp", "attention", "all")

# A preset's start is that of U V as the whole weight; beside W_0 it is zero, and the official release has no W_0.
_BESIDE_W0 = ("inrank.init=zero", "inrank.init_scale=1.0", "inrank.strict=false")


@dataclass(frozen=True)
class DataConfig:
    """What is read.

    Attributes:
        source: "sotu" (ships with the package), "text" (local files) or "wikitext" (a local folder).
        path: Files or folders of "text", the folder of "wikitext".
        tokenizer: "bytes", "gpt2", or "bpe" (learned from the training split).
        vocabulary: Tokens of "bpe".
        validation: Part of "text" that is kept for validation.
    """

    source: str = "sotu"
    path: tuple[str, ...] = ()
    tokenizer: str = "bytes"
    vocabulary: int = 4096
    validation: float = 0.05

    def __post_init__(self) -> None:
        one_of("data.source", self.source, ("sotu", "text", "wikitext"))
        one_of("data.tokenizer", self.tokenizer, TOKENIZERS)
        require(self.vocabulary > 256, f"data.vocabulary must be more than 256, got {self.vocabulary}")
        require(0 < self.validation < 1, f"data.validation must be in (0, 1), got {self.validation}")
        require(
            bool(self.path) == (self.source != "sotu"),
            f'data.path = {list(self.path)} does not go with data.source = "{self.source}": "text" and "wikitext" need '
            'one, "sotu" ships with the package',
        )


@dataclass(frozen=True)
class ModelConfig:
    """Which GPT.

    Attributes:
        layers: Blocks.
        heads: Attention heads.
        width: Of the residual stream.
        context: Tokens it sees at once.
        dropout: On embeddings, attention and residual branches.
        scale_by_layer: Attention divided by layer + 1 too.
        init_std: Standard deviation of the initial weights.
        huggingface: Build a GPT2LMHeadModel of transformers instead of `inrank.language.gpt.GPT`.
    """

    layers: int = 2
    heads: int = 4
    width: int = 128
    context: int = 64
    dropout: float = 0.0
    scale_by_layer: bool = False
    init_std: float = 0.02
    huggingface: bool = False

    def __post_init__(self) -> None:
        self.shape(256)

    def shape(self, vocabulary: int) -> GPTConfig:
        """The model's own configuration.

        Raises:
            ConfigError: A size is not possible.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "huggingface"}
        try:
            return GPTConfig(vocabulary=vocabulary, **values)
        except ValueError as error:
            raise ConfigError(f"model.{error}") from error


@dataclass(frozen=True)
class MethodConfig:
    """How its linear layers are trained.

    Attributes:
        name: One of `METHODS`.
        layers: "mlp" (as the paper), "attention" or "all".
        rank: Of "fixed-rank", "lora" and "galore": a number, or a part of min(m, n).
        finalize_at: Step at which InRank's buffers are dropped, factors balanced and ranks fixed; 0 is never.
        galore_gap: Steps between new projections of "galore".
        galore_scale: What "galore" multiplies its update by.
    """

    name: str = "inrank-efficient"
    layers: str = "mlp"
    rank: int | float = 0.25
    finalize_at: int = 0
    galore_gap: int = 200
    galore_scale: float = 0.25

    def __post_init__(self) -> None:
        one_of("method.name", self.name, METHODS)
        one_of("method.layers", self.layers, LAYERS)
        whole = isinstance(self.rank, int)
        require(
            self.rank >= 1 if whole else 0 < self.rank <= 1,
            f"method.rank must be at least 1, or a part in (0, 1] written with a point, got {self.rank}",
        )
        require(self.finalize_at >= 0, f"method.finalize_at must not be negative, got {self.finalize_at}")
        require(self.galore_gap >= 1, f"method.galore_gap must be at least 1, got {self.galore_gap}")
        require(self.galore_scale > 0, f"method.galore_scale must be positive, got {self.galore_scale}")

    @property
    def grows(self) -> bool:
        """Whether ranks are chosen in training."""
        return self.name in ("inrank-efficient", "inrank-full")

    def rank_of(self, full_rank: int) -> int:
        """The rank of a layer with min(m, n) = full_rank."""
        rank = self.rank if isinstance(self.rank, int) else max(1, round(self.rank * full_rank))
        return min(rank, full_rank)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or SGD, and clipping.

    Attributes:
        name: "adamw" or "sgd".
        learning_rate: At its peak.
        beta1: Decay of the first moment; the momentum of "sgd".
        beta2: Decay of the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Of matrices; biases and norms have none.
        factor_rate: Multiplies the learning rate of low-rank factors U, V.
        factor_ratio: Multiplies that of U once more, as LoRA+ does (Hayou et al. 2024, arXiv:2402.12354).
        clip_norm: Largest gradient norm; 0 is no clipping.
    """

    name: str = "adamw"
    learning_rate: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    factor_rate: float = 1.0
    factor_ratio: float = 1.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, ("adamw", "sgd"))
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, f"optimizer.{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("learning_rate", "factor_rate", "factor_ratio"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"optimizer.{name} must be positive and finite, got {value}")
        for name in ("eps", "weight_decay", "clip_norm"):
            require(getattr(self, name) >= 0, f"optimizer.{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate runs.

    Attributes:
        kind: "constant", "linear" or "cosine": from the peak to `final` times the peak.
        warmup: Steps of linear warm-up.
        final: End, as a part of the peak.
    """

    kind: str = "linear"
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        one_of("schedule.kind", self.kind, ("constant", "linear", "cosine"))
        require(self.warmup >= 0, f"schedule.warmup must not be negative, got {self.warmup}")
        require(0 <= self.final <= 1, f"schedule.final must be in [0, 1], got {self.final}")

    def factor(self, step: int, progress: float) -> float:
        """What the peak is multiplied by.

        Args:
            step: Steps done so far.
            progress: Part of the run that is done, in [0, 1].
        """
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "constant":
            return rise
        fall = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return rise * (self.final + (1.0 - self.final) * fall)


@dataclass(frozen=True)
class TrainerConfig:
    """The loop.

    Attributes:
        steps: Optimizer steps.
        flops: Budget in floating-point operations instead: training ends when it is spent; 0 is none.
        sequences: Sequences in an optimizer step, over all processes.
        batch_size: Sequences in a forward pass of one process; the rest of a step is accumulated.
        evaluate_every: Steps between validations.
        evaluation_sequences: Validation sequences, always the same.
        checkpoint_every: Steps between checkpoints; 0 is only at the end.
        engine: "torch" is a plain loop, "accelerate" goes through that library (several devices, mixed precision).
        precision: "no", "bf16" or "fp16"; the last two need "accelerate".
        threads: Of torch; 0 leaves them as they are.
    """

    steps: int = 400
    flops: float = 0.0
    sequences: int = 16
    batch_size: int = 16
    evaluate_every: int = 100
    evaluation_sequences: int = 256
    checkpoint_every: int = 100
    engine: str = "torch"
    precision: str = "no"
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "sequences", "batch_size", "evaluate_every", "evaluation_sequences"):
            require(getattr(self, name) >= 1, f"trainer.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("flops", "checkpoint_every", "threads"):
            require(getattr(self, name) >= 0, f"trainer.{name} must not be negative, got {getattr(self, name)}")
        one_of("trainer.engine", self.engine, ("torch", "accelerate"))
        one_of("trainer.precision", self.precision, ("no", "bf16", "fp16"))
        require(
            self.precision == "no" or self.engine == "accelerate",
            f'trainer.precision = "{self.precision}" needs trainer.engine = "accelerate"',
        )
        self.accumulation()

    def accumulation(self, processes: int = 1) -> int:
        """Forward passes of each process in an optimizer step.

        Raises:
            ConfigError: The sequences cannot be dealt out evenly.
        """
        at_once = self.batch_size * processes
        require(
            self.sequences % at_once == 0,
            f"trainer.sequences = {self.sequences} must be a multiple of trainer.batch_size = {self.batch_size} times "
            f"{processes} processes",
        )
        return self.sequences // at_once


@dataclass(frozen=True)
class RunConfig:
    """A whole run; `seed` drives weights, data order and dropout."""

    seed: int = 1113
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    inrank: InRankConfig = field(default_factory=InRankConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed must not be negative, got {self.seed}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` takes back, JSON-able."""
        values = dataclasses.asdict(self)
        values["data"]["path"] = list(self.data.path)
        del values["inrank"]["mode"]
        return values

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> RunConfig:
        """Check a nested mapping (as read from TOML or JSON) and build the configuration.

        Raises:
            ConfigError: An unknown key, a wrong type or a bad value, named by its dotted key.
        """
        result: RunConfig = convert_table(table, cls, "")
        mode: typing.Literal["full", "efficient"] = "full" if result.method.name == "inrank-full" else "efficient"
        with named_table("inrank"):
            return dataclasses.replace(result, inrank=dataclasses.replace(result.inrank, mode=mode))


def preset_names() -> list[str]:
    """Names of the configurations that ship with the package."""
    folder = resources.files("inrank") / "data" / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration.

    Args:
        source: A preset's name or the path of a TOML file.
        overrides: "table.key=value" each, the value written as in TOML (a bare word is taken as a string).

    Raises:
        ConfigError: The file is missing or not TOML, or a key, type or value is wrong.
    """
    if str(source) in preset_names():
        text = (resources.files("inrank") / "data" / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    else:
        path = Path(source)
        names = ", ".join(preset_names())
        require(path.is_file(), f"no configuration {str(source)!r}: not a file, and not one of the presets {names}")
        text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    return override(table, overrides)


def override(table: Mapping[str, Any] | RunConfig, overrides: Sequence[str]) -> RunConfig:
    """A configuration with some keys set otherwise; see `load_config`.

    A change of method to "inrank-full" also sets `_BESIDE_W0`, where that is not set otherwise.

    Raises:
        ConfigError: A key, type or value is wrong.
    """
    values: dict[str, Any] = table.to_dict() if isinstance(table, RunConfig) else copy.deepcopy(dict(table))
    if any(_words(item) == ("method.name", "inrank-full") for item in overrides):
        overrides = [*_BESIDE_W0, *overrides]
    for item in overrides:
        key, separator, text = item.partition("=")
        parents, last = key.strip().split(".")[:-1], key.strip().split(".")[-1]
        require(bool(separator and last), f"override {item!r} must look like table.key=value")
        node: Any = values
        for part in parents:
            node = node.setdefault(part, {})
            require(isinstance(node, dict), f"override {key.strip()}: {part} holds a value, not a table")
        try:
            node[last] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            node[last] = text.strip()
    return RunConfig.from_dict(values)


def _words(item: str) -> tuple[str, str]:
    """Key and bare value of an override."""
    key, _, value = item.partition("=")
    return key.strip(), value.strip().strip("\"'")

"""How ranks start, when they are looked at, and what makes them grow."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

__all__ = ["CRITERIA", "INITIALIZATIONS", "InRankConfig"]

Mode = Literal["efficient", "full"]
CriterionName = Literal["variance", "energy", "stable", "entropy"]
Initialization = Literal["auto", "official", "orthogonal", "spectral", "zero"]
Spectrum = Literal["auto", "product", "update"]
Storage = Literal["resize", "reserve"]
Method = Literal["qr", "gram", "randomized"]

CRITERIA: tuple[str, ...] = get_args(CriterionName)
INITIALIZATIONS: tuple[str, ...] = get_args(Initialization)


@dataclass(frozen=True)
class InRankConfig:
    """Settings of incremental low-rank learning (Zhao et al. 2023, arXiv:2306.11250, algorithms 1 and 2).

    Attributes:
        mode: ``"efficient"``: W = U V, the dense weight is dropped. ``"full"``: W = W_0 + U V, W_0 frozen.
        rank: Initial rank r.
        buffer: Directions trained beyond r, so that the spectrum shows when r is too small; an int, or a float in
            (0, 1): that part of min(m, n).
        threshold: Explained ratio in (0, 1] under which the rank grows.
        criterion: What the ratio is: see `inrank.criteria.RULES`.
        spectrum: ``"product"``: singular values of U V, as the official code has it. ``"update"``: of D = W_t - W at
            the start, which is zero before training. ``"auto"``: ``"update"``, but ``"product"`` if `strict`.
        warmup_steps: Optimizer steps before the first check.
        check_every: Optimizer steps between checks.
        max_rank: Largest rank; an int, or a float in (0, 1]: that part of min(m, n). In efficient mode the buffer gives
            way as the rank grows, so that rank + buffer do not pass the break-even rank m n / (m + n), from which on
            U and V cost more than the dense weight, unless max_rank itself or the initial rank + buffer does (strict:
            never; the official release has R for both).
        init: Initial factors: see `inrank.initialization`. ``"auto"``: ``"zero"`` in full mode, ``"spectral"`` in
            efficient mode.
        init_scale: Multiplies the initial product U V.
        storage: ``"resize"``: tensors have just the active directions. ``"reserve"``: they are allocated once for the
            largest rank and the layer computes with a slice, as DDP and FSDP need it.
        pad_to: Active directions are rounded up to a multiple of this, so that torch.compile sees fewer shapes.
        shrink: Whether a check may also lower the rank.
        method: How singular values are computed: ``"gram"`` (fastest), ``"qr"`` or ``"randomized"`` (the leading ones
            only): see `inrank.spectrum.product_singular_values`.
        strict: The official release to the letter: its loop over candidate ranks with the cap R - b - 1, growth that
            exposes randomly initialised directions (and so changes the function), official initialization.
        seed: Of initial and fresh directions.
    """

    mode: Mode = "efficient"
    rank: int = 2
    buffer: int | float = 0.125
    threshold: float = 0.9
    criterion: CriterionName = "variance"
    spectrum: Spectrum = "auto"
    warmup_steps: int = 20
    check_every: int = 20
    max_rank: int | float = 0.5
    init: Initialization = "auto"
    init_scale: float = 1.0
    storage: Storage = "resize"
    pad_to: int = 1
    shrink: bool = False
    method: Method = "gram"
    strict: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            _check_type(name, getattr(self, name), hint)
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}; it must be in (0, 1], the paper's is 0.9")
        for name in ("rank", "warmup_steps", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("check_every", "pad_to"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("buffer", "max_rank"):
            value = getattr(self, name)
            inside = 0.0 < value <= 1.0 if name == "max_rank" else 0.0 <= value < 1.0
            if isinstance(value, float) and not inside:
                raise ValueError(
                    f"{name} is {value}; a float is a part of min(m, n), so between 0 and 1; give an int for a number"
                )
            if value < 0:
                raise ValueError(f"{name} is {value}; it must not be negative")
        if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
            raise ValueError(f"init_scale is {self.init_scale}; it must be finite and not negative")
        if self.strict and (self.mode != "efficient" or self.shrink or self.storage != "reserve"):
            raise ValueError(
                'strict is the official release, which has mode="efficient", storage="reserve" and shrink=False only; '
                f"given mode={self.mode!r}, storage={self.storage!r}, shrink={self.shrink}"
            )

    @classmethod
    def official(cls, **changes: Any) -> InRankConfig:
        """The official GPT-2 settings: rank 2, buffer 100, threshold 0.9, checks in optimizer steps (8 forwards each).

        Args:
            changes: Fields to set otherwise.
        """
        settings: dict[str, Any] = {
            "rank": 2,
            "buffer": 100,
            "threshold": 0.9,
            "warmup_steps": 25,
            "check_every": 3,
            "init": "official",
            "storage": "reserve",
            "strict": True,
        }
        return cls(**{**settings, **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> InRankConfig:
        """The configuration of a mapping, as from JSON or TOML.

        Raises:
            ValueError: If a key is unknown or a value has another type or is out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise ValueError(f"unknown key {key!r} of the InRank configuration; known: {', '.join(names)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping that `from_dict` reads back."""
        return dataclasses.asdict(self)

    @property
    def resolved_init(self) -> str:
        """The initialization that ``"auto"`` stands for."""
        if self.init != "auto":
            return self.init
        return "official" if self.strict else ("zero" if self.mode == "full" else "spectral")

    @property
    def resolved_spectrum(self) -> str:
        """The spectrum that ``"auto"`` stands for."""
        if self.spectrum != "auto":
            return self.spectrum
        return "product" if self.strict else "update"

    def buffer_of(self, full_rank: int) -> int:
        """Buffer directions of a layer with min(m, n) = full_rank."""
        if isinstance(self.buffer, float):
            return max(1, round(self.buffer * full_rank)) if self.buffer > 0 else 0
        return self.buffer

    def max_rank_of(self, full_rank: int) -> int:
        """Largest rank of a layer with min(m, n) = full_rank."""
        if isinstance(self.max_rank, float):
            return max(1, math.floor(self.max_rank * full_rank))
        return min(self.max_rank, full_rank)


def _check_type(name: str, value: Any, hint: Any) -> None:
    options = get_args(hint)
    if options and all(isinstance(option, str) for option in options):
        if value not in options:
            raise ValueError(f"{name} is {value!r}; known: {', '.join(map(repr, options))}")
        return
    kinds = options or (hint,)
    accepted = (int, float) if kinds == (float,) else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {value!r}; it must be {wanted}")

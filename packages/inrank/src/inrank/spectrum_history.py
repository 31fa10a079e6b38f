"""Singular values of weights and of their cumulative updates over training, and what they say about rank."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from inrank.criteria import energy_ratio, entropy_rank, explained_variance_ratio, stable_rank

__all__ = ["INDEX_FILE", "RankMetrics", "SpectrumHistory", "SpectrumRecord", "rank_metrics", "spectra_file"]

Float = NDArray[np.float32]

INDEX_FILE = "spectra.jsonl"
"""One line for each layer and recorded step: what is known of it but the singular values."""


@dataclass(frozen=True)
class RankMetrics:
    """Rank of one spectrum, by several names; see `inrank.criteria`.

    Attributes:
        energy: Fewest directions with `threshold` of the energy (squared Frobenius norm); None if only leading values
            are known and they have less.
        variance: Fewest k with the paper's explained ratio g(s, k) > threshold; None if only leading values are known.
        stable: Squared Frobenius norm over squared largest value.
        entropy: exp of the spectrum's entropy; None if only leading values are known.
        norm: Frobenius norm.
    """

    energy: int | None
    variance: int | None
    stable: float
    entropy: float | None
    norm: float


@dataclass(frozen=True)
class SpectrumRecord:
    """One layer at one step.

    Attributes:
        step: Optimizer steps done.
        layer: Name.
        shape: (m, n) of the weight as a matrix; convolutions are (out, in / groups * kernel).
        full_rank: Number of singular values that there are.
        update: Singular values of D = W_t - W_0, descending; the leading ones if `top` was set.
        weight: Those of W_t, or None.
        update_ranks: Ranks of D.
        weight_ranks: Ranks of W_t, or None.
    """

    step: int
    layer: str
    shape: tuple[int, int]
    full_rank: int
    update: Float
    weight: Float | None
    update_ranks: RankMetrics
    weight_ranks: RankMetrics | None

    def to_line(self) -> str:
        """All but the singular values, as a line of JSON."""
        values = dataclasses.asdict(self)
        del values["update"], values["weight"]
        return json.dumps(values)

    def arrays(self) -> dict[str, Float]:
        """The singular values, by the names that they have in a file."""
        return {f"{kind}/{self.layer}": s for kind in ("update", "weight") if (s := getattr(self, kind)) is not None}


def rank_metrics(
    s: Sequence[float] | NDArray[Any],
    *,
    threshold: float = 0.9,
    full_rank: int | None = None,
    norm: float | None = None,
) -> RankMetrics:
    """Ranks of a spectrum.

    Args:
        s: Singular values, descending; structural zeros may be left out.
        threshold: In (0, 1], of the energy and of the variance.
        full_rank: How many values there are, where `s` has just the leading ones; default: all are there.
        norm: Frobenius norm of all; default: of `s`.

    Raises:
        ValueError: A threshold outside (0, 1], or no value.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; it must be in (0, 1]")
    values = torch.as_tensor(np.asarray(s, np.float64))
    if values.ndim != 1 or not len(values):
        raise ValueError(f"a spectrum has shape (values,) with one or more; given {tuple(values.shape)}")
    size = math.sqrt(float(values.square().sum())) if norm is None else norm
    if float(values[0]) == 0:
        return RankMetrics(0, 0, 0.0, 0.0, size)
    stable = (size / float(values[0])) ** 2
    if full_rank is not None and full_rank > len(values):
        share = (values / size).square().cumsum(0)
        reached = share >= threshold * (1 - 1e-6)
        first = int(reached.to(torch.int64).argmax()) + 1 if bool(reached.any()) else None
        return RankMetrics(first, None, stable, None, size)
    explained = explained_variance_ratio(values) > threshold
    energy = energy_ratio(values) >= threshold
    return RankMetrics(
        energy=int(energy.to(torch.int64).argmax()) if bool(energy.any()) else len(values),
        variance=int(explained.to(torch.int64).argmax()) if bool(explained.any()) else len(values),
        stable=float(stable_rank(values)),
        entropy=float(entropy_rank(values)),
        norm=size,
    )


class SpectrumHistory:
    """What a `SpectrumTracker` recorded.

    Args:
        records: In the order of steps.
    """

    def __init__(self, records: Sequence[SpectrumRecord] = ()) -> None:
        self.records = list(records)

    @classmethod
    def load(cls, folder: str | Path) -> SpectrumHistory:
        """Read what a tracker streamed to a folder.

        Raises:
            FileNotFoundError: No tracker wrote there.
            ValueError: A line or file that is not a tracker's.
        """
        folder = Path(folder)
        index = folder / INDEX_FILE
        if not index.exists():
            raise FileNotFoundError(f"no {INDEX_FILE} in {folder}; expected the folder of a SpectrumTracker")
        records: list[SpectrumRecord] = []
        arrays: dict[str, Float] = {}
        opened = None
        lines = index.read_text(encoding="utf-8").split("\n")
        # what follows the last line break is empty, or torn by a kill
        for number, line in enumerate(lines[:-1], 1):
            try:
                values = json.loads(line)
                if values["step"] != opened:
                    opened = values["step"]
                    arrays = load_file(spectra_file(folder, opened))
                records.append(_record(values, arrays))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} of {index} is not a record of spectra: {error}") from error
        return cls(records)

    @property
    def layers(self) -> list[str]:
        """Names, in the order of the model."""
        return list(dict.fromkeys(record.layer for record in self.records))

    @property
    def steps(self) -> list[int]:
        """Recorded steps."""
        return list(dict.fromkeys(record.step for record in self.records))

    def of(self, layer: str) -> list[SpectrumRecord]:
        """The records of a layer.

        Raises:
            ValueError: There is none.
        """
        found = [record for record in self.records if record.layer == layer]
        if not found:
            raise ValueError(f"no layer {layer!r} was recorded; there are: {', '.join(self.layers) or 'none'}")
        return found

    def spectra(self, layer: str, kind: str = "update") -> tuple[NDArray[np.int64], Float]:
        """Steps (points,) and singular values (points, values) of a layer.

        Args:
            layer: Its name.
            kind: ``"update"`` (D_t) or ``"weight"`` (W_t).

        Raises:
            ValueError: An unknown layer or kind, or weights that were not recorded.
        """
        found = self.of(layer)
        values = [_of_kind(record, kind) for record in found]
        if any(value is None for value in values):
            raise ValueError(f"spectra of W were not recorded for {layer!r}; make the tracker with weights=True")
        return np.array([record.step for record in found]), np.array(values, np.float32)

    def ranks(self, kind: str = "update", metric: str = "energy") -> dict[str, NDArray[np.float64]]:
        """Ranks (points,) of each layer.

        Args:
            kind: ``"update"`` or ``"weight"``.
            metric: A field of `RankMetrics`.

        Raises:
            ValueError: An unknown kind or metric.
        """
        if metric not in {field.name for field in dataclasses.fields(RankMetrics)}:
            raise ValueError(f"no metric {metric!r}; known: energy, variance, stable, entropy, norm")
        curves: dict[str, list[float]] = {}
        for record in self.records:
            metrics = _of_kind(record, kind, "_ranks")
            value = None if metrics is None else getattr(metrics, metric)
            curves.setdefault(record.layer, []).append(math.nan if value is None else float(value))
        return {layer: np.array(values) for layer, values in curves.items()}


def spectra_file(folder: Path, step: int) -> Path:
    """The file with a step's singular values."""
    return folder / f"spectra-{step:08d}.safetensors"


def _of_kind(record: SpectrumRecord, kind: str, suffix: str = "") -> Any:
    if kind not in ("update", "weight"):
        raise ValueError(f"kind is {kind!r}; expected 'update' (D) or 'weight' (W)")
    return getattr(record, kind + suffix)


def _record(values: dict[str, Any], arrays: dict[str, Float]) -> SpectrumRecord:
    weight_ranks = values["weight_ranks"]
    layer = values["layer"]
    return SpectrumRecord(
        step=int(values["step"]),
        layer=layer,
        shape=(int(values["shape"][0]), int(values["shape"][1])),
        full_rank=int(values["full_rank"]),
        update=arrays[f"update/{layer}"],
        weight=arrays.get(f"weight/{layer}"),
        update_ranks=RankMetrics(**values["update_ranks"]),
        weight_ranks=None if weight_ranks is None else RankMetrics(**weight_ranks),
    )

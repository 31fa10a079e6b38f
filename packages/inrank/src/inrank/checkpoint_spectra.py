"""Spectra of what lies between two checkpoints of a model: D = W_after - W_before, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inrank.matching import Patterns, as_patterns, matches
from inrank.matrix_spectrum import MatrixSpectrum, matrix_spectrum
from inrank.spectrum import difference_factors
from inrank.spectrum_history import RankMetrics, SpectrumRecord, rank_metrics
from inrank.spectrum_tracker import factor_spectrum

__all__ = ["CheckpointSpectra", "update_spectra"]


class CheckpointSpectra:
    """What `update_spectra` found.

    Args:
        records: One for each weight that both checkpoints have; their step is 0.
        skipped: Why others have none, by name.
    """

    def __init__(self, records: list[SpectrumRecord], skipped: dict[str, str]) -> None:
        self.records, self.skipped = records, skipped


def update_spectra(
    before: str | Path,
    after: str | Path,
    *,
    include: Patterns | None = None,
    exclude: Patterns = (),
    method: str = "gram",
    top: int | None = None,
    threshold: float = 0.9,
    seed: int = 0,
) -> CheckpointSpectra:
    """Compare two checkpoints weight by weight, with the memory of one weight at a time.

    Dense weights are compared as matrices (out, the rest). Low-rank layers (``u`` and ``v`` under one name) are
    compared through their factors, whatever their ranks.

    Args:
        before: A safetensors file, or a folder with model.safetensors or its shards and their index.
        after: Another.
        include: Names or regular expressions (see `inrank.wrap`) of what to compare; default: all.
        exclude: Of what not to.
        method: ``"gram"`` or ``"svd"``: see `inrank.matrix_spectrum`.
        top: Only so many leading values of larger matrices.
        threshold: Of the ranks.
        seed: Of the randomized method that `top` uses.

    Returns:
        Spectra of D and, but for low-rank layers that keep W_0, of the weight after; and what was skipped.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A file is not a safetensors file, or no weight is in both.
    """
    old, new = _Checkpoint(before), _Checkpoint(after)
    wanted = None if include is None else as_patterns(include)
    unwanted = as_patterns(exclude)
    records: list[SpectrumRecord] = []
    skipped: dict[str, str] = {}
    nothing = torch.nn.Module()  # patterns that are types match no name in a file
    for name in new.weights():
        if wanted is not None and not any(matches(p, name, nothing) for p in wanted):
            continue
        if any(matches(p, name, nothing) for p in unwanted):
            continue
        reason = _reason(name, old, new)
        if reason:
            skipped[name] = reason
            continue
        generator = torch.Generator().manual_seed(seed)
        try:
            update, weight, shape = _compare(name, old, new, method, top, generator)
        except FloatingPointError as error:
            raise FloatingPointError(f"weight {name}: {error}") from error
        records.append(_record(name, shape, update, weight, top, threshold))
    if not records:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:8])
        raise ValueError(f"no weight of {after} can be compared with {before}: {reasons or 'none is matched'}")
    return CheckpointSpectra(records, skipped)


def _record(
    name: str,
    shape: tuple[int, int],
    update: MatrixSpectrum,
    weight: MatrixSpectrum | None,
    top: int | None,
    threshold: float,
) -> SpectrumRecord:
    def ranks(spectrum: MatrixSpectrum) -> RankMetrics:
        return rank_metrics(
            spectrum.s[:top].numpy(), threshold=threshold, full_rank=spectrum.full_rank, norm=spectrum.norm
        )

    return SpectrumRecord(
        step=0,
        layer=name,
        shape=shape,
        full_rank=update.full_rank,
        update=update.s[:top].numpy(),
        weight=None if weight is None else weight.s[:top].numpy(),
        update_ranks=ranks(update),
        weight_ranks=None if weight is None else ranks(weight),
    )


class _Checkpoint:
    """Tensors by name, over one or more files."""

    def __init__(self, path: str | Path) -> None:
        self.files: dict[str, Path] = {}
        for file in _files(Path(path)):
            try:
                with safe_open(file, framework="pt") as opened:
                    self.files |= dict.fromkeys(opened.keys(), file)
            except SafetensorError as error:
                raise ValueError(f"{file} is not a safetensors file: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def is_low_rank(self, name: str) -> bool:
        return f"{name}.u" in self and f"{name}.v" in self

    def key(self, name: str) -> str | None:
        """The tensor of a dense weight."""
        return next((key for key in (f"{name}.weight", name) if key in self), None)

    def weights(self) -> Iterator[str]:
        """Names of weights: of modules, or of tensors that are not called weight."""
        for key in sorted(self.files):
            parent, _, last = key.rpartition(".")
            if parent and self.is_low_rank(parent):
                if last == "u":
                    yield parent
            else:
                yield parent if parent and last == "weight" else key

    def shape(self, key: str) -> tuple[int, ...]:
        with safe_open(self.files[key], framework="pt") as file:
            return tuple(file.get_slice(key).get_shape())

    def tensor(self, key: str) -> Tensor:
        with safe_open(self.files[key], framework="pt") as file:
            value: Tensor = file.get_tensor(key)
            return value

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """U (groups, m, k) and V (groups, k, n) in float64."""
        u, v = self.tensor(f"{name}.u").double(), self.tensor(f"{name}.v").double()
        v = v if v.ndim == 3 else v[None]
        return u.reshape(v.shape[0], -1, u.shape[-1]), v


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"no file {path}; expected a safetensors file or a folder with one")
        return [path]
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [path / name for name in dict.fromkeys(names)]
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    raise FileNotFoundError(f"no model.safetensors in {path}; give the file itself")


def _reason(name: str, old: _Checkpoint, new: _Checkpoint) -> str:
    """Why a weight cannot be compared; empty if it can."""
    if old.is_low_rank(name) != new.is_low_rank(name):
        kinds = ("dense", "low rank")
        if not old.is_low_rank(name) and old.key(name) is None:
            return "not in the first checkpoint"
        return f"{kinds[old.is_low_rank(name)]} before, {kinds[new.is_low_rank(name)]} after; merge it first"
    if new.is_low_rank(name):
        rows = [(c.shape(f"{name}.u")[0], c.shape(f"{name}.v")[-1]) for c in (old, new)]
        if rows[0] != rows[1]:
            return f"its shape was {rows[0]} and is {rows[1]}"
        kept = [c.tensor(f"{name}.weight0") if f"{name}.weight0" in c else None for c in (old, new)]
        if (kept[0] is None) != (kept[1] is None) or (
            kept[0] is not None and kept[1] is not None and not torch.equal(kept[0], kept[1])
        ):
            return "W_0 is not the same in both"
        return ""
    old_key, new_key = old.key(name), new.key(name)
    if old_key is None or new_key is None:
        return "not in the first checkpoint"
    shapes = old.shape(old_key), new.shape(new_key)
    if shapes[0] != shapes[1]:
        return f"its shape was {shapes[0]} and is {shapes[1]}"
    if len(shapes[1]) < 2:
        return f"it has {len(shapes[1])} dimensions"
    return "" if new.tensor(new_key).is_floating_point() else "its numbers are not of a floating type"


def _compare(
    name: str, old: _Checkpoint, new: _Checkpoint, method: str, top: int | None, generator: torch.Generator
) -> tuple[MatrixSpectrum, MatrixSpectrum | None, tuple[int, int]]:
    if new.is_low_rank(name):
        (u0, v0), (u, v) = old.factors(name), new.factors(name)
        shape = (u.shape[0] * u.shape[1], v.shape[2])
        update = factor_spectrum(*difference_factors(u, v, u0, v0))
        # in which layout W_0 is kept is the layer's business, and a file does not say it
        return update, None if f"{name}.weight0" in new else factor_spectrum(u, v), shape
    after = new.tensor(new.key(name) or "").double()
    before = old.tensor(old.key(name) or "").double()
    after, before = (x.reshape(1, x.shape[0], -1) for x in (after, before))
    update = matrix_spectrum(after - before, method=method, top=top, generator=generator)
    weight = matrix_spectrum(after, method=method, top=top, generator=generator)
    return update, weight, (after.shape[1], after.shape[2])

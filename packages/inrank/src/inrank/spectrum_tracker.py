"""Records the singular values of cumulative weight updates while any model trains with any optimizer.

D_t = W_t - W_0 is what the paper calls low rank and slowly growing (Zhao et al. 2023, arXiv:2306.11250, section 3);
W_t itself is not. A tracker keeps W_0 (in memory, in half precision or on disk), and at every n-th step it computes the
spectra layer by layer, with the memory of one layer, and streams them to a folder.

    >>> tracker = SpectrumTracker(model, every=20, folder="out/spectra")
    >>> for batch in batches:
    ...     loss(model, batch).backward(); optimizer.step(); tracker.step()
    >>> tracker.history.ranks()["blocks.0.mlp.fc1"]
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.numpy import save as serialize
from safetensors.torch import save_file
from torch import Tensor, nn

from inrank._files import sync_folder, write_atomically
from inrank.layers import LowRankLayer
from inrank.layers.sharding import read_whole
from inrank.matching import Patterns, as_patterns, matches, no_match_message
from inrank.matrix_spectrum import METHODS, MatrixSpectrum, as_matrices, matrix_spectrum
from inrank.spectrum import difference_factors, product_singular_values
from inrank.spectrum_history import INDEX_FILE, SpectrumHistory, SpectrumRecord, rank_metrics, spectra_file

__all__ = ["KEEP", "SpectrumTracker", "factor_spectrum"]

KEEP = ("memory", "half", "disk")
"""Where W_0 is kept."""

_INITIAL_FILE = "initial.safetensors"


@dataclass(frozen=True)
class _Target:
    """A weight: the parameter `attribute` of a module, or the factors of a low-rank layer (attribute "")."""

    path: str
    module: nn.Module
    attribute: str

    @property
    def name(self) -> str:
        attribute = self.attribute or "weight"
        return self.path if self.path and attribute == "weight" else f"{self.path}.{attribute}".lstrip(".")

    def tensors(self) -> dict[str, Tensor]:
        """The weight in its layout, or U (groups, m, k) and V (groups, k, n); detached."""
        if isinstance(self.module, LowRankLayer):
            u, v = self.module.factors()
            return {"u": u, "v": v}
        return {"weight": read_whole(getattr(self.module, self.attribute)).detach()}


class SpectrumTracker:
    """Spectra of D_t and W_t of every weight with two or more dimensions.

    Low-rank layers need no dense product for D: their factors and the initial ones give it. The tracker must be made
    where training starts, and after `inrank.wrap`. Under DDP or FSDP2 all processes must call it, and one of them may
    have a folder.

    Args:
        model: Any module.
        include: Names, regular expressions or module types (see `inrank.wrap`); default: all weights.
        exclude: The same, to leave out.
        every: Optimizer steps between records.
        folder: Where spectra are streamed; None keeps them in memory.
        weights: Whether W_t is recorded beside D_t.
        keep: Where W_0 is kept: ``"memory"``; ``"half"``, in float16, which puts a floor of about 3e-4 of the norm of
            W_0 under the spectrum of D; ``"disk"``, in the folder, from where `resume` finds it. Default: ``"disk"``
            with a folder, else ``"memory"``.
        method: ``"gram"`` or ``"svd"``: see `inrank.matrix_spectrum`.
        top: Only so many leading values of larger matrices, by a randomized method; energy and stable ranks stay exact.
        threshold: Of the ranks that are reported.
        seed: Of the randomized method.
        resume: Go on in a folder with W_0 on disk: after a restart from a checkpoint.

    Raises:
        ValueError: Nothing is matched, a bad option, a folder that is in use, or one without what `resume` needs.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        include: Patterns | None = None,
        exclude: Patterns = (),
        every: int = 1,
        folder: str | Path | None = None,
        weights: bool = True,
        keep: str | None = None,
        method: str = "gram",
        top: int | None = None,
        threshold: float = 0.9,
        seed: int = 0,
        resume: bool = False,
    ) -> None:
        keep = keep or ("memory" if folder is None else "disk")
        if keep not in KEEP:
            raise ValueError(f"keep is {keep!r}; known: {', '.join(KEEP)}")
        if (keep == "disk" or resume) and folder is None:
            raise ValueError("keep='disk' and resume=True need a folder")
        if resume and keep != "disk":
            raise ValueError(f"keep is {keep!r}; only keep='disk' leaves the W_0 that resume=True needs")
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}; it must be in (0, 1]")
        if top is not None and top < 1:
            raise ValueError(f"top is {top}; it must be at least 1, or None for all")
        self.model, self.every, self.weights, self.method = model, every, weights, method
        self.top, self.threshold, self.seed = top, threshold, seed
        self.folder = None if folder is None else Path(folder)
        self.steps = 0
        self._written: int | None = None
        self._targets = _find(model, include, exclude)
        self._initial: dict[str, Tensor] | None = None
        self._history = SpectrumHistory()
        if self.folder is not None:
            self._open(self.folder, resume)
        if keep != "disk":
            self._initial = {key: self._copied(value, keep) for key, value in self._present().items()}
        elif not resume:
            _save_file({k: _whole(v) for k, v in self._present().items()}, self._initial_path)

    @property
    def layers(self) -> list[str]:
        """Names of what is tracked."""
        return [target.name for target in self._targets]

    @property
    def history(self) -> SpectrumHistory:
        """All records so far, read from the folder if there is one."""
        if self.folder is None:
            return self._history
        return SpectrumHistory.load(self.folder) if (self.folder / INDEX_FILE).exists() else SpectrumHistory()

    def step(self) -> list[SpectrumRecord]:
        """Count an optimizer step, and record if it is an n-th; call it after `optimizer.step()`.

        Returns:
            What was recorded; mostly nothing.

        Raises:
            FloatingPointError: A weight is not finite; names layer and step.
        """
        self.steps += 1
        return [] if self.steps % self.every else self.record()

    def record(self, step: int | None = None) -> list[SpectrumRecord]:
        """Record all layers now.

        Args:
            step: Optimizer steps done; default: as counted. Records of this and later steps are replaced.

        Raises:
            FloatingPointError: A weight is not finite; names layer and step.
            RuntimeError: A layer was replaced since the tracker was made.
        """
        self.steps = self.steps if step is None else step
        records = [self._record(target) for target in self._targets]
        if self.folder is None:
            self._history.records = [r for r in self._history.records if r.step < self.steps] + records
        else:
            self._stream(self.folder, records)
        return records

    def _record(self, target: _Target) -> SpectrumRecord:
        if self.model.get_submodule(target.path) is not target.module:
            raise RuntimeError(
                f"layer {target.path!r} was replaced since the tracker was made; make the tracker after inrank.wrap, "
                "and a new one after finalize or merge"
            )
        now = target.tensors()
        start = {key: self._start(f"{target.name}/{key}").to(value.device) for key, value in now.items()}
        try:
            if isinstance(target.module, LowRankLayer):
                update = factor_spectrum(*difference_factors(now["u"], now["v"], start["u"], start["v"]))
                shape = (now["u"].shape[1] * now["u"].shape[0], now["v"].shape[2])
            else:
                update = self._dense(now["weight"].double() - start["weight"].double(), target)
                shape = (now["weight"].shape[0], now["weight"][0].numel())
            weight = self._weight(now, target) if self.weights else None
        except FloatingPointError as error:
            raise FloatingPointError(f"layer {target.name} at step {self.steps}: {error}") from error
        update, weight = self._cut(update), None if weight is None else self._cut(weight)
        return SpectrumRecord(
            step=self.steps,
            layer=target.name,
            shape=shape,
            full_rank=update.full_rank,
            update=update.s.numpy(),
            weight=None if weight is None else weight.s.numpy(),
            update_ranks=rank_metrics(
                update.s.numpy(), threshold=self.threshold, full_rank=update.full_rank, norm=update.norm
            ),
            weight_ranks=None
            if weight is None
            else rank_metrics(weight.s.numpy(), threshold=self.threshold, full_rank=weight.full_rank, norm=weight.norm),
        )

    def _weight(self, now: dict[str, Tensor], target: _Target) -> MatrixSpectrum:
        if not isinstance(target.module, LowRankLayer):
            return self._dense(now["weight"], target)
        if target.module.weight0 is None:
            return factor_spectrum(now["u"], now["v"])
        matrices = target.module.as_matrix(target.module.dense_weight(torch.float64))
        return matrix_spectrum(matrices, method=self.method, top=self.top, generator=self._generator())

    def _dense(self, weight: Tensor, target: _Target) -> MatrixSpectrum:
        matrices = as_matrices(weight, target.module)
        return matrix_spectrum(matrices, method=self.method, top=self.top, generator=self._generator())

    def _cut(self, spectrum: MatrixSpectrum) -> MatrixSpectrum:
        return spectrum if self.top is None else spectrum._replace(s=spectrum.s[: self.top])

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    # -- W_0 and files -------------------------------------------------------------------------------------------

    def _present(self) -> dict[str, Tensor]:
        return {f"{target.name}/{key}": value for target in self._targets for key, value in target.tensors().items()}

    @staticmethod
    def _copied(value: Tensor, keep: str) -> Tensor:
        return value.to(torch.float16) if keep == "half" and value.dtype != torch.float16 else value.clone()

    @property
    def _initial_path(self) -> Path:
        return (self.folder or Path()) / _INITIAL_FILE

    def _start(self, key: str) -> Tensor:
        if self._initial is not None:
            return self._initial[key]
        with safe_open(self._initial_path, framework="pt") as file:
            value: Tensor = file.get_tensor(key)
            return value

    def _open(self, folder: Path, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        used = [name for name in (INDEX_FILE, _INITIAL_FILE) if (folder / name).exists()]
        if not resume:
            if used:
                raise ValueError(
                    f"{folder} has the {used[0]} of another run; take another folder, or resume=True to go on with it"
                )
            return
        if _INITIAL_FILE not in used:
            raise ValueError(f"{folder} has no {_INITIAL_FILE}; without W_0 a run cannot be resumed")
        with safe_open(self._initial_path, framework="pt") as file:
            missing = sorted(set(self._present()) - set(file.keys()))
        if missing:
            raise ValueError(f"{self._initial_path} has no W_0 of {', '.join(missing)}; was the model another one?")
        if INDEX_FILE in used:
            self.steps = max(SpectrumHistory.load(folder).steps, default=0)

    def _stream(self, folder: Path, records: list[SpectrumRecord]) -> None:
        arrays = {name: values for record in records for name, values in record.arrays().items()}
        write_atomically(spectra_file(folder, self.steps), serialize(arrays))
        index = folder / INDEX_FILE
        lines = [record.to_line() for record in records]
        earlier = SpectrumHistory.load(folder).records if index.exists() and self._is_behind(folder) else None
        if earlier is None:
            with index.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())
        else:
            kept = [record.to_line() for record in earlier if record.step < self.steps]
            write_atomically(index, ("\n".join([*kept, *lines]) + "\n").encode())
        self._written = self.steps

    def _is_behind(self, folder: Path) -> bool:
        """Whether the index has lines of this step or later ones, or may have, as after a restart."""
        return self._written is None or self.steps <= self._written


def factor_spectrum(u: Tensor, v: Tensor) -> MatrixSpectrum:
    """Singular values of U V, blocks (groups, m, k) and (groups, k, n), without the product; zeros included."""
    u, v = u.double(), v.double()
    s = product_singular_values(u, v).flatten().sort(descending=True).values
    # where factors cancel, as those of D before training do, rounding is left; it is no direction
    s = torch.where(s > 1e-13 * torch.linalg.vector_norm(u) * torch.linalg.vector_norm(v), s, 0.0)
    return MatrixSpectrum(s.float().cpu(), len(s), float(torch.linalg.vector_norm(s)))


def _find(model: nn.Module, include: Patterns | None, exclude: Patterns) -> list[_Target]:
    found: list[_Target] = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, LowRankLayer):
            found.append(_Target(path, module, ""))
            continue
        for attribute, parameter in module.named_parameters(recurse=False):
            if parameter.ndim >= 2 and parameter.is_floating_point() and id(parameter) not in seen:
                seen.add(id(parameter))
                found.append(_Target(path, module, attribute))
    wanted = None if include is None else as_patterns(include)
    unwanted = as_patterns(exclude)
    chosen = [
        target
        for target in found
        if (wanted is None or any(matches(p, target.name, target.module) for p in wanted))
        and not any(matches(p, target.name, target.module) for p in unwanted)
    ]
    if not chosen:
        raise ValueError(no_match_message("include", wanted or (), {t.name: t.module for t in found}))
    return chosen


def _whole(tensor: Tensor) -> Tensor:
    """A copy of its own, as safetensors wants it."""
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def _save_file(tensors: dict[str, Tensor], path: Path) -> None:
    """As `write_atomically`, without a second copy of all weights in memory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(tensors, temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)

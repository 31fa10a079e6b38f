"""Checkpoints a run can be killed under: safetensors + JSON, hashed, renamed into place.

A checkpoint is one folder::

    step-00000200/
        weights.safetensors  ema.safetensors  optimizer.safetensors  random.safetensors
        state.json           progress, configuration, architecture, sha256 of the files above

It is written under a temporary name, every file and the folder are fsynced, and only then it is
renamed. What carries the final name is therefore complete; what was damaged later is told by its
hash, and the newest good one is used instead, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from sfno_jax._files import sync_folder, write_synced

__all__ = [
    "ArchitectureError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "DamagedCheckpointWarning",
    "architecture",
    "named_arrays",
    "restore",
]

_FORMAT = 1
Arrays = dict[str, NDArray[Any]]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read."""


class ArchitectureError(ValueError):
    """A checkpoint of another network than the one it is loaded into."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was found damaged and an older one is used."""


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: tuple[Any, ...]) -> str:
    parts = []
    for entry in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(entry, attribute):
                parts.append(str(getattr(entry, attribute)))
                break
        else:
            parts.append(str(entry))
    return ".".join(part for part in parts if part != "value") or "value"


def named_arrays(tree: Any) -> Arrays:
    """The leaves of a pytree as NumPy arrays under dotted names; random keys as their words.

    Raises:
        ValueError: When two leaves would get one name.
    """
    arrays: Arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = _name(path)
        if name in arrays:
            raise ValueError(f"two leaves of the tree are called {name!r}")
        data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        arrays[name] = np.ascontiguousarray(np.asarray(data)).reshape(np.shape(data))
    return arrays


def restore(arrays: Mapping[str, NDArray[Any]], like: Any, what: str) -> Any:
    """Put arrays back into the structure of ``like``, bit for bit.

    Args:
        arrays: As :func:`named_arrays` returns.
        like: Pytree of the same structure.
        what: Name for messages.

    Raises:
        ArchitectureError: When names, shapes or dtypes differ; the first differences are listed.
    """
    want = {name: (a.shape, a.dtype) for name, a in named_arrays(like).items()}
    have = {name: (a.shape, a.dtype) for name, a in arrays.items()}
    if want != have:
        raise ArchitectureError(f"the checkpoint's {what} do not fit: {_differences(want, have)}")

    def leaf(path: tuple[Any, ...], old: Any) -> Any:
        value = jnp.asarray(arrays[_name(path)])
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(old)) if _is_key(old) else value

    return jax.tree_util.tree_map_with_path(leaf, like)


def _differences(want: Mapping[str, Any], have: Mapping[str, Any]) -> str:
    lines = [f"{name} is missing in the checkpoint" for name in want if name not in have]
    lines += [f"{name} is not in this model" for name in have if name not in want]
    lines += [
        f"{name} is {_text(have[name])} in the checkpoint and {_text(want[name])} here"
        for name in want
        if name in have and want[name] != have[name]
    ]
    more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
    return "; ".join(lines[:4]) + more


def _text(entry: Any) -> str:
    return f"{entry[1]}{list(entry[0])}"


def architecture(params: Any) -> str:
    """Hash of names, shapes and dtypes of all parameters: equal hashes take equal weights."""
    table = sorted((name, list(a.shape), str(a.dtype)) for name, a in named_arrays(params).items())
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose hashes agree.

    Attributes:
        path: Its folder.
        groups: Arrays by file, as ``groups["weights"]["encoder.0.weight"]``.
        meta: What else was saved, JSON values.
    """

    path: Path
    groups: dict[str, Arrays]
    meta: dict[str, Any]


class CheckpointStore:
    """The checkpoints of a run, newest last, of which ``keep`` are kept.

    Args:
        folder: Where they lie; created at the first save.
        keep: How many are kept.
    """

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder = Path(folder)
        self.keep = keep

    def paths(self) -> list[Path]:
        """Folders under their final name, oldest first."""
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []

    def save(self, step: int, groups: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
        """Write a checkpoint.

        Args:
            step: Global step; names the folder.
            groups: Pytrees of arrays by file name.
            meta: JSON values.

        Returns:
            The folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        temporary = self.folder / f".step-{step:08d}.{os.getpid()}.tmp"
        temporary.mkdir()
        files = {}
        for name, tree in groups.items():
            data = safetensors.numpy.save(named_arrays(tree))
            write_synced(temporary / f"{name}.safetensors", data)
            files[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
        state = {"format": _FORMAT, "step": step, "files": files, "meta": dict(meta)}
        text = json.dumps(state, indent=1)
        seal = hashlib.sha256(text.encode()).hexdigest()
        write_synced(temporary / "state.json", text.encode())
        write_synced(temporary / "state.sha256", seal.encode())
        sync_folder(temporary)
        final = self.folder / f"step-{step:08d}"
        if final.exists():
            self._discard(final)
        os.rename(temporary, final)
        sync_folder(self.folder)
        for old in self.paths()[: -self.keep]:
            self._discard(old)
        return final

    def _discard(self, path: Path) -> None:
        # renamed first: a kill while deleting must not leave half a checkpoint under its name
        doomed = path.with_name(f".{path.name}.{os.getpid()}.old")
        os.rename(path, doomed)
        shutil.rmtree(doomed)

    def _sweep(self) -> None:
        for leftover in (*self.folder.glob(".step-*.tmp"), *self.folder.glob(".step-*.old")):
            shutil.rmtree(leftover, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """The newest good checkpoint, or None when there is none at all.

        Warns:
            DamagedCheckpointWarning: For each damaged one that was passed over.

        Raises:
            CheckpointError: When checkpoints exist but every one is damaged.
        """
        paths = self.paths()
        damage = []
        for path in reversed(paths):
            try:
                checkpoint = self.load(path)
            except CheckpointError as error:
                damage.append(str(error))
                continue
            for message in damage:
                warnings.warn(
                    f"{message}; going on from {checkpoint.path.name}",
                    DamagedCheckpointWarning,
                    stacklevel=2,
                )
            return checkpoint
        if damage:
            raise CheckpointError(
                f"none of the {len(paths)} checkpoints in {self.folder} can be read: "
                f"{'; '.join(damage)}. Train from the start in another folder."
            )
        return None

    @staticmethod
    def load(path: str | Path) -> Checkpoint:
        """Read one checkpoint and verify its hashes.

        Raises:
            CheckpointError: When it is missing, incomplete or damaged.
        """
        path = Path(path)
        try:
            text = (path / "state.json").read_bytes()
            seal = (path / "state.sha256").read_text()
            if hashlib.sha256(text).hexdigest() != seal:
                raise CheckpointError(f"checkpoint {path} is damaged: state.json has another hash")
            state = json.loads(text)
            if state["format"] != _FORMAT:
                raise CheckpointError(f"checkpoint {path} has format {state['format']}, this version reads {_FORMAT}")
            groups = {}
            for name, digest in state["files"].items():
                data = (path / name).read_bytes()
                if hashlib.sha256(data).hexdigest() != digest:
                    raise CheckpointError(f"checkpoint {path} is damaged: {name} has another hash")
                groups[name.removesuffix(".safetensors")] = safetensors.numpy.load(data)
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} is incomplete: {error.strerror}: {error.filename}") from error
        return Checkpoint(path, groups, state["meta"])

"""The files of a checkpoint: a folder that appears when it is whole, and an index that is checked when it is read."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from inrank._files import sync_folder, write_synced
from inrank.state_tree import saved_tensor

__all__ = ["FORMAT", "INDEX", "damage_named", "intact_folder", "read_index", "read_tensors", "write_folder"]

FORMAT = "inrank checkpoint 1"
INDEX = "checkpoint.json"

# What an index has, but for its format.
_ENTRIES: dict[str, type | UnionType] = {
    "steps": int | None,
    "layers": dict,
    "aliases": dict,
    "optimizers": list,
    "controller": dict | None,
    "scheduler": dict | None,
    "extra": dict,
    "processes": int,
    "files": dict,
}


def write_folder(
    folder: Path, index: dict[str, Any], weights: dict[str, Tensor], tensors: dict[str, Tensor], generators: list[bytes]
) -> None:
    """Write a checkpoint beside its place, and rename it when it is whole.

    Raises:
        FileExistsError: If the folder holds something else than a checkpoint.
    """
    if folder.exists() and not (folder / INDEX).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is no checkpoint; give another name or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, previous = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.previous")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, content in (("model", weights), ("state", tensors)):
        path = temporary / f"{name}.safetensors"
        save_file({key: saved_tensor(value) for key, value in content.items()}, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    for rank, blob in enumerate(generators):
        write_synced(temporary / f"rng-{rank}.safetensors", blob)
    index["files"] = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
    write_synced(temporary / INDEX, json.dumps(index, indent=1).encode())
    sync_folder(temporary)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    os.rename(temporary, folder)
    sync_folder(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a checkpoint whose files are all there, whole.

    Raises:
        ValueError: If not.
    """
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} is no checkpoint: it has no {INDEX}")
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / INDEX} cannot be read: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"{folder / INDEX} is not of the format {FORMAT!r}")
    wrong = _wrong_entry(index)
    if wrong is not None:
        raise ValueError(f"{folder / INDEX} is damaged or was edited: {wrong}")
    for name, size in index["files"].items():
        path = folder / name
        if not path.exists() or path.stat().st_size != size:
            there = f"has {path.stat().st_size}" if path.exists() else "is missing"
            raise ValueError(f"checkpoint {folder} is damaged: {name} should have {size} bytes and {there}")
    return index


def _wrong_entry(index: dict[str, Any]) -> str | None:
    """What an index lacks, or has otherwise than `save` writes it."""
    for key, kind in _ENTRIES.items():
        if key not in index or not isinstance(index[key], kind):
            return f"{key!r} is missing or of another type"
    for name, entry in index["layers"].items():
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if not isinstance(ranks, dict) or not {"type", "shape", "groups"} <= set(entry):
            return f"layer {name} is not described"
        sizes: list[Any] = [ranks.get(key) for key in ("rank", "active", "capacity")]
        if not all(isinstance(size, int) and size >= 0 for size in sizes) or sizes != sorted(sizes):
            return f"layer {name}: rank <= active <= capacity are {', '.join(map(str, sizes))}"
        if not {"max_rank", "growing", "initial"} <= set(ranks):
            return f"layer {name} lacks max_rank, growing or initial"
    for entry in index["optimizers"]:
        if not isinstance(entry, dict) or not {"type", "parameters", "state"} <= set(entry):
            return "an optimizer lacks type, parameters or state"
    return None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        ValueError: If it is damaged.
    """
    with damage_named(path):
        return load_file(path)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turns safetensors' complaint about a file into a ValueError that names it."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def intact_folder(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint that is whole, the one before it if need be, and its index.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged and there is none before it.
    """
    previous = folder.with_name(f".{folder.name}.previous")
    if not folder.exists() and not previous.exists():
        raise FileNotFoundError(f"there is no checkpoint {folder}")
    try:
        if folder.exists():
            return folder, read_index(folder)
    except ValueError as error:
        if not previous.exists():
            raise
        warnings.warn(f"{error}; the one before it is taken", stacklevel=3)
    return previous, read_index(previous)

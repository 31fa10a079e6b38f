"""Writing files that survive a kill or a power cut: whole, or not there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_atomically", "write_synced"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

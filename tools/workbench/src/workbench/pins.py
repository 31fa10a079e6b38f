"""Exact versions without addresses: the root's constraints and requirements.lock.

uv.lock names a registry's address on every line, so it stays out of git. Its content is kept in two
address-free forms, both written from it:

- ``[tool.uv] constraint-dependencies`` in the root pyproject: one exact version per distribution,
  with an environment marker where versions fork by Python version or platform. A fresh clone
  resolves under these constraints and so arrives at the same versions.
- ``requirements.lock``: the same versions with the hashes of their files, for hash-checked installs
  (``pip install --require-hashes -r requirements.lock``).
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tomlkit
from packaging.utils import canonicalize_name

from workbench.workspace import Workspace, WorkspaceError

__all__ = [
    "Pin",
    "constraints",
    "differences",
    "export_lock",
    "parse_lock",
    "render_lock",
    "upgrade",
    "uv_command",
    "write_pins",
]

LOCK = "requirements.lock"
_HEADER = "# Written by `uv run pins` from uv.lock; see the README on versions and locks."
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(\s*;\s*(?P<marker>.+))?$")
_ADDRESS = re.compile(r"://|@\s*file:|--(extra-)?index-url|--find-links")


@dataclass(frozen=True)
class Pin:
    """One exact version, where it holds, and the hashes of its files."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """As written in a requirements file, with the marker if there is one."""
        exact = f"{self.name}=={self.version}"
        return f"{exact} ; {self.marker}" if self.marker else exact


def uv_command() -> str:
    """The uv executable: the one that runs us, else the one on PATH.

    Raises:
        WorkspaceError: There is none.
    """
    found = os.environ.get("UV") or shutil.which("uv")
    if not found:
        raise WorkspaceError("uv is not on PATH; install it with `pip install uv`")
    return found


def export_lock(workspace: Workspace) -> str:
    """What ``uv export`` says of uv.lock: every distribution of every member, extra and group.

    Raises:
        WorkspaceError: uv.lock is missing, or uv refuses it.
    """
    if not (workspace.root / "uv.lock").is_file():
        raise WorkspaceError("there is no uv.lock yet; `uv lock` (or any `uv run`) writes it")
    options = (
        "--frozen --all-packages --all-extras --all-groups --no-emit-workspace "
        "--no-header --no-annotate --format requirements-txt --color never"
    )
    done = subprocess.run(
        [uv_command(), "export", *options.split()],
        cwd=workspace.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise WorkspaceError(f"uv export failed:\n{done.stderr.strip()}")
    return done.stdout


def parse_lock(text: str) -> tuple[Pin, ...]:
    """Reads a requirements file of exact versions with hashes.

    Raises:
        WorkspaceError: A line is something else, such as an address.
    """
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    pins = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        head, *hashes = re.split(r"\s+--hash=", line)
        found = _REQUIREMENT.match(head.strip())
        if not found or _ADDRESS.search(line):
            raise WorkspaceError(f"expected `name==version ; marker --hash=...`, got: {line[:120]}")
        pins.append(
            Pin(
                canonicalize_name(found["name"]),
                found["version"],
                (found["marker"] or "").strip(),
                tuple(sorted(hashes)),
            )
        )
    return tuple(sorted(pins, key=lambda pin: (pin.name, pin.marker)))


def render_lock(pins: tuple[Pin, ...]) -> str:
    """The text of requirements.lock."""
    blocks = [" \\\n    ".join([pin.requirement, *(f"--hash={value}" for value in pin.hashes)]) for pin in pins]
    return "\n".join([_HEADER, *blocks]) + "\n"


def constraints(pins: tuple[Pin, ...]) -> list[str]:
    """One constraint per pin; the marker stays only where a distribution has several versions.

    A marker such as ``sys_platform == 'win32'`` on a distribution's only version says where it is
    needed, not which version is meant, so it does not belong into a constraint.
    """
    versions = Counter(pin.name for pin in pins)
    return [pin.requirement if versions[pin.name] > 1 else f"{pin.name}=={pin.version}" for pin in pins]


def write_pins(workspace: Workspace) -> list[str]:
    """Rewrites both files from uv.lock; returns what changed, as diff lines."""
    exported = parse_lock(export_lock(workspace))
    changed = differences(workspace, exported)
    _write_constraints(workspace.root / "pyproject.toml", constraints(exported))
    _replace(workspace.root / LOCK, render_lock(exported))
    return changed


def differences(workspace: Workspace, exported: tuple[Pin, ...] | None = None) -> list[str]:
    """How the committed pins differ from uv.lock, as diff lines; empty when they agree.

    Hashes may be a subset of uv.lock's: a project may upload one more wheel of an old version at
    any time, and that must not break a fresh clone. A committed hash that uv.lock lacks is a
    difference.
    """
    exported = exported if exported is not None else parse_lock(export_lock(workspace))
    file = workspace.root / LOCK
    committed = parse_lock(file.read_text(encoding="utf-8")) if file.is_file() else ()
    diff = _diff(
        "pyproject.toml constraint-dependencies",
        _committed_constraints(workspace),
        constraints(exported),
    )
    diff += _diff(LOCK, [p.requirement for p in committed], [p.requirement for p in exported])
    known = {pin.requirement: set(pin.hashes) for pin in exported}
    for pin in committed:
        strange = set(pin.hashes) - known.get(pin.requirement, set(pin.hashes))
        if strange or not pin.hashes:
            count = len(strange) or "no"
            diff.append(f"- {LOCK}: {pin.requirement}: {count} hashes not in uv.lock")
    return diff


def upgrade(workspace: Workspace, names: list[str]) -> None:
    """Resolves anew without the pins of ``names`` (of everything if empty), rewriting uv.lock.

    Raises:
        WorkspaceError: A name is not pinned, or no versions satisfy the members together; the
            root pyproject is then as before.
    """
    file = workspace.root / "pyproject.toml"
    before = file.read_text(encoding="utf-8")
    old = _committed_constraints(workspace)
    wanted = {canonicalize_name(name) for name in names}
    unknown = wanted - {line.split("==")[0] for line in old}
    if unknown:
        raise WorkspaceError(f"not pinned, so nothing to upgrade: {', '.join(sorted(unknown))}")
    kept = [line for line in old if wanted and line.split("==")[0] not in wanted]
    flags = [f"--upgrade-package={name}" for name in sorted(wanted)] or ["--upgrade"]
    _write_constraints(file, kept)
    done = subprocess.run(
        [uv_command(), "lock", *flags],
        cwd=workspace.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        _replace(file, before)
        raise WorkspaceError(f"uv lock found no versions:\n{done.stderr.strip()}")


def _committed_constraints(workspace: Workspace) -> list[str]:
    uv = workspace.pyproject["tool"]["uv"]
    return [str(line) for line in uv.get("constraint-dependencies", [])]


def _diff(label: str, old: list[str], new: list[str]) -> list[str]:
    return list(difflib.unified_diff(old, new, label, "uv.lock", lineterm="", n=0))


def _write_constraints(file: Path, lines: list[str]) -> None:
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    uv = cast("MutableMapping[str, Any]", document["tool"])["uv"]
    array = tomlkit.array()
    array.extend(lines)
    uv["constraint-dependencies"] = array.multiline(True)
    _replace(file, tomlkit.dumps(document))


def _replace(file: Path, text: str) -> None:
    """Writes under a temporary name first, so that a killed run leaves the old file whole."""
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)

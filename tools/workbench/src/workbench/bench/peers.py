"""The peers' environments: built outside the workspace, so that their pins bind nobody.

``benchmarks/<module>/peers.txt`` has a section per peer set::

    # comment
    [ducc0]
    ducc0>=0.36

    [torch_harmonics]
    with pip
    torch>=2.11
    --no-deps torch-harmonics>=0.9.3

A line is a requirement with a lower bound. ``--no-deps`` installs it without its dependencies,
after the others, for a peer that caps a version without need. ``with pip`` installs the set by pip
instead of uv, so that the machine's own pip configuration holds (where its wheels are, say).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from packaging.requirements import InvalidRequirement, Requirement

from workbench.pins import uv_command
from workbench.workspace import WorkspaceError

__all__ = ["PeerAbsent", "PeerSet", "environment_python", "read_peers"]

_MARKER = "complete.json"
_NO_DEPS = "--no-deps "


class PeerAbsent(Exception):
    """A peer set is not installed; the message says why."""


@dataclass(frozen=True)
class PeerSet:
    """One section of peers.txt."""

    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...]
    with_pip: bool

    def key(self) -> str:
        """Names the cached environment: another requirement or Python, another environment."""
        parts = (platform.python_version(), self.requirements, self.without_dependencies)
        text = json.dumps([*parts, self.with_pip])
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def read_peers(file: Path) -> dict[str, PeerSet]:
    """The peer sets of a peers.txt; none if there is no such file.

    Raises:
        WorkspaceError: A line is neither a section, an option nor a requirement with a lower bound.
    """
    if not file.is_file():
        return {}
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        line = text.split("#", 1)[0].strip()
        if not line:
            continue
        if found := re.fullmatch(r"\[(\w+)\]", line):
            current = sections.setdefault(found[1], [])
        elif current is None:
            raise WorkspaceError(f"{file.name}:{number}: {line!r} comes before any [set]")
        else:
            if line != "with pip":
                _check_requirement(line.removeprefix(_NO_DEPS), f"{file.name}:{number}")
            current.append(line)
    return {name: _peer_set(name, lines) for name, lines in sections.items()}


def _check_requirement(text: str, where: str) -> None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise WorkspaceError(f"{where}: {text!r} is no requirement: {error}") from error
    if requirement.url or not any(s.operator in (">=", "==") for s in requirement.specifier):
        raise WorkspaceError(f"{where}: {text!r} needs a lower bound, as in `name>=1.2`")


def _peer_set(name: str, lines: list[str]) -> PeerSet:
    bare = [line.removeprefix(_NO_DEPS).strip() for line in lines if line.startswith(_NO_DEPS)]
    full = [line for line in lines if not line.startswith(_NO_DEPS) and line != "with pip"]
    # The worker needs numpy, whether or not the peer does.
    if not any(Requirement(line).name.lower() == "numpy" for line in full):
        full.append("numpy>=2")
    return PeerSet(name, tuple(full), tuple(bare), "with pip" in lines)


def environment_python(peers: PeerSet, install: bool = True, cache: Path | None = None) -> Path:
    """The interpreter of the set's environment, which is built if it is not there yet.

    Args:
        peers: The peer set.
        install: False uses an environment that is there, and builds none.
        cache: Where environments are kept; by default the user's cache folder.

    Raises:
        PeerAbsent: It is not there and was not, or could not be, built.
    """
    folder = (cache or Path(platformdirs.user_cache_dir("workbench")) / "peers") / peers.key()
    python = folder / "bin" / "python"
    if (folder / _MARKER).is_file() and python.exists():
        return python
    if not install:
        raise PeerAbsent("not installed (--no-install)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    seed = ["--seed"] if peers.with_pip else []
    here = sys.executable
    _do([uv_command(), "venv", "--clear", "--no-project", *seed, "--python", here, str(folder)], folder)
    if peers.with_pip:
        install_command = [str(python), "-m", "pip", "install", "--quiet"]
    else:
        install_command = [uv_command(), "pip", "install", "--python", str(python)]
    _do([*install_command, *peers.requirements], folder)
    if peers.without_dependencies:
        _do([*install_command, "--no-deps", *peers.without_dependencies], folder)
    # Written last: an environment whose build was cut short is built anew.
    (folder / _MARKER).write_text(json.dumps({"requirements": peers.requirements}) + "\n")
    return python


def _do(command: list[str], folder: Path) -> None:
    """Runs an installer beside the environment, where no project's settings reach it."""
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(command, cwd=folder.parent, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        start = max(said.lower().find("error"), 0)
        raise PeerAbsent(f"not installed: {said[start : start + 240] or 'the installer failed'}")

"""The workspace as it lies on disk: its root, and its members with what they declare."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["Member", "Workspace", "WorkspaceError", "find_workspace"]


class WorkspaceError(Exception):
    """Something given by the user, or found in the tree, is not as it must be."""


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace.

    Attributes:
        folder: Where it lies.
        pyproject: Its parsed pyproject.toml.
    """

    folder: Path
    pyproject: dict[str, Any]

    @property
    def name(self) -> str:
        """The distribution's name, as in ``sfno-jax``."""
        return str(self.pyproject["project"]["name"])

    @property
    def module(self) -> str:
        """The name it is imported by, as in ``sfno_jax``."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        """The folder of the import package."""
        return self.folder / "src" / self.module

    @property
    def scripts(self) -> tuple[str, ...]:
        """The console commands it installs."""
        return tuple(self.pyproject["project"].get("scripts", {}))

    @property
    def is_package(self) -> bool:
        """True for a library under packages/, False for a tool."""
        return self.folder.parent.name == "packages"


@dataclass(frozen=True)
class Workspace:
    """The workspace whose root is ``root``."""

    root: Path

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        """The root's parsed pyproject.toml."""
        return _read_toml(self.root / "pyproject.toml")

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Every folder that a glob of ``[tool.uv.workspace] members`` finds, sorted by path."""
        folders = {
            folder
            for pattern in self.pyproject["tool"]["uv"]["workspace"]["members"]
            for folder in self.root.glob(pattern)
            if (folder / "pyproject.toml").is_file()
        }
        return tuple(Member(f, _read_toml(f / "pyproject.toml")) for f in sorted(folders))

    @property
    def packages(self) -> tuple[Member, ...]:
        """The members under packages/."""
        return tuple(member for member in self.members if member.is_package)

    def member(self, name: str) -> Member:
        """The member with this distribution or module name.

        Raises:
            WorkspaceError: There is none; the message lists those that are there.
        """
        for member in self.members:
            if name in (member.name, member.module):
                return member
        known = ", ".join(member.name for member in self.members)
        raise WorkspaceError(f"no member is called {name!r}; members are: {known}")


def find_workspace(start: Path | None = None) -> Workspace:
    """The workspace that ``start`` (the current folder by default) lies in.

    Raises:
        WorkspaceError: No folder upwards of ``start`` has a pyproject.toml with a uv workspace.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and "workspace" in _read_toml(file).get("tool", {}).get("uv", {}):
            return Workspace(folder)
    raise WorkspaceError(f"{here} is not inside the workspace; run this from the repository")


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise WorkspaceError(f"{file} is not valid TOML: {error}") from error

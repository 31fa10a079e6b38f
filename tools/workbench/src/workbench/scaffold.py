"""``new``: a package skeleton that passes every check, and its place in the workspace."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import MutableMapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

import tomlkit
from packaging.requirements import Requirement

from workbench.workspace import Workspace, WorkspaceError

__all__ = ["create"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def create(workspace: Workspace, name: str) -> list[Path]:
    """Writes packages/<name> and benchmarks/<module>, and adds the package to the root.

    Args:
        workspace: Where.
        name: The distribution, as in ``my-paper``.

    Returns:
        The files written or changed.

    Raises:
        WorkspaceError: The name cannot be a distribution's and module's, or is taken.
    """
    module = name.replace("-", "_")
    _check_name(workspace, name, module)
    words = {"@name@": name, "@module@": module}
    package = workspace.root / "packages" / name
    templates = files("workbench") / "templates"
    written = _render(templates / "package", package, words)
    written += _render(templates / "benchmark", workspace.root / "benchmarks" / module, words)
    licence = package / "LICENSE"
    licence.write_bytes((workspace.root / "LICENSE").read_bytes())
    _add_to_root(workspace.root / "pyproject.toml", name)
    _add_to_readme(workspace.root / "README.md", name)
    return [*written, licence, workspace.root / "pyproject.toml", workspace.root / "README.md"]


def _check_name(workspace: Workspace, name: str, module: str) -> None:
    if not _NAME.fullmatch(name):
        raise WorkspaceError(f"a name has lower-case letters, digits and single hyphens, as in my-paper; got {name!r}")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise WorkspaceError(f"{module!r} is Python's own name; take another")
    for place in (workspace.root / "packages" / name, workspace.root / "benchmarks" / module):
        if place.exists():
            raise WorkspaceError(f"{place.relative_to(workspace.root)} is there already")
    if module in {member.module for member in workspace.members}:
        raise WorkspaceError(f"{name!r} is a member already")


def _render(source: Traversable, target: Path, words: dict[str, str]) -> list[Path]:
    """Copies a template folder, filling in the words in names and texts."""
    written = []
    for entry in source.iterdir():
        name = _fill(entry.name, words)
        if entry.is_dir():
            written += _render(entry, target / name, words)
            continue
        target.mkdir(parents=True, exist_ok=True)
        file = target / name.removesuffix(".tmpl")
        file.write_text(_fill(entry.read_text(encoding="utf-8"), words), encoding="utf-8")
        written.append(file)
    return written


def _fill(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _add_to_root(file: Path, name: str) -> None:
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    project = cast("MutableMapping[str, Any]", document["project"])
    dependencies = [str(text) for text in project["dependencies"]]
    # The root lists packages first, in their order; tools stay last.
    tools = [text for text in dependencies if Requirement(text).name == "workbench"]
    packages = sorted({*dependencies, name} - set(tools))
    array = tomlkit.array()
    array.extend([*packages, *tools])
    project["dependencies"] = array
    sources = cast("MutableMapping[str, Any]", document["tool"])["uv"]["sources"]
    source = tomlkit.inline_table()
    source["workspace"] = True
    sources[name] = source
    file.write_text(tomlkit.dumps(document), encoding="utf-8")


def _add_to_readme(file: Path, name: str) -> None:
    """Puts a row into the table of packages: in place of the planned one, or after the last."""
    row = f"| [{name}](packages/{name}) | ? | `pip install ./packages/{name}` | ? | skeleton |"
    lines = file.read_text(encoding="utf-8").splitlines()
    planned = [i for i, line in enumerate(lines) if line.startswith(f"| {name} |")]
    rows = [i for i, line in enumerate(lines) if line.startswith("|") and line.endswith("|")]
    if planned:
        lines[planned[0]] = row
    elif rows:
        lines.insert(rows[-1] + 1, row)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")

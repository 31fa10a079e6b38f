"""Packages never import one another nor the tools; tools never import a package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench import Member, Workspace


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level module of each import, also those written as a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if function in ("import_module", "__import__", "importorskip") and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value).split(".")[0]


def _foreign(folder: Path, forbidden: set[str]) -> list[str]:
    return [
        f"{file.relative_to(folder)}:{line} imports {name}"
        for file in sorted(folder.rglob("*.py"))
        if "build" not in file.relative_to(folder).parts
        for line, name in _imports(ast.parse(file.read_text(encoding="utf-8")))
        if name in forbidden
    ]


def test_a_member_imports_no_other(member: Member, workspace: Workspace):
    others = {other.module for other in workspace.members} - {member.module}
    assert _foreign(member.folder, others) == []


@pytest.mark.parametrize(
    "code",
    [
        "import climsim",
        "from climsim.data import x",
        "def f():\n    import climsim.data as d",
        "import importlib\nimportlib.import_module('climsim')",
    ],
)
def test_every_way_of_importing_is_seen(tmp_path: Path, code):
    (tmp_path / "module.py").write_text(code)
    assert len(_foreign(tmp_path, {"climsim"})) == 1
    assert _foreign(tmp_path, {"sfno_jax"}) == []

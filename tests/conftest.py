"""The workspace that the tests lie in, and a test per member or package."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import Workspace, find_workspace

BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
WORKSPACE = find_workspace(Path(__file__).parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes ``member`` or ``package`` once for each of them."""
    for name, members in (("member", WORKSPACE.members), ("package", WORKSPACE.packages)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, members, ids=[member.name for member in members])


@pytest.fixture
def workspace() -> Workspace:
    """The workspace."""
    return WORKSPACE


@pytest.fixture
def files(workspace: Workspace) -> list[Path]:
    """Every file that git tracks, or would with the next `git add`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=workspace.root,
        capture_output=True,
        text=True,
        check=True,
    )
    names = listed.stdout.split("\0")
    return [workspace.root / name for name in names if name and (workspace.root / name).is_file()]


@pytest.fixture
def readme_blocks() -> Callable[..., list[tuple[int, str]]]:
    """First line and code of each block of a README in one of the given languages."""

    def read(readme: Path, *languages: str) -> list[tuple[int, str]]:
        text = readme.read_text(encoding="utf-8")
        return [
            (text.count("\n", 0, found.start("code")) + 1, found["code"])
            for found in BLOCK.finditer(text)
            if found["language"] in languages
        ]

    return read


@pytest.fixture
def readme_program(readme_blocks: Callable[..., list[tuple[int, str]]]) -> Callable[[Path, Path], Path]:
    """Writes a README's Python blocks as one program into an empty folder, in order, in one namespace.

    Each block keeps its place in the file, so that a traceback names the README's own lines.
    """

    def write(readme: Path, folder: Path) -> Path:
        lines = ["space = {'__name__': '__main__'}"]
        for line, code in readme_blocks(readme, "python"):
            source = "\n" * (line - 1) + code
            lines.append(f"exec(compile({source!r}, {readme.name!r}, 'exec'), space)")
        program = folder / "readme" / "blocks.py"
        program.parent.mkdir()
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return program

    return write

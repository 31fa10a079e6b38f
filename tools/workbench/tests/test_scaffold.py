"""A new package passes every check, in a copy of this workspace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import find_workspace
from workbench.pins import uv_command

ROOT = find_workspace(Path(__file__)).root


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The workspace's files, as a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / "copy"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    if (ROOT / "uv.lock").is_file():
        shutil.copy(ROOT / "uv.lock", folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def _passes(folder: Path, *command: str, **env: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        # The new package is not installed into the environment that runs the tests.
        env={**os.environ, "PYTHONPATH": str(folder / "packages" / "tenth-paper" / "src"), **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
def test_a_new_package_passes_every_check(command, copy: Path):
    code, out, err = command("new", "tenth-paper", cwd=copy)
    assert (code, err) == (0, "")
    assert "packages/tenth-paper/pyproject.toml" in out
    places = ("packages/tenth-paper", "benchmarks/tenth_paper")
    leftovers = [f for place in places for f in (copy / place).rglob("*") if "@" in f.name or f.suffix == ".tmpl"]
    assert leftovers == []

    python = (sys.executable, "-m")
    _passes(copy, *python, "ruff", "check", *places)
    _passes(copy, *python, "ruff", "format", "--check", *places)
    _passes(copy, *python, "mypy", "packages/tenth-paper/src")
    # Its own tests, and the workspace's as far as they look at it.
    _passes(copy, *python, "pytest", "-q", "packages/tenth-paper")
    _passes(copy, *python, "pytest", "-q", "tests", "-k", "tenth or root or tracked or address")
    bench = ("-c", "from workbench.cli import bench_main as m; m()", "tenth-paper", "--quick")
    _passes(copy, sys.executable, *bench, "--env", f"numpy={sys.executable}")
    try:
        _passes(copy, uv_command(), "lock", UV_OFFLINE="1")
    except AssertionError:
        _passes(copy, uv_command(), "lock")
    _passes(copy, sys.executable, "-c", "from workbench.cli import pins_main as m; m()", "--check")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Tenth_Paper", "as in my-paper"),
        ("tenth--paper", "as in my-paper"),
        ("json", "Python's own name"),
        ("class", "Python's own name"),
        ("sfno-jax", "is there already"),
        ("workbench", "is a member already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(command, copy: Path, name, said):
    before = sorted(copy.rglob("*"))
    code, _, err = command("new", name, cwd=copy)
    assert code == 2
    assert said in err
    assert sorted(copy.rglob("*")) == before


def test_a_planned_row_of_the_readme_is_replaced(command, copy: Path):
    readme = copy / "README.md"
    readme.write_text("# T\n\n| package | status |\n|---|---|\n| tenth-paper | planned |\n| x | y |\n\nend\n")
    assert command("new", "tenth-paper", cwd=copy)[0] == 0
    lines = readme.read_text().splitlines()
    assert lines[4].startswith("| [tenth-paper](packages/tenth-paper) |")
    assert lines[5:] == ["| x | y |", "", "end"]
    assert command("new", "eleventh-paper", cwd=copy)[0] == 0
    assert readme.read_text().splitlines()[6].startswith("| [eleventh-paper]")

"""Each package builds, installs alone with only its own dependencies, and does what its README shows."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import Member, Workspace
from workbench.pins import uv_command


def _run(command: list[str], cwd: Path, **env: str) -> str:
    """Runs a command outside our environment; returns its output."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**{key: value for key, value in os.environ.items() if key not in ours}, **env},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _uv(*arguments: str, cwd: Path) -> str:
    """Runs uv from its cache where that will do, so that the test passes without a network too."""
    try:
        return _run([uv_command(), *arguments], cwd, UV_OFFLINE="1")
    except AssertionError:
        return _run([uv_command(), *arguments], cwd)


@pytest.mark.slow
def test_a_wheel_stands_alone(
    package: Member, workspace: Workspace, readme_program: Callable[[Path, Path], Path], tmp_path: Path
):
    root = workspace.root
    # Without --wheel: the wheel is built from the source distribution, so both are complete.
    _uv("build", "--package", package.name, "--out-dir", str(tmp_path), cwd=root)
    (wheel,) = tmp_path.glob("*.whl")
    assert list(tmp_path.glob("*.tar.gz"))
    contents = zipfile.ZipFile(wheel).namelist()
    assert f"{package.module}/py.typed" in contents
    assert any(name.endswith("licenses/LICENSE") for name in contents)
    tops = {name.split("/")[0] for name in contents if ".dist-info/" not in name}
    assert tops == {package.module}, "a wheel installs its own module and nothing beside it"

    python = tmp_path / "venv" / "bin" / "python"
    _uv("venv", "--no-project", "--clear", "--python", sys.executable, "venv", cwd=tmp_path)
    # From the root, so that the pinned versions are taken, which are in the cache already.
    _uv("pip", "install", "--python", str(python), str(wheel), cwd=root)
    listed = _uv("pip", "list", "--python", str(python), "--format", "freeze", cwd=tmp_path)
    installed = {line.split("==")[0].strip() for line in listed.splitlines()}
    assert installed & {member.name for member in workspace.members} == {package.name}

    code = f"import {package.module} as m; print(m.__file__); assert all(hasattr(m, n) for n in m.__all__)"
    assert str(tmp_path) in _run([str(python), "-c", code], tmp_path)
    program = readme_program(package.folder / "README.md", tmp_path)
    _run([str(python), program.name], program.parent, MPLBACKEND="Agg")
    for script in package.scripts:
        assert "Usage" in _run([str(python.parent / script), "--help"], tmp_path, NO_COLOR="1")

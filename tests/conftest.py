"""The workspace that the tests lie in, and a test per member or package."""

import subprocess
from pathlib import Path

import pytest

from workbench import Workspace, find_workspace

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

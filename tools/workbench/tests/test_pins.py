"""Pins: what is written from uv.lock, and what counts as a difference."""

from pathlib import Path

import pytest

from workbench.pins import Pin, constraints, differences, parse_lock, render_lock, write_pins
from workbench.workspace import Workspace, WorkspaceError

EXPORTED = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:dd
Typing_Extensions==4.16.0 \\
    --hash=sha256:ee
"""
ROOT = """\
[project]
name = "root"  # a comment that stays

[tool.uv]
package = false

[tool.uv.workspace]
members = []

[tool.other]
key = 1
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose uv.lock exports as above."""
    (tmp_path / "pyproject.toml").write_text(ROOT)
    monkeypatch.setattr("workbench.pins.export_lock", lambda _: EXPORTED)
    return Workspace(tmp_path)


def test_a_marker_stays_only_where_versions_fork():
    assert constraints(parse_lock(EXPORTED)) == [
        "colorama==0.4.6",
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "numpy==2.5.5 ; python_full_version >= '3.12'",
        "typing-extensions==4.16.0",
    ]


def test_rendering_keeps_everything():
    pins = parse_lock(EXPORTED)
    assert parse_lock(render_lock(pins)) == pins
    assert pins[1] == Pin("numpy", "2.4.6", "python_full_version < '3.12'", ("sha256:aa", "sha256:bb"))


@pytest.mark.parametrize(
    "line",
    [
        "numpy @ https://example.invalid/numpy.whl",
        "numpy>=2",
        "--index-url https://example.invalid/simple",
        "-e ./packages/x",
    ],
)
def test_anything_but_an_exact_version_is_refused(line):
    with pytest.raises(WorkspaceError, match="expected"):
        parse_lock(f"{line}\n")


def test_written_pins_agree_and_writing_again_changes_nothing(workspace: Workspace):
    assert differences(workspace), "nothing is pinned yet"
    assert write_pins(workspace)
    fresh = Workspace(workspace.root)
    assert differences(fresh) == []
    before = (workspace.root / "pyproject.toml").read_text()
    assert write_pins(fresh) == []
    assert (workspace.root / "pyproject.toml").read_text() == before
    assert "# a comment that stays" in before
    assert "key = 1" in before


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "numpy==2.4.6", "numpy==2.4.5", "-numpy==2.4.5"),
        ("pyproject.toml", '    "colorama==0.4.6",\n', "", "+colorama==0.4.6"),
        ("requirements.lock", "numpy==2.5.5", "numpy==2.5.4", "+numpy==2.5.5"),
        ("requirements.lock", "sha256:cc", "sha256:ff", "1 hashes not in uv.lock"),
        ("requirements.lock", " \\\n    --hash=sha256:ee", "", "no hashes not in uv.lock"),
    ],
)
def test_a_difference_is_named(workspace: Workspace, file, old, new, said):
    write_pins(workspace)
    path = workspace.root / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert any(said in line for line in differences(Workspace(workspace.root)))


def test_a_wheel_that_was_added_later_is_no_difference(workspace: Workspace):
    write_pins(workspace)
    file = workspace.root / "requirements.lock"
    file.write_text(file.read_text().replace(" \\\n    --hash=sha256:bb", ""))
    assert differences(Workspace(workspace.root)) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--check"], "there is no uv.lock yet"),
        (["numpy"], "NAME is only used with --upgrade"),
        (["--check", "--upgrade"], "--check changes nothing"),
        (["--upgrade", "nothing"], "not pinned"),
    ],
)
def test_bad_arguments_exit_2(command, tmp_path: Path, arguments, said):
    (tmp_path / "pyproject.toml").write_text(ROOT)
    code, _, err = command("pins", *arguments, cwd=tmp_path)
    assert code == 2
    assert said in err
    assert (tmp_path / "pyproject.toml").read_text() == ROOT


def test_outside_a_workspace_exits_2(command, tmp_path: Path):
    code, _, err = command("pins", cwd=tmp_path)
    assert code == 2
    assert "not inside the workspace" in err


def test_an_upgrade_without_a_solution_leaves_the_root_as_it_was(command, tmp_path: Path):
    text = ROOT.replace(
        'name = "root"',
        'name = "root"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["a-b==1"]',
    ).replace("package = false", 'package = false\nconstraint-dependencies = ["a-b==1"]')
    (tmp_path / "pyproject.toml").write_text(text)
    code, _, err = command("pins", "--upgrade", cwd=tmp_path, UV_OFFLINE="1")
    assert code == 2
    assert "no versions" in err
    assert (tmp_path / "pyproject.toml").read_text() == text

"""What the READMEs show works: Python blocks run, shell blocks name commands that exist."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import Member, Workspace

ReadmeBlocks = Callable[..., list[tuple[int, str]]]
ReadmeProgram = Callable[[Path, Path], Path]
# Installed by the reader, not by the workspace.
OUTSIDE = {"apt-get", "bash", "cd", "git", "pip", "uv"}


def _environment(member: Member | None = None) -> dict[str, str]:
    """Ours, with pictures going to files, and a member that is not installed found at its source.

    An installed one is left as it is: its source folder lacks the compiled part.
    """
    env = {**os.environ, "MPLBACKEND": "Agg", "COLUMNS": "300", "NO_COLOR": "1"}
    if member and importlib.util.find_spec(member.module) is None:
        env["PYTHONPATH"] = str(member.folder / "src")
    return env


def _run(program: Path, member: Member | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, program.name],
        cwd=program.parent,
        env=_environment(member),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_package_readme_runs(package: Member, readme_program: ReadmeProgram, tmp_path: Path):
    readme = package.folder / "README.md"
    assert "```python" in readme.read_text(encoding="utf-8"), "the README shows no Python"
    done = _run(readme_program(readme, tmp_path), package)
    assert done.returncode == 0, done.stderr


def test_root_readme_runs(workspace: Workspace, readme_program: ReadmeProgram, tmp_path: Path):
    done = _run(readme_program(workspace.root / "README.md", tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_block_that_fails_is_seen(readme_program: ReadmeProgram, tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text("# T\n```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    done = _run(readme_program(readme, tmp_path))
    assert done.returncode == 1
    assert 'File "README.md", line 7' in done.stderr


@pytest.fixture
def commands(readme_blocks: ReadmeBlocks) -> Callable[[Path], list[list[str]]]:
    """The shell commands of a README, each split into words, without `uv run` and its options."""

    def read(readme: Path) -> list[list[str]]:
        lines = [
            part
            for _, code in readme_blocks(readme, "bash", "sh", "console")
            for line in code.replace("\\\n", " ").splitlines()
            for part in line.split("&&")
        ]
        return list(filter(None, (_words(line) for line in lines)))

    return read


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    if words[:1] == ["sudo"]:
        words = words[1:]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words and words[0].startswith("-"):
            words = words[2 if words[0] in ("--package", "--with", "--extra") else 1 :]
    return words


def _run_script(member: Member, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A member's console command from its source, whether or not the environment has its script."""
    module, function = member.pyproject["project"]["scripts"][script].split(":")
    code = f"import sys; sys.argv[0] = {script!r}; from {module} import {function} as f; sys.exit(f())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=member.folder,
        env=_environment(member),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _wrong(commands: list[list[str]], workspace: Workspace) -> list[str]:
    """What shell commands name that is not there: commands, subcommands, options."""
    owners = {script: member for member in workspace.members for script in member.scripts}
    bin_folder = Path(sys.executable).parent
    wrong = []
    for words in commands:
        name, *rest = words
        if name not in owners:
            if name not in OUTSIDE and not (bin_folder / name).exists() and not shutil.which(name):
                wrong.append(f"{name}: no such command")
            continue
        placeholders = [word for word in rest if not re.fullmatch(r"[\[A-Z_.…\]]+", word)]
        subcommand = [word for word in placeholders[:1] if re.fullmatch(r"[a-z][a-z-]*", word)]
        done = _run_script(owners[name], name, *subcommand, "--help")
        if done.returncode != 0:
            done = _run_script(owners[name], name, "--help")  # the word was an argument
            if done.returncode != 0 or re.search(r"Commands", done.stdout):
                wrong.append(f"{' '.join([name, *subcommand])}: {done.stderr.strip()[-200:]}")
                continue
        wrong += [
            f"{' '.join(words)}: no option {option}"
            for option in (word.split("=")[0] for word in rest if word.startswith("--"))
            if option not in done.stdout and option != "--help"
        ]
    return wrong


def test_shell_blocks_name_what_exists(member: Member, workspace: Workspace, commands):
    assert _wrong(commands(member.folder / "README.md"), workspace) == []


def test_shell_blocks_of_the_root_name_what_exists(workspace: Workspace, commands):
    found = commands(workspace.root / "README.md")
    assert ["demo"] in found
    assert ["pytest"] in found
    assert _wrong(found, workspace) == []


@pytest.mark.parametrize("line", ["no-such-command", "uv run demo --no-such-option"])
def test_a_wrong_shell_block_is_seen(tmp_path: Path, workspace: Workspace, commands, line):
    readme = tmp_path / "README.md"
    readme.write_text(f"```bash\n{line}\n```\n")
    assert len(_wrong(commands(readme), workspace)) == 1


def test_relative_links_lead_somewhere(files: list[Path]):
    broken = [
        f"{file.name}: {target}"
        for file in files
        if file.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)", file.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (file.parent / target).exists()
    ]
    assert broken == []

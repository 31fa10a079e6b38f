"""What the READMEs show works: Python blocks run, shell blocks name commands that exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import Member, Workspace

BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
# Installed by the reader, not by the workspace.
OUTSIDE = {"apt-get", "bash", "cd", "git", "pip", "uv"}


def _blocks(readme: Path, *languages: str) -> list[tuple[int, str]]:
    """First line and code of each block in one of the languages."""
    text = readme.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start("code")) + 1, found["code"])
        for found in BLOCK.finditer(text)
        if found["language"] in languages
    ]


def _run_blocks(readme: Path, folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """The Python blocks in one namespace, in order, in an empty folder and a fresh process.

    Each block keeps its place in the file, so that a traceback names the README's own lines.
    """
    program = folder / "blocks.py"
    lines = ["import re", "space = {'__name__': '__main__'}"]
    for line, code in _blocks(readme, "python"):
        source = "\n" * (line - 1) + code
        lines.append(f"exec(compile({source!r}, {readme.name!r}, 'exec'), space)")
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = os.pathsep.join(map(str, paths))
    return subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", **({"PYTHONPATH": path} if path else {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_package_readme_runs(package: Member, tmp_path: Path):
    readme = package.folder / "README.md"
    assert _blocks(readme, "python"), "the README shows no Python"
    done = _run_blocks(readme, tmp_path, package.folder / "src")
    assert done.returncode == 0, done.stderr


def test_root_readme_runs(workspace: Workspace, tmp_path: Path):
    done = _run_blocks(workspace.root / "README.md", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_block_that_fails_is_seen(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text("# T\n```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    (tmp_path / "run").mkdir()
    done = _run_blocks(readme, tmp_path / "run")
    assert done.returncode == 1
    assert 'File "README.md", line 7' in done.stderr


def _commands(readme: Path) -> list[list[str]]:
    """The shell commands of a README, each split into words, without `uv run` and its options."""
    commands = []
    for _, code in _blocks(readme, "bash", "sh", "console"):
        for line in code.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                if words[:1] == ["sudo"]:
                    words = words[1:]
                if words[:2] == ["uv", "run"]:
                    words = words[2:]
                    while words and words[0].startswith("-"):
                        words = words[2 if words[0] in ("--package", "--with", "--extra") else 1 :]
                if words:
                    commands.append(words)
    return commands


def _run_script(member: Member, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A member's console command from its source, whether or not the environment has its script."""
    module, function = member.pyproject["project"]["scripts"][script].split(":")
    code = f"import sys; sys.argv[0] = {script!r}; from {module} import {function} as f; sys.exit(f())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=member.folder,
        env={**os.environ, "PYTHONPATH": str(member.folder / "src"), "COLUMNS": "300", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _wrong(readme: Path, workspace: Workspace) -> list[str]:
    """What the README's shell blocks name that is not there: commands, subcommands, options."""
    owners = {script: member for member in workspace.members for script in member.scripts}
    bin_folder = Path(sys.executable).parent
    wrong = []
    for words in _commands(readme):
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


def test_shell_blocks_name_what_exists(member: Member, workspace: Workspace):
    assert _wrong(member.folder / "README.md", workspace) == []


def test_shell_blocks_of_the_root_name_what_exists(workspace: Workspace):
    readme = workspace.root / "README.md"
    assert ["demo"] in _commands(readme)
    assert ["pytest"] in _commands(readme)
    assert _wrong(readme, workspace) == []


@pytest.mark.parametrize("line", ["no-such-command", "uv run demo --no-such-option"])
def test_a_wrong_shell_block_is_seen(tmp_path: Path, workspace: Workspace, line):
    readme = tmp_path / "README.md"
    readme.write_text(f"```bash\n{line}\n```\n")
    assert len(_wrong(readme, workspace)) == 1

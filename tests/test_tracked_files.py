"""No registry's address and no machine's path is in the tree, and uv.lock is not tracked."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from workbench import Workspace

ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+)")
# A folder of one machine; a path inside a URL or a longer name is none.
MACHINE_PATH = re.compile(r"(?<![\w./~$}])/(?:home|root|work|Users)/\w")


def _registry_hosts(workspace: Workspace) -> set[str]:
    """The hosts that this machine gets packages from, and the public ones, spelt in pieces."""
    hosts = {
        ".".join(pieces)
        for pieces in (
            ("py" + "pi", "org"),
            ("files", "python" + "hosted", "org"),
            ("registry", "npm" + "js", "org"),
            ("download", "py" + "torch", "org"),
        )
    }
    apt = Path("/etc/apt")
    sources = [workspace.root / "uv.lock", apt / "sources.list", *apt.glob("sources.list.d/*")]
    texts = [file.read_text(encoding="utf-8") for file in sources if file.is_file()]
    texts += [value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_"))]
    if pip := shutil.which("pip"):
        listed = subprocess.run([pip, "config", "list"], capture_output=True, text=True, check=False)
        texts.append(listed.stdout)
    return hosts | {host for text in texts for host in ADDRESS.findall(text)}


def _lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found = []
    for file in files:
        data = file.read_bytes()
        if b"\0" in data:
            continue  # pictures and arrays
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{file.name}:{number}: {line.strip()[:100]}")
    return found


def _host_pattern(hosts: set[str]) -> re.Pattern[str]:
    return re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, sorted(hosts))) + r")(?![\w-])")


def test_no_registry_address(workspace: Workspace, files: list[Path]):
    assert _lines_with(_host_pattern(_registry_hosts(workspace)), files) == []


def test_no_machine_path(files: list[Path]):
    assert _lines_with(MACHINE_PATH, files) == []


def test_uv_lock_is_not_tracked(workspace: Workspace):
    tracked = subprocess.run(
        ["git", "ls-files", "*uv.lock"], cwd=workspace.root, capture_output=True, text=True, check=True
    )
    assert tracked.stdout == ""


def test_pictures_are_small(files: list[Path]):
    pictures = [file for file in files if file.suffix in (".png", ".gif", ".jpg")]
    assert [file.name for file in pictures if file.stat().st_size > 200_000] == []


@pytest.mark.parametrize("folder", ["home", "root", "work", "Users"])
def test_a_path_or_an_address_would_be_found(tmp_path: Path, folder):
    file = tmp_path / "a.py"
    file.write_text(f'open("/{folder}/me/x")\nurl = "https://{"py" + "pi"}.org/simple"\n')
    assert len(_lines_with(MACHINE_PATH, [file])) == 1
    assert len(_lines_with(_host_pattern({"py" + "pi.org"}), [file])) == 1
    file.write_text('open("~/code/x")\nurl = "https://example.invalid/home/page"\n')
    assert _lines_with(MACHINE_PATH, [file]) == []

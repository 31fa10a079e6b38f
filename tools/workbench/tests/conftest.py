"""Demos of made-up distributions, and the console commands run as a person runs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A shell that runs the tests in the background has their children ignore Ctrl-C; these are to hear it.
_LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "

DEMOS = """
import json, os, pathlib, subprocess, sys, time

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def _result(out, **changes):
    data = {
        "title": "A <b>title</b>",
        "summary": "error 0.125 & falling",
        "tables": [{"title": "T", "columns": ["a", "b"], "rows": [["<x>", 1.5], ["y", None]]}],
        "figures": [{"file": "one.png", "caption": "one pixel"}],
    }
    (out / "one.png").write_bytes(PIXEL)
    (out / "result.json").write_text(json.dumps(data | changes))


def good(out):
    print("first stage")
    time.sleep(0.3)
    print("second stage")
    print("a note on stderr", file=sys.stderr)
    _result(out)


def crash(out):
    print("about to divide")
    1 / 0


def silent(out):
    print("writes nothing")


def no_figure(out):
    _result(out, figures=[{"file": "missing.png", "caption": ""}])


def killed(out):
    os.kill(os.getpid(), 9)


def endless(out):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (out.parent / "pids").write_text(f"{os.getpid()} {child.pid}")
    print("waiting")
    time.sleep(600)
"""
NAMES = ("good", "crash", "silent", "no-figure", "killed", "endless")


@pytest.fixture
def demo_path(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a distribution that declares the demos above."""
    folder = tmp_path / "site"
    info = folder / "fakes-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "fakes.py").write_text(DEMOS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    points = "\n".join(f"fake-{name} = fakes:{name.replace('-', '_')}" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[workbench.demos]\n{points}\n")
    return folder


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Starts one of the console commands: its own code, whichever environment runs the tests."""

    def start(name: str, *arguments: str, cwd: Path, path: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", f"{_LISTEN}from workbench.cli import {name}_main as m; m()", *arguments],
            cwd=cwd,
            env={
                **os.environ,
                "NO_COLOR": "1",
                "COLUMNS": "200",
                **({"PYTHONPATH": str(path)} if path else {}),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def command(
    start: Callable[..., subprocess.Popen[str]],
) -> Callable[..., tuple[int, str, str]]:
    """Runs a console command to its end; returns its exit code, output and errors."""

    def run(*arguments: str, timeout: float = 300, **options: Any) -> tuple[int, str, str]:
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, out, err

    return run

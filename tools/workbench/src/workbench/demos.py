"""Finding the members' demos and running each in its own process."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import IO

from workbench.demo_result import ResultError, read_result
from workbench.workspace import WorkspaceError

__all__ = ["DemoRun", "choose", "discover", "run_demos", "stop_on_terminate"]

GROUP = "workbench.demos"
LOG = "log.txt"
STATUS = "status.json"
_GRACE = 5.0  # seconds between asking a child to end and ending it


@dataclass
class DemoRun:
    """A demo on its way: waiting, running, passed, failed or stopped.

    Attributes:
        name: The distribution, which is also the folder below the output folder.
        state: One of the five words above.
        stage: The last line that the demo printed.
        seconds: How long it ran, or has run so far [s].
        line: Its summary once it passed, the reason once it failed.
        finished: When it ended, in local time to the minute.
    """

    name: str
    state: str = "waiting"
    stage: str = ""
    seconds: float = 0.0
    line: str = ""
    finished: str = ""


def discover() -> list[str]:
    """The names of all installed demos, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def choose(wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """The demos named by ``wanted``, or all that are known if it is empty.

    Raises:
        WorkspaceError: A name is unknown; the message has the nearest names. Nothing is known.
    """
    names = [name.replace("_", "-") for name in dict.fromkeys(wanted)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
            raise WorkspaceError(f"no demo is called {name!r}; {hint}")
    if not known:
        raise WorkspaceError("no installed distribution declares a demo (`uv sync` installs all)")
    return names or list(known)


def run_demos(names: Sequence[str], out: Path, changed: Callable[[list[DemoRun]], None]) -> list[DemoRun]:
    """Runs the demos one after another, so that each has the machine to itself.

    Args:
        names: The demos, from `choose`.
        out: Each demo gets the folder ``out/<name>``, emptied first.
        changed: Called with all runs a few times a second, and at each change of state.

    Raises:
        WorkspaceError: A demo's folder holds files that no demo left there.
        KeyboardInterrupt: After the running child was ended.
    """
    folders = [_fresh_folder(out / name) for name in names]
    runs = [DemoRun(name) for name in names]
    for run, folder in zip(runs, folders, strict=True):
        try:
            _run(run, folder, lambda: changed(runs))
        finally:
            run.finished = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
            (folder / STATUS).write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")
            changed(runs)
    return runs


def stop_on_terminate() -> None:
    """Makes SIGTERM act like Ctrl-C, so that the running child is ended then too."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _fresh_folder(folder: Path) -> Path:
    """An empty folder; what an earlier demo left in it, known by its log, is removed."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / LOG).is_file():
            raise WorkspaceError(f"{folder} holds files that no demo wrote; name another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOG).touch()
    return folder


def _run(run: DemoRun, folder: Path, changed: Callable[[], None]) -> None:
    run.state = "running"
    start = time.monotonic()
    command = [sys.executable, "-m", "workbench._run_demo", run.name, str(folder.resolve())]
    with (folder / LOG).open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            errors="replace",
            # A line is a stage at once, not when a buffer is full.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Its own group: Ctrl-C reaches only us, and we end the demo with all it started.
            start_new_session=True,
        )
        assert child.stdout is not None
        reader = threading.Thread(target=_follow, args=(run, child.stdout), daemon=True)
        reader.start()
        try:
            while child.poll() is None:
                run.seconds = time.monotonic() - start
                changed()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.2)
        except KeyboardInterrupt:
            run.state, run.line = "stopped", "stopped by you"
            raise
        finally:
            run.seconds = time.monotonic() - start
            _end_group(child)
            reader.join(timeout=1.0)
    _judge(run, folder, child.returncode)


def _follow(run: DemoRun, stdout: IO[str]) -> None:
    with stdout:
        for line in stdout:
            if line.strip():
                run.stage = line.strip()


def _judge(run: DemoRun, folder: Path, code: int) -> None:
    if code != 0:
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = _last_line(folder / LOG)
        run.state, run.line = "failed", f"{reason}: {last}" if last else reason
        return
    try:
        run.line = read_result(folder).summary
        run.state = "passed"
    except ResultError as error:
        run.state, run.line = "failed", str(error)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end_group(child: subprocess.Popen[str]) -> None:
    """Ends the child and whatever it started and left running; waits for the child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()

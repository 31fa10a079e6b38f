"""The demos' progress: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from workbench.demos import DemoRun

__all__ = ["Display"]

_STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "passed": "green",
    "failed": "red",
    "stopped": "red",
}
_MARKS = {"waiting": "·", "passed": "✓", "failed": "✗", "stopped": "■"}


class Display:
    """Shows the runs it is given; used as a context manager around `run_demos`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None
        self._printed: dict[str, str] = {}
        self._spinner = Spinner("dots", style="cyan")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, runs: list[DemoRun]) -> None:
        """Draws the table anew, or prints the lines that are new."""
        if self._live:
            self._live.update(self._table(runs))
            return
        for run in runs:
            line = run.stage if run.state == "running" else f"{run.state} {run.line}".strip()
            if run.state != "waiting" and line and self._printed.get(run.name) != line:
                self._printed[run.name] = line
                # Not through rich's wrapping: a log file's reader wants one line a stage.
                self._console.out(f"[{run.name}] {run.seconds:6.1f} s  {line}", highlight=False)

    def _table(self, runs: list[DemoRun]) -> Table:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("", width=1)
        table.add_column("demo", no_wrap=True)
        table.add_column("elapsed", justify="right", no_wrap=True)
        table.add_column("stage or result", ratio=1)
        for run in runs:
            style = _STYLES[run.state]
            mark = self._spinner if run.state == "running" else Text(_MARKS[run.state], style=style)
            line = run.stage if run.state == "running" else run.line or run.state
            elapsed = f"{run.seconds:.1f} s" if run.state != "waiting" else ""
            table.add_row(mark, Text(run.name, style=f"bold {style}"), elapsed, Text(line))
        return table

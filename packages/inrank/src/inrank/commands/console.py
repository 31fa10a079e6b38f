"""What the subcommands share: results go to stdout, remarks and progress to stderr, errors become exit codes."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

__all__ = ["AsJson", "BadInput", "Out", "Seed", "guarded", "notice", "number", "progress", "show", "stage"]

P = ParamSpec("P")
R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Out = Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for what is written.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]


class BadInput(ValueError):
    """What was asked for cannot be done; the message says what was given, what was expected and what to do."""


# Wrong arguments, and computations or machines that let us down. What is in neither tuple is a mistake in the program
# and keeps its traceback.
_BAD_INPUT = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FAILURE = (ArithmeticError, RuntimeError, OSError, MemoryError, ImportError)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a command's errors into one line on stderr: exit code 2 for bad input, 1 for a failure.

    With INRANK_TRACEBACK set in the environment, the errors keep their traceback.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if os.environ.get("INRANK_TRACEBACK"):
            return function(*args, **kwargs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)  # what the library remarks on layers and files
                warnings.showwarning = _show_warning
                return function(*args, **kwargs)
        except _BAD_INPUT as error:
            _complain(str(error))
            raise typer.Exit(2) from error
        except _FAILURE as error:
            _complain(f"{type(error).__name__}: {error}")
            raise typer.Exit(1) from error

    return run


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    notice(f"warning: {message}")


def _complain(text: str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {text}", style="red", markup=False)


def notice(text: str) -> None:
    """A remark on stderr."""
    typer.echo(text, err=True)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A bar with the time that is left, on stderr; silent when that is not a terminal.

    Yields:
        A function to call with how much is done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def stage(description: str) -> Iterator[None]:
    """A spinner on stderr while something of unknown length runs; silent when that is not a terminal."""
    from rich.console import Console

    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(description):
        yield


def show(
    result: Mapping[str, Any],
    as_json: bool,
    *,
    columns: Sequence[str] | None = None,
    rows: Sequence[Sequence[Any]] = (),
    title: str = "",
    note: str = "",
    files: Sequence[Path] = (),
) -> None:
    """Print a result: as JSON, or as a table followed by a note and the files that were written.

    Args:
        result: JSON-able values; NaN becomes null and infinity "inf". Without `columns` its scalars are the table.
        as_json: Whether JSON is wanted.
        columns: Headings of the table.
        rows: Its rows.
        title: Above the table.
        note: Below the table: what the numbers mean.
        files: What was written; added to the JSON as `files`.
    """
    if as_json:
        values = {**result, **({"files": [str(file) for file in files]} if files else {})}
        typer.echo(json.dumps(_plain(values), indent=1, allow_nan=False))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    # A caption or title would wrap at the width of a narrow pipe; printed lines do not.
    console = Console(highlight=False, soft_wrap=True)
    if title:
        console.print(title, style="bold", markup=False)
    table = Table(box=SIMPLE_HEAD, show_header=bool(columns))
    body = rows if columns else [(name, value) for name, value in result.items() if not isinstance(value, (list, dict))]
    for i, name in enumerate(columns or ("", "")):
        table.add_column(name, justify="right" if columns and i else "left", no_wrap=True)
    for row in body:
        table.add_row(*(number(value) for value in row))
    # a table is never squeezed: a pipe has no width, and a terminal's lines can be scrolled
    needed = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    if note:
        console.print(note, markup=False)
    for file in files:
        console.print(f"wrote {file}", markup=False)


def number(value: Any) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return str(value) if isinstance(value, Path) else value

"""The console commands ``demo``, ``bench``, ``pins`` and ``new``: arguments in, exit codes out.

Exit codes: 0 all went well, 1 something failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from workbench.workspace import WorkspaceError, find_workspace

__all__ = ["bench_main", "demo_main", "new_main", "pins_main"]

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def _command(function: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    return app


@contextmanager
def _bad_input_is_exit_2() -> Iterator[None]:
    try:
        yield
    except WorkspaceError as error:
        _err.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None


def _demo(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go [default: out].")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the demos and exit.")] = False,
) -> None:
    """Runs the demos of the installed packages (all, or those named) and writes one page."""
    from workbench.demo_display import Display
    from workbench.demo_page import write_page
    from workbench.demos import choose, discover, run_demos, stop_on_terminate

    with _bad_input_is_exit_2():
        chosen = choose(names or [], discover())
        if list_only:
            for name in chosen:
                _out.print(name)
            return
        folder = out or _default_out()
        stop_on_terminate()
        try:
            with Display(_out) as display:
                runs = run_demos(chosen, folder, display.show)
        except KeyboardInterrupt:
            _err.print("stopped", style="red")
            raise typer.Exit(130) from None
        page = write_page(folder)
    failed = [run.name for run in runs if run.state != "passed"]
    _out.print(f"{len(runs) - len(failed)} passed, {len(failed)} failed; see {page}")
    if failed:
        raise typer.Exit(1)


def _default_out() -> Path:
    try:
        return find_workspace().root / "out"
    except WorkspaceError:
        return Path("out")


def _pins(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if they differ.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="First resolve anew, without the pins of NAME or all.")
    ] = False,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
) -> None:
    """Keeps the address-free exact versions (root constraints, requirements.lock) as in uv.lock."""
    from workbench import pins

    with _bad_input_is_exit_2():
        workspace = find_workspace()
        if names and not upgrade:
            raise WorkspaceError("NAME is only used with --upgrade")
        if check and upgrade:
            raise WorkspaceError("--check changes nothing, so it does not go with --upgrade")
        if upgrade:
            pins.upgrade(workspace, names or [])
        diff = pins.differences(workspace) if check else pins.write_pins(workspace)
    for line in diff:
        _out.print(line, markup=False)
    if check and diff:
        _err.print("the pins differ from uv.lock; `uv run pins` writes them anew", style="red")
        raise typer.Exit(1)
    _out.print("the pins agree with uv.lock" if check or not diff else "wrote the pins")


def _bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three pairs, into out/bench; records nothing.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only cases whose FILE::NAME matches this pattern.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Pin both sides to N threads, not the case's own.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="SET=PYTHON", help="Use this interpreter for a peer set."),
    ] = None,
    no_install: Annotated[
        bool, typer.Option("--no-install", help="Build no peer environment; use those there are.")
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Measure nothing; write RESULTS.md anew.")] = False,
) -> None:
    """Measures packages against their peers, side by side, and writes benchmarks/*/RESULTS.*."""
    from workbench.bench import run as bench
    from workbench.demos import stop_on_terminate

    failed = 0
    with _bad_input_is_exit_2():
        workspace = find_workspace()
        suites = bench.find_suites(workspace, names or [])
        if list_only:
            for suite in suites:
                for file in suite.benches():
                    for case in file.cases:
                        peers = ", ".join(peer.name for peer in case.peers) or "no peer"
                        _out.print(f"{suite.title}/{file.file.name}::{case.name} ({peers})")
            return
        options = bench.Options(tuple(only or ()), quick, threads, _environments(env or []), not no_install)
        stop_on_terminate()
        try:
            for suite in suites:
                if report:
                    bench.rewrite(suite)
                    continue
                with _progress() as show:
                    rows, folder = bench.run_suite(
                        workspace,
                        suite,
                        options,
                        lambda row: _out.print(bench.line_of(row), markup=False),
                        show,
                    )
                failed += sum(row.state in ("failed", "unequal") for row in rows)
                _out.print(f"results in {folder}", markup=False)
        except KeyboardInterrupt:
            _err.print("stopped; what was measured is kept", style="red")
            raise typer.Exit(130) from None
    if failed:
        _err.print(f"{failed} rows failed or were not equal", style="red")
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time that is left, on stderr; nothing when that is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Seldom refreshed, since it shares the processors with what is measured.
    bar = Progress(*columns, console=_err, transient=True, refresh_per_second=1, disable=not _err.is_terminal)
    with bar:
        task = bar.add_task("", total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)


def _environments(pairs: list[str]) -> dict[str, Path]:
    found = {}
    for pair in pairs:
        name, separator, python = pair.partition("=")
        if not separator or not python:
            raise WorkspaceError(f"--env takes SET=PYTHON, got {pair!r}")
        found[name] = Path(python).absolute()
    return found


def _new(name: Annotated[str, typer.Argument(help="The distribution, as in my-paper.")]) -> None:
    """Creates packages/NAME and benchmarks/<module>, and adds the package to the workspace."""
    from workbench.scaffold import create

    with _bad_input_is_exit_2():
        workspace = find_workspace()
        for file in create(workspace, name):
            _out.print(str(file.relative_to(workspace.root)), markup=False)
    _out.print(
        f"next: `uv run pytest packages/{name}`, then replace standardize.py by the paper's first "
        "idea, fill in its row in README.md, and `uv run pins` once dependencies change",
        markup=False,
    )


demo_main = _command(_demo)
pins_main = _command(_pins)
bench_main = _command(_bench)
new_main = _command(_new)

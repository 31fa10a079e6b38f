"""``bench``: from the names on the command line to the result files."""

from __future__ import annotations

import difflib
import fnmatch
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from workbench.bench.definitions import Bench, Case, read_bench
from workbench.bench.measure import Row, measure_bench
from workbench.bench.peers import PeerAbsent, PeerSet, environment_python, read_peers
from workbench.bench.report import (
    describe_machine,
    goal_words,
    merge,
    read_results,
    write_results,
)
from workbench.workspace import Workspace, WorkspaceError

__all__ = ["Options", "Suite", "find_suites", "line_of", "rewrite", "run_suite"]

QUICK_PAIRS = 3


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        only: Patterns of case names; empty means all.
        quick: Few pairs, and results that do not replace the recorded ones.
        threads: Replaces each case's own.
        environments: Interpreters for peer sets, instead of built ones.
        install: Whether missing peer environments are built.
    """

    only: tuple[str, ...] = ()
    quick: bool = False
    threads: int | None = None
    environments: dict[str, Path] = field(default_factory=dict)
    install: bool = True


@dataclass(frozen=True)
class Suite:
    """The benchmarks of one package."""

    title: str
    folder: Path

    def benches(self, threads: int | None = None) -> list[Bench]:
        """Its files, read and checked."""
        return [read_bench(file, threads) for file in sorted(self.folder.glob("bench_*.py"))]


def find_suites(workspace: Workspace, names: Sequence[str]) -> list[Suite]:
    """The suites of the named packages, or all.

    Raises:
        WorkspaceError: A name has no benchmarks.
    """
    base = workspace.root / "benchmarks"
    suites = {
        folder.name: Suite(folder.name, folder) for folder in sorted(base.glob("*")) if any(folder.glob("bench_*.py"))
    }
    for name in names:
        if name.replace("-", "_") not in suites:
            near = difflib.get_close_matches(name.replace("-", "_"), suites, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(suites)}"
            raise WorkspaceError(f"no benchmarks are called {name!r}; {hint}")
    chosen = [suites[name.replace("-", "_")] for name in dict.fromkeys(names)]
    return chosen or list(suites.values())


def run_suite(
    workspace: Workspace,
    suite: Suite,
    options: Options,
    report: Callable[[Row], None],
    progress: Callable[[str, int, int], None],
) -> tuple[list[Row], Path]:
    """Measures a suite and writes its results, also of what was done before an interruption.

    Args:
        workspace: The workspace.
        suite: The package's benchmarks.
        options: What was asked for.
        report: Called with each row as it is done.
        progress: Called with what is being done, how many rows are done, and of how many.

    Returns:
        The rows of this run, and the folder of the result files.

    Raises:
        WorkspaceError: A file declares something unknown, or a peer set is not in peers.txt.
    """
    benches = suite.benches(options.threads)
    sets = read_peers(suite.folder / "peers.txt")
    _check_sets(benches, sets, options)
    chosen = [(bench, _chosen(bench, options.only)) for bench in benches]
    if not any(cases for _, cases in chosen):
        raise WorkspaceError(f"no case of {suite.title} matches {' '.join(options.only)}")
    machine = describe_machine(workspace.root)
    # A quick look must not replace the recorded numbers, and a narrowed one only its own rows.
    folder = workspace.root / "out" / "bench" / suite.title if options.quick else suite.folder
    earlier = read_results(folder / "RESULTS.json")
    rows: list[Row] = []
    whole: set[str] = set()

    total = sum(max(1, len(case.peers)) for _, cases in chosen for case in cases)

    def begin(text: str) -> None:
        progress(text, len(rows), total)

    def keep(row: Row) -> None:
        rows.append(row)
        report(row)

    python_of = _environments(sets, options, begin)
    try:
        for bench, cases in chosen:
            measure_bench(bench, cases, python_of, keep, begin, pairs=QUICK_PAIRS if options.quick else None)
            if not options.only and not options.threads:
                whole.add(bench.file.name)
    finally:
        declared = {(bench.file.name, case.name) for bench in benches for case in bench.cases}
        merged = merge(earlier["rows"], rows, machine, whole, declared)
        write_results(folder, suite.title, merged, earlier["claims"])
    return rows, folder


def rewrite(suite: Suite) -> None:
    """Writes RESULTS.md and the plot anew from RESULTS.json and claim_*.json."""
    earlier = read_results(suite.folder / "RESULTS.json")
    write_results(suite.folder, suite.title, earlier["rows"], earlier["claims"])


def _chosen(bench: Bench, only: tuple[str, ...]) -> list[Case]:
    return [
        case
        for case in bench.cases
        if not only or any(fnmatch.fnmatch(f"{bench.file.name}::{case.name}", f"*{p}*") for p in only)
    ]


def _check_sets(benches: list[Bench], sets: dict[str, PeerSet], options: Options) -> None:
    wanted = {peer.environment for bench in benches for case in bench.cases for peer in case.peers}
    for name in sorted(wanted):
        if name not in sets and name not in options.environments:
            raise WorkspaceError(f"peers.txt has no set [{name}], which a case names")
    for name, python in options.environments.items():
        if name not in wanted:
            raise WorkspaceError(f"--env {name}=...: no case names that set")
        if not python.is_file():
            raise WorkspaceError(f"--env {name}={python}: there is no such interpreter")


def _environments(
    sets: dict[str, PeerSet], options: Options, begin: Callable[[str], None]
) -> Callable[[str], Path | str]:
    found: dict[str, Path | PeerAbsent] = {}

    def python_of(name: str) -> Path | str:
        if name == "ours":
            return sys.executable
        if name in options.environments:
            return options.environments[name]
        if name not in found:
            begin(f"building the environment of {name}")
            try:
                found[name] = environment_python(sets[name], options.install)
            except PeerAbsent as error:
                found[name] = error
        result = found[name]
        if isinstance(result, PeerAbsent):
            raise result
        return result

    return python_of


def line_of(row: Row) -> str:
    """A row as one line for the terminal."""
    what = f"{row.case} / {row.peer}" if row.peer else row.case
    parts = []
    if row.state != "measured":
        parts.append(f"{row.state}: {row.note}")
    elif row.ratio:
        r = row.ratio
        parts.append(f"ours / peer {r.median:.3g} [{r.lower:.3g}-{r.upper:.3g}]")
    if row.state == "measured" and row.error is not None:
        parts.append(f"equal to {row.error:.1e}")
    if row.ours.seconds:
        parts.append(f"{row.ours.seconds.median * 1e3:.4g} ms")
    if row.ours.growth_mb is not None:
        parts.append(f"+{row.ours.growth_mb:.0f} MB, first call {row.ours.first_call_seconds:.2f} s")
    parts += [goal_words(asdict(goal)).replace("**", "") for goal in row.goals]
    return f"{what}: {'; '.join(parts)}"

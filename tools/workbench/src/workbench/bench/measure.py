"""Takes the numbers of one case: equality first, then time pair by pair, A B A B."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.bench.definitions import Bench, Case, Goal, PeerSpec
from workbench.bench.peers import PeerAbsent
from workbench.bench.sides import Side, SideError

__all__ = ["GoalResult", "Row", "SideResult", "Spread", "measure_bench", "relative_error", "spread"]

SAMPLE_SECONDS = 0.05  # a sample repeats the call until it takes about this long [s]
MAX_CALLS = 1000


@dataclass(frozen=True)
class Spread:
    """The median of some samples, with the quartiles around it."""

    median: float
    lower: float
    upper: float
    samples: tuple[float, ...] = field(repr=False, default=())


@dataclass
class SideResult:
    """What was measured of one side.

    Attributes:
        seconds: Wall time of a call [s]; None where the case has no timed pairs.
        cpu_seconds: CPU time of a call, all threads together [s].
        first_call_seconds: Building (tables, compilation) and first call in a fresh process [s].
        peak_mb: Peak memory of that process [MB].
        growth_mb: The same less what the process held after its imports [MB].
        counted_mb: What the side itself says it holds, where it has `counted_bytes` [MB].
        versions: Of Python and the side's distributions.
    """

    seconds: Spread | None = None
    cpu_seconds: Spread | None = None
    first_call_seconds: float | None = None
    peak_mb: float | None = None
    growth_mb: float | None = None
    counted_mb: float | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GoalResult:
    """A goal, the value it was held against (None if there is none), and whether it was met."""

    text: str
    value: float | None
    met: bool


@dataclass
class Row:
    """One line of the results: a case by itself, or a case and one of its peers.

    Attributes:
        state: "measured", "unequal" (no ratio is stated), "absent" (the peer), or "failed".
        error: The measured error between the outputs, relative to the peer's largest value.
        ratio: Ours over the peer's wall time, pair by pair; below 1 ours is faster.
        load: The machine's load average when the row began.
    """

    bench: str
    case: str
    params: dict[str, Any]
    threads: int
    peer: str | None = None
    state: str = "measured"
    note: str = ""
    tolerance: float | None = None
    error: float | None = None
    ours: SideResult = field(default_factory=SideResult)
    theirs: SideResult | None = None
    ratio: Spread | None = None
    goals: list[GoalResult] = field(default_factory=list)
    load: float = 0.0


Environments = Callable[[str], Path]


class _Interpreters:
    """The interpreters that are alive: one of ours and one of each peer, per number of threads."""

    def __init__(self, bench: Bench, python_of: Callable[[str], Path | str]) -> None:
        self._bench = bench
        self._python_of = python_of
        self._alive: dict[tuple[str, int], Side] = {}

    def kept(self, side: str, environment: str, threads: int) -> Side:
        if (side, threads) not in self._alive:
            self._alive[side, threads] = self.fresh(side, environment, threads)
        return self._alive[side, threads]

    def fresh(self, side: str, environment: str, threads: int) -> Side:
        return Side(self._python_of(environment), self._bench.file, side, threads)

    def drop(self, side: str, threads: int) -> None:
        if gone := self._alive.pop((side, threads), None):
            gone.close()

    def close(self) -> None:
        for side in self._alive.values():
            side.close()


def measure_bench(
    bench: Bench,
    cases: Sequence[Case],
    python_of: Callable[[str], Path | str],
    report: Callable[[Row], None],
    begin: Callable[[str], None],
    pairs: int | None = None,
) -> None:
    """Measures the cases of one file.

    Args:
        bench: The file.
        cases: Those of its cases that are wanted.
        python_of: The interpreter of a peer set, and of "ours".
        report: Called with each row as it is done.
        begin: Called with the name of each row before it is measured.
        pairs: Replaces each case's number of pairs (a quick look).
    """
    interpreters = _Interpreters(bench, python_of)
    try:
        for case in cases:
            count = case.pairs if pairs is None else min(pairs, case.pairs)
            first = case.peers[0] if case.peers else None
            for peer in case.peers or (None,):
                begin(f"{case.name} / {peer.name}" if peer else case.name)
                row = _row(bench, case, peer)
                _attempt(row, case, peer, interpreters, count)
                # Goals of our side alone are judged once, not again beside each peer.
                _judge(row, case if peer is first else None, peer)
                report(row)
    finally:
        interpreters.close()


def _attempt(row: Row, case: Case, peer: PeerSpec | None, interpreters: _Interpreters, pairs: int) -> None:
    """Measures what can be measured, and says in the row what could not."""
    try:
        _measure(row, case, peer, interpreters, pairs)
    except PeerAbsent as error:
        row.state, row.note = "absent", str(error)
    except SideError as error:
        row.state, row.note = "failed", str(error)
        for side in ("ours", *([peer.name] if peer else [])):
            interpreters.drop(side, case.threads)
    ours_failed = row.ours.first_call_seconds is None
    if pairs and row.ours.seconds is None and not ours_failed:
        # No pair, but our own time is worth having.
        try:
            _time_alone(row, interpreters.kept("ours", "ours", case.threads), case, pairs)
        except SideError as error:
            row.state, row.note = "failed", str(error)
            interpreters.drop("ours", case.threads)


def _row(bench: Bench, case: Case, peer: PeerSpec | None) -> Row:
    return Row(
        bench.file.name,
        case.name,
        dict(case.params),
        case.threads,
        peer.name if peer else None,
        tolerance=peer.tolerance if peer else None,
        load=round(os.getloadavg()[0], 2),
    )


def _measure(row: Row, case: Case, peer: PeerSpec | None, interpreters: _Interpreters, pairs: int) -> None:
    mine = _fresh_runs(row.ours, "ours", "ours", case, interpreters)
    if peer is None:
        if pairs:
            _time_alone(row, interpreters.kept("ours", "ours", case.threads), case, pairs)
        return
    row.theirs = SideResult()
    theirs = _fresh_runs(row.theirs, peer.name, peer.environment, case, interpreters)
    if not _equal(row, peer, mine, theirs) or not pairs:
        return
    a = interpreters.kept("ours", "ours", case.threads)
    b = interpreters.kept(peer.name, peer.environment, case.threads)
    # The very interpreters that are timed must agree too, not only their fresh twins.
    if _equal(row, peer, _build(a, case), _build(b, case)):
        _time_pairs(row, a, b, pairs)


def _fresh_runs(
    result: SideResult, side: str, environment: str, case: Case, interpreters: _Interpreters
) -> tuple[str, NDArray[Any]]:
    headers = []
    for _ in range(max(1, case.fresh)):
        with interpreters.fresh(side, environment, case.threads) as process:
            header, output = process.ask("build", case=case.message())
            headers.append(header)
            result.versions = process.versions
    for name in ("first_call_seconds", "peak_mb", "growth_mb"):
        setattr(result, name, float(np.median([header[name] for header in headers])))
    if "counted_mb" in headers[-1]:
        result.counted_mb = float(headers[-1]["counted_mb"])
    return _output(header, output)


def _build(side: Side, case: Case) -> tuple[str, NDArray[Any]]:
    return _output(*side.ask("build", case=case.message()))


def _output(header: dict[str, Any], output: NDArray[Any] | None) -> tuple[str, NDArray[Any]]:
    if output is None or output.dtype.kind not in "biufc":
        raise SideError("the output must be a numeric array")
    return header["digest"], output


def _equal(row: Row, peer: PeerSpec, mine: tuple[str, NDArray[Any]], theirs: tuple[str, NDArray[Any]]) -> bool:
    if mine[0] != theirs[0]:
        raise SideError("inputs(case) made different arrays on the two sides; fix their seed")
    if mine[1].shape != theirs[1].shape:
        row.error, row.state = math.inf, "unequal"
        row.note = f"shapes differ: ours {mine[1].shape}, {peer.name} {theirs[1].shape}"
        return False
    error = relative_error(mine[1], theirs[1])
    row.error = error if row.error is None else max(row.error, error)
    if error <= peer.tolerance:
        return True
    row.state = "unequal"
    row.note = f"outputs differ by {error:.1e}, stated tolerance {peer.tolerance:.0e}: no ratio"
    return False


def relative_error(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """The error max |ours - theirs| / max |theirs|; infinite if either is not finite throughout."""
    wide = np.result_type(ours.dtype, theirs.dtype, np.float64)
    a, b = ours.astype(wide), theirs.astype(wide)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    difference = float(np.max(np.abs(a - b), initial=0.0))
    scale = float(np.max(np.abs(b), initial=0.0))
    return difference / scale if scale else difference


def _calls(side: Side) -> int:
    """Warms up, and finds how many calls make a sample of useful length."""
    for _ in range(3):
        once = float(side.ask("time", calls=1)[0]["seconds"])
    calls = min(MAX_CALLS, max(1, math.ceil(SAMPLE_SECONDS / max(once, 1e-9))))
    side.ask("time", calls=calls)
    return calls


def _time_pairs(row: Row, a: Side, b: Side, pairs: int) -> None:
    calls_a, calls_b = _calls(a), _calls(b)
    taken_a, taken_b = [], []
    for _ in range(pairs):
        taken_a.append(a.ask("time", calls=calls_a)[0])
        taken_b.append(b.ask("time", calls=calls_b)[0])
    assert row.theirs is not None
    _keep(row.ours, taken_a)
    _keep(row.theirs, taken_b)
    row.ratio = spread([x["seconds"] / y["seconds"] for x, y in zip(taken_a, taken_b, strict=True)])


def _time_alone(row: Row, side: Side, case: Case, samples: int) -> None:
    _build(side, case)
    calls = _calls(side)
    _keep(row.ours, [side.ask("time", calls=calls)[0] for _ in range(samples)])


def _keep(result: SideResult, taken: list[dict[str, float]]) -> None:
    result.seconds = spread([sample["seconds"] for sample in taken])
    result.cpu_seconds = spread([sample["cpu_seconds"] for sample in taken])


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles."""
    lower, median, upper = (float(x) for x in np.quantile(samples, [0.25, 0.5, 0.75]))
    return Spread(median, lower, upper, tuple(float(x) for x in samples))


def _judge(row: Row, case: Case | None, peer: PeerSpec | None) -> None:
    """Holds the goals against the row; a pair that is not equal meets none of its goals."""
    values = {
        name: _number(getattr(row.ours, name))
        for name in ("seconds", "cpu_seconds", "first_call_seconds", "peak_mb", "growth_mb")
    }
    pair = _pair_values(row) if row.state == "measured" else {}
    row.goals = [_goal(goal, values) for goal in (case.goals if case else ())]
    row.goals += [_goal(goal, pair) for goal in (peer.goals if peer else ())]


def _goal(goal: Goal, values: dict[str, float | None]) -> GoalResult:
    value = values.get(goal.metric)
    return GoalResult(str(goal), value, value is not None and goal.met(value))


def _pair_values(row: Row) -> dict[str, float | None]:
    if row.theirs is None:
        return {}
    ratio = row.ratio.median if row.ratio else None
    return {
        "ratio": ratio,
        "speedup": 1 / ratio if ratio else None,
        "cpu_ratio": _over(row.ours.cpu_seconds, row.theirs.cpu_seconds),
        "growth_ratio": _over(row.ours.growth_mb, row.theirs.growth_mb),
        "first_call_ratio": _over(row.ours.first_call_seconds, row.theirs.first_call_seconds),
        "counted_ratio": _over(row.ours.counted_mb, row.theirs.counted_mb),
    }


def _over(ours: Spread | float | None, theirs: Spread | float | None) -> float | None:
    a, b = _number(ours), _number(theirs)
    return a / b if a is not None and b else None


def _number(value: Spread | float | None) -> float | None:
    return value.median if isinstance(value, Spread) else value

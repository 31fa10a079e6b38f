"""What a benchmark file declares: its cases, their peers, tolerances and goals.

A file ``benchmarks/<module>/bench_<topic>.py`` is imported by both interpreters, so at import it
may need the standard library and numpy only. It holds ``CASES`` (plain dicts), ``IMPORTS`` (the
modules of each side) and the functions ``inputs(case)``, ``ours(case, data)`` and
``peer_<name>(case, data)``; the README has an example.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.bench.worker import load
from workbench.workspace import WorkspaceError

__all__ = ["OURS_METRICS", "PAIR_METRICS", "Bench", "Case", "Goal", "PeerSpec", "read_bench"]

OURS_METRICS = ("seconds", "cpu_seconds", "first_call_seconds", "peak_mb", "growth_mb")
PAIR_METRICS = ("ratio", "speedup", "cpu_ratio", "growth_ratio", "first_call_ratio", "counted_ratio")
MIN_PAIRS = 7
DEFAULT_PAIRS = 11
_GOAL = re.compile(r"(?P<metric>\w+)\s*(?P<sign><=|>=|<|>)\s*(?P<limit>[0-9.eE+-]+)")
_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Goal:
    """A stated limit of one metric, such as ``ratio <= 1.0``."""

    metric: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.limit:g}"

    def met(self, value: float) -> bool:
        """Whether ``value`` is within the limit."""
        return bool(_SIGNS[self.sign](value, self.limit))


@dataclass(frozen=True)
class PeerSpec:
    """How a case is compared with one peer.

    Attributes:
        name: The function ``peer_<name>``.
        environment: The set in peers.txt that has it.
        tolerance: The largest error, max |ours - peer| / max |peer|, at which the outputs count as
            equal.
        goals: Limits of the pair's metrics.
    """

    name: str
    environment: str
    tolerance: float
    goals: tuple[Goal, ...]


@dataclass(frozen=True)
class Case:
    """One line of a benchmark.

    Attributes:
        name: Unique in its file among cases with the same peer and number of threads.
        params: Attributes of the ``case`` that the functions get; plain JSON values.
        threads: To which both sides are pinned.
        pairs: How many timed pairs; 0 for a case about memory or the first call only.
        fresh: How many fresh processes measure memory and the first call; the median counts.
        goals: Limits of our side's metrics.
        peers: Compared with these; none for a single-sided case.
    """

    name: str
    params: Mapping[str, Any]
    threads: int
    pairs: int
    fresh: int
    goals: tuple[Goal, ...]
    peers: tuple[PeerSpec, ...]

    def message(self) -> dict[str, Any]:
        """The case as it is sent to a worker."""
        return {"name": self.name, "params": dict(self.params), "threads": self.threads}


@dataclass(frozen=True)
class Bench:
    """A benchmark file and its cases."""

    file: Path
    about: str
    cases: tuple[Case, ...]


def read_bench(file: Path, threads: int | None = None) -> Bench:
    """Imports a benchmark file and checks what it declares.

    Args:
        file: The benchmark file.
        threads: Replaces each case's own number of threads.

    Raises:
        WorkspaceError: It does not import, or declares something the harness does not know.
    """
    try:
        module = load(file)
    except Exception as error:
        raise WorkspaceError(
            f"{file.name} does not import ({type(error).__name__}: {error}); at import it may "
            "need the standard library and numpy only"
        ) from error
    cases = tuple(
        _case(case, f"{file.name}: CASES[{i}]", threads) for i, case in enumerate(getattr(module, "CASES", []))
    )
    if not cases:
        raise WorkspaceError(f"{file.name} declares no CASES")
    rows = Counter(
        (case.name, case.threads, peer.name if peer else "no peer") for case in cases for peer in case.peers or (None,)
    )
    for (name, _, peer_name), count in rows.items():
        if count > 1:
            raise WorkspaceError(f"{file.name}: {count} cases are called {name!r} with the same peer ({peer_name})")
    sides = {"ours", *(peer.name for case in cases for peer in case.peers)}
    for side in sorted(sides):
        function = "ours" if side == "ours" else f"peer_{side}"
        if not callable(getattr(module, function, None)):
            raise WorkspaceError(f"{file.name} has no function {function}(case, data)")
        if side not in getattr(module, "IMPORTS", {}):
            raise WorkspaceError(f"{file.name}: IMPORTS must list the modules of {side!r}")
    if not callable(getattr(module, "inputs", None)):
        raise WorkspaceError(f"{file.name} has no function inputs(case)")
    return Bench(file, (module.__doc__ or "").strip(), cases)


def _case(data: object, where: str, threads: int | None) -> Case:
    known = {
        "name": str,
        "params": dict,
        "threads": int,
        "pairs": int,
        "fresh": int,
        "goal": (str, list),
        "peers": dict,
    }
    fields = _checked(data, where, known, required=("name",))
    pairs = fields.get("pairs", DEFAULT_PAIRS)
    if pairs and pairs < MIN_PAIRS:
        raise WorkspaceError(f"{where}: pairs must be 0 or at least {MIN_PAIRS}, got {pairs}")
    return Case(
        name=fields["name"],
        params=fields.get("params", {}),
        threads=threads or fields.get("threads", 1),
        pairs=pairs,
        fresh=fields.get("fresh", 1),
        goals=_goals(fields.get("goal", []), where, OURS_METRICS),
        peers=tuple(_peer(name, spec, f"{where}: peers[{name!r}]") for name, spec in fields.get("peers", {}).items()),
    )


def _peer(name: str, data: object, where: str) -> PeerSpec:
    known = {"tolerance": float, "goal": (str, list), "environment": str}
    fields = _checked(data, where, known, required=("tolerance",))
    return PeerSpec(
        name,
        fields.get("environment", name),
        fields["tolerance"],
        _goals(fields.get("goal", []), where, PAIR_METRICS),
    )


def _checked(data: object, where: str, known: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise WorkspaceError(f"{where} must be a dict, got {data!r}")
    for key, value in data.items():
        if key not in known:
            raise WorkspaceError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
        if not isinstance(value, known[key]):
            raise WorkspaceError(f"{where}: {key} has the wrong type: {value!r}")
    for key in required:
        if key not in data:
            raise WorkspaceError(f"{where}: {key} is missing")
    return data


def _goals(texts: str | list[str], where: str, metrics: tuple[str, ...]) -> tuple[Goal, ...]:
    goals = []
    for text in [texts] if isinstance(texts, str) else texts:
        found = _GOAL.fullmatch(text.strip())
        if not found or found["metric"] not in metrics:
            raise WorkspaceError(
                f"{where}: a goal reads `metric <= number` with metric one of {', '.join(metrics)}; got {text!r}"
            )
        goals.append(Goal(found["metric"], found["sign"], float(found["limit"])))
    return tuple(goals)

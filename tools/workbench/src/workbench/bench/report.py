"""RESULTS.json, RESULTS.md and RESULTS.png of a package: generated, never typed."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.bench.measure import Row
from workbench.workspace import WorkspaceError

__all__ = ["describe_machine", "goal_words", "merge", "read_results", "write_results"]

JsonRow = dict[str, Any]


def describe_machine(root: Path) -> dict[str, str]:
    """When and where a run took place: no names or paths, only what bears on the numbers."""
    cpuinfo = Path("/proc/cpuinfo")
    model = None
    if cpuinfo.exists():
        model = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if commit and _git(root, "status", "--porcelain", "--untracked-files=no"):
        commit += " with changes"
    return {
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
        "commit": commit or "unknown",
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "processors": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def read_results(file: Path) -> dict[str, Any]:
    """The RESULTS.json of earlier runs, or an empty one.

    Raises:
        WorkspaceError: The file is not what `write_results` writes.
    """
    if not file.is_file():
        return {"rows": [], "claims": []}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {"rows": list(data["rows"]), "claims": list(data.get("claims", []))}
    except (ValueError, KeyError, TypeError) as error:
        raise WorkspaceError(f"{file} is not a result file of bench: {error}") from error


def merge(
    old: Iterable[JsonRow], new: Iterable[Row], machine: dict[str, str], whole: set[str], declared: set[tuple[str, str]]
) -> list[JsonRow]:
    """The rows of this run over those of earlier ones.

    Args:
        old: Rows of earlier runs.
        new: Rows of this run.
        machine: Where this run took place; each row keeps its own.
        whole: Benchmark files measured in full: all their old rows go.
        declared: (benchmark file, case) of all there are; old rows of others are of cases that are no more, and go.
    """
    rows = {_key(row): row for row in old if row["bench"] not in whole and (row["bench"], row["case"]) in declared}
    for row in new:
        data = {**asdict(row), "run": machine}
        rows[_key(data)] = data
    return list(rows.values())


def _key(row: JsonRow) -> tuple[Any, ...]:
    return row["bench"], row["case"], row["threads"], row["peer"]


def write_results(folder: Path, title: str, rows: list[JsonRow], claims: list[Any]) -> None:
    """Writes the three files into ``folder``; the claims are read anew from claim_*.json there."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(folder.glob("claim_*.json"))]
    claims = found or claims
    data = _finite({"rows": rows, "claims": claims})
    _replace(folder / "RESULTS.json", json.dumps(data, indent=1, allow_nan=False) + "\n")
    plotted = _plot(folder / "RESULTS.png", rows)
    _replace(folder / "RESULTS.md", _markdown(title, rows, claims, plotted))


def _finite(value: Any) -> Any:
    """JSON has no infinity: an infinite error (shapes differ, NaN) becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def _markdown(title: str, rows: list[JsonRow], claims: list[Any], plotted: bool) -> str:
    parts = [
        f"# Benchmarks of {title}",
        "Written by `uv run bench`; do not edit. Ours and the peer ran interleaved (A B A B) in one "
        "run, each in its own interpreter, pinned to the same processors. A ratio is ours over the "
        "peer, pair by pair: median [quartiles]; below 1 ours is faster. No ratio is stated unless "
        "both outputs were equal to the tolerance. Memory is of a fresh process: growth over its "
        "imports (peak in brackets); its first call includes building and compiling.",
    ]
    if plotted:
        parts.append("![ratios of wall time](RESULTS.png)")
    for bench in dict.fromkeys(row["bench"] for row in rows):
        mine = [row for row in rows if row["bench"] == bench]
        parts += [f"## {bench}", _time_table(mine), _memory_table(mine)]
    parts += ["## Where and when", *_runs(rows)]
    parts += [_claim(claim) for claim in claims]
    return "\n\n".join(part for part in parts if part) + "\n"


def _time_table(rows: list[JsonRow]) -> str:
    head = (
        *("case", "threads", "ours", "peer", "its time", "ours / peer", "CPU time ours / peer"),
        *("largest error ≤ tolerance", "goals"),
    )
    return _table(head, [_time_cells(row) for row in rows])


def _time_cells(row: JsonRow) -> list[str]:
    ours, theirs = row["ours"], row["theirs"] or {}
    equal = ""
    if row["tolerance"] is not None and row["error"] is not None:
        sign = "≤" if row["state"] != "unequal" else "**>**"
        equal = f"{row['error']:.1e} {sign} {row['tolerance']:.0e}"
    ratio = f"**{row['state']}**: {row['note']}" if row["state"] != "measured" else ""
    if row["ratio"]:
        r = row["ratio"]
        ratio = f"**{r['median']:.3g}** [{r['lower']:.3g}–{r['upper']:.3g}]"
    cpu = [_seconds(ours["cpu_seconds"]), _seconds(theirs.get("cpu_seconds"))]
    return [
        row["case"],
        str(row["threads"]),
        _seconds(ours["seconds"]),
        row["peer"] or "",
        _seconds(theirs.get("seconds")),
        ratio,
        " / ".join(filter(None, cpu)),
        equal,
        "; ".join(goal_words(goal) for goal in row["goals"]),
    ]


def goal_words(goal: dict[str, Any]) -> str:
    """A goal as one reads it: met, or not, and by which value."""
    value = "not measured" if goal["value"] is None else f"{goal['value']:.3g}"
    return f"{goal['text']}: {'met' if goal['met'] else '**not met**'} ({value})"


def _memory_table(rows: list[JsonRow]) -> str:
    head: tuple[str, ...] = (
        "case",
        "ours: growth (peak) [MB]",
        "first call",
        "peer",
        "its growth (peak) [MB]",
        "its first call",
    )
    counted = any((row["ours"] or {}).get("counted_mb") is not None for row in rows)
    if counted:
        head = (*head, "counted: ours / peer [MB]")
    cells = []
    for row in rows:
        ours, theirs = row["ours"], row["theirs"] or {}
        cells.append(
            [
                row["case"],
                _memory(ours),
                _seconds(ours["first_call_seconds"]),
                row["peer"] or "",
                _memory(theirs),
                _seconds(theirs.get("first_call_seconds")),
                *([_counted(ours, theirs)] if counted else []),
            ]
        )
    return _table(head, cells)


def _memory(side: JsonRow) -> str:
    if side.get("peak_mb") is None:
        return ""
    return f"{side['growth_mb']:.0f} ({side['peak_mb']:.0f})"


def _counted(ours: JsonRow, theirs: JsonRow) -> str:
    a, b = ours.get("counted_mb"), theirs.get("counted_mb")
    if a is None:
        return ""
    return f"{a:.0f}" if b is None else f"{a:.0f} / {b:.0f} = {a / b:.3f}"


def _seconds(value: Any) -> str:
    if value is None:
        return ""
    median = value["median"] if isinstance(value, dict) else value
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if median * factor >= 1:
            return f"{median * factor:.3g} {unit}"
    return f"{median * 1e9:.3g} ns"


def _table(head: Iterable[str], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *rows]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def _runs(rows: list[JsonRow]) -> list[str]:
    runs: dict[str, list[JsonRow]] = {}
    for row in rows:
        runs.setdefault(json.dumps(row["run"]), []).append(row)
    parts = []
    for text, mine in runs.items():
        run = json.loads(text)
        loads = [row["load"] for row in mine]
        parts.append(
            f"{run['date']}, commit {run['commit']}: {run['cpu']}, {run['processors']} processors, "
            f"{run['system']}; load average {min(loads):.1f} to {max(loads):.1f} "
            f"({len(mine)} rows)."
        )
    sides = {}
    for row in rows:
        for name, side in (("ours", row["ours"]), (row["peer"], row["theirs"])):
            if side and side["versions"]:
                sides[name] = ", ".join(f"{k} {v}" for k, v in side["versions"].items())
    return [*parts, *(f"Versions, {name}: {text}." for name, text in sides.items())]


def _claim(claim: Any) -> str:
    """A claim file follows the contract of a demo's result: title, summary, tables."""
    parts = [f"## Claim: {claim.get('title', '?')}", str(claim.get("summary", ""))]
    for table in claim.get("tables", []):
        cells = [[_text(cell) for cell in row] for row in table["rows"]]
        parts += [f"**{table['title']}**", _table(table["columns"], cells)]
    return "\n\n".join(filter(None, parts))


def _text(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else "–" if cell is None else str(cell)


def _plot(file: Path, rows: list[JsonRow]) -> bool:
    """The ratios on a logarithmic axis, with quartiles, pairs and goals; False if there is none."""
    shown = [row for row in rows if row["ratio"]]
    if not shown:
        file.unlink(missing_ok=True)
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.0 + 0.3 * len(shown)), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(shown)):
        ratio = row["ratio"]
        axes.plot(ratio["samples"], [place] * len(ratio["samples"]), ".", color="0.75", ms=4)
        axes.plot([ratio["lower"], ratio["upper"]], [place, place], color="C0", lw=3)
        axes.plot(ratio["median"], place, "o", color="C0", ms=6)
        for goal in row["goals"]:
            limit = _ratio_limit(goal["text"])
            if limit:
                axes.plot(limit, place, "|", color="C3" if not goal["met"] else "C2", ms=14, mew=2)
    axes.axvline(1.0, color="0.4", lw=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), [f"{row['case']} / {row['peer']}" for row in reversed(shown)], fontsize=8)
    axes.set_xlabel("wall time, ours / peer (left is faster); bars mark goals")
    axes.grid(axis="x", which="both", color="0.9", lw=0.5)
    figure.savefig(file)
    return True


def _ratio_limit(text: str) -> float | None:
    metric, _, limit = text.split()
    if metric == "ratio":
        return float(limit)
    return 1 / float(limit) if metric == "speedup" else None

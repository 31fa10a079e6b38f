"""`doctor`, `demo` and `bench`: what runs on this machine, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inrank.commands.console import AsJson, BadInput, Out, guarded, show, stage

__all__ = ["bench", "demo", "doctor"]


@guarded
def doctor(as_json: AsJson = False) -> None:
    """What runs here: versions, devices, what is optional; and a check of a few known answers.

    Exit code 1 if a check fails.

    Example: inrank doctor --json
    """
    from inrank.doctor import facts, self_check

    with stage("checking"):
        known, checks = facts(), self_check()
    result = {**known, "checks": [{"name": c.name, "error": c.error, "passed": c.passed} for c in checks]}
    if as_json:
        show(result, True)
    else:
        show(known, False, title="inrank doctor")
        rows = [[c.name, c.error, c.tolerance, "ok" if c.passed else "WRONG"] for c in checks]
        show({}, False, columns=("check", "error", "tolerance", ""), rows=rows)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


@guarded
def demo(
    steps: Annotated[int | None, typer.Option(min=20, help="Training steps of each network.")] = None,
    out: Out = Path("out/inrank"),
) -> None:
    """Train a small GPT by full rank, InRank and fixed rank on real text, and draw it all: under two minutes.

    Example: inrank demo --out out/demo
    """
    from inrank.demo import DemoSettings, main

    main(out, DemoSettings() if steps is None else DemoSettings(steps=steps))


@guarded
def bench(
    width: Annotated[list[int] | None, typer.Option(help="Of the model; repeat for more.")] = None,
    part: Annotated[float, typer.Option(help="Rank, as a part of the width.")] = 1 / 3,
    layers: Annotated[int, typer.Option(min=1, help="Blocks.")] = 2,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each; the fastest counts.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Quick timing of a training step here, dense and low-rank, in processor seconds: interleaved, the best counts.

    The comparison with peft and galore-torch, checked for equality, is run in a clone of the repository by `uv run
    bench inrank`, which writes benchmarks/inrank/RESULTS.md.

    Example: inrank bench --width 256 --width 512
    """
    from inrank.language.step_timing import time_steps

    if not 0 < part <= 1:
        raise BadInput(f"--part {part}; a rank is a part of the width in (0, 1]")
    rows: list[list[Any]] = []
    for size in width or [128, 256]:
        with stage(f"width {size}"):
            rows += [
                [size, t.name, t.rank, t.seconds, t.ratio, t.state_ratio] for t in time_steps(size, part, layers, steps)
            ]
    names = ("width", "method", "rank", "cpu_seconds", "ratio", "state_ratio")
    show(
        {"rows": [dict(zip(names, row, strict=True)) for row in rows]},
        as_json,
        columns=("width", "method", "rank", "CPU s / step", "/ full", "states / full"),
        rows=rows,
        title="A training step (beside other packages: `uv run bench inrank` in a clone)",
    )

"""The command `inrank`: thin, arguments in and exit codes out.

Exit codes: 0 all went well, 1 something failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import typer

from inrank.commands.analysis import null_model, plan, spectrum, theory
from inrank.commands.learning import compare, generate, merge, report, resume, train
from inrank.commands.machine import bench, demo, doctor

__all__ = ["main"]

main = typer.Typer(
    name="inrank",
    help=(
        "Incremental low-rank learning: train networks whose weight updates grow in rank as needed. Start with `inrank "
        "doctor`, then `inrank demo`."
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

for panel, commands in {
    "This machine": (doctor, demo, bench),
    "Learning": (train, resume, compare, report, generate, merge),
    "Understanding": (theory, null_model, spectrum, plan),
}.items():
    for command in commands:
        main.command(rich_help_panel=panel)(command)

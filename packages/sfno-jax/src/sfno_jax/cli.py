"""The command `sfno-jax`: thin, arguments in and exit codes out.

Exit codes: 0 all went well, 1 something failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import typer

from sfno_jax.commands.flow import swe
from sfno_jax.commands.learning import evaluate, export, finetune, rollout, train
from sfno_jax.commands.machine import bench, demo, doctor
from sfno_jax.commands.pictures import plot
from sfno_jax.commands.spectral import helmholtz, regrid, sht, spectrum
from sfno_jax.heap import keep_freed_memory

__all__ = ["main"]

main = typer.Typer(
    name="sfno-jax",
    help=(
        "Spherical harmonic transforms and Spherical Fourier Neural Operators in JAX. "
        "Start with `sfno-jax doctor`, then `sfno-jax demo`. INPUT is a netCDF file, a Zarr store, or a sample "
        "(era5 ships with the package, egm96 comes with Debian's proj-data)."
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@main.callback()
def _process() -> None:
    # A process of our own may keep the memory that a step frees; it doubles the speed of training (sfno_jax.heap).
    keep_freed_memory()


for panel, commands in {
    "This machine": (doctor, demo, bench),
    "Fields": (sht, spectrum, helmholtz, regrid, plot),
    "Dynamics": (swe,),
    "Learning": (train, finetune, rollout, evaluate, export),
}.items():
    for command in commands:
        main.command(rich_help_panel=panel)(command)

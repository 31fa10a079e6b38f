"""Partial differential equations on the sphere, integrated spectrally.

Shallow water (`shallow_water`, with `initial_conditions` and `diagnostics`), Allen-Cahn and complex
Ginzburg-Landau (`reaction_diffusion`).
"""

from sfno_jax.physics.diagnostics import (
    ShallowWaterDiagnostics,
    diagnose,
    energy,
    extremes,
    kinetic_energy_spectrum,
    mass,
    potential_enstrophy,
)
from sfno_jax.physics.initial_conditions import galewsky, random_state, solid_body_rotation
from sfno_jax.physics.reaction_diffusion import AllenCahn, GinzburgLandau
from sfno_jax.physics.shallow_water import ShallowWaterSolver
from sfno_jax.physics.shallow_water_state import InstabilityError, ShallowWaterParameters, ShallowWaterState

__all__ = [
    "AllenCahn",
    "GinzburgLandau",
    "InstabilityError",
    "ShallowWaterDiagnostics",
    "ShallowWaterParameters",
    "ShallowWaterSolver",
    "ShallowWaterState",
    "diagnose",
    "energy",
    "extremes",
    "galewsky",
    "kinetic_energy_spectrum",
    "mass",
    "potential_enstrophy",
    "random_state",
    "solid_body_rotation",
]

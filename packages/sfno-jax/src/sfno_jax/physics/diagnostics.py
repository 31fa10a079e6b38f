"""Integrals, extremes and spectra of shallow-water states."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sfno_jax.grids import area_weights
from sfno_jax.physics.shallow_water import ShallowWaterSolver
from sfno_jax.physics.shallow_water_state import ShallowWaterState

__all__ = [
    "ShallowWaterDiagnostics",
    "diagnose",
    "energy",
    "extremes",
    "kinetic_energy_spectrum",
    "mass",
    "potential_enstrophy",
]

State = ShallowWaterState | jax.Array


@dataclasses.dataclass(frozen=True)
class ShallowWaterDiagnostics:
    """What a state conserves, and how large it is.

    Attributes:
        mass: Integral of the geopotential [m2 s-2 m2].
        energy: Integral of phi |V|^2 / 2 + phi^2 / 2 [m4 s-4 m2].
        potential_enstrophy: Integral of (zeta + f)^2 / (2 phi) [m-2 m2].
        extremes: See `extremes`.
    """

    mass: float
    energy: float
    potential_enstrophy: float
    extremes: dict[str, float]


def mass(solver: ShallowWaterSolver, state: State) -> jax.Array:
    """Integral of the geopotential over the sphere, (...) [m2 s-2 m2]; exactly conserved.

    Read off the coefficient of degree 0, so that float32 does not add rounding to it.
    """
    spec = state.spec if isinstance(state, ShallowWaterState) else state
    return spec[..., 0, 0, 0].real * (math.sqrt(4 * math.pi) * solver.parameters.radius**2)


def energy(solver: ShallowWaterSolver, state: State) -> jax.Array:
    """Integral of phi |V|^2 / 2 + phi^2 / 2 over the sphere, (...) [m4 s-4 m2].

    Conserved by the equations up to hyperdiffusion and time-stepping errors.
    """
    total: jax.Array = _energy(solver, solver.geopotential(state), solver.wind(state))
    return total


def potential_enstrophy(solver: ShallowWaterSolver, state: State) -> jax.Array:
    """Integral of (zeta + f)^2 / (2 phi) over the sphere, (...) [m-2 m2]."""
    total: jax.Array = _potential_enstrophy(solver, solver.to_grid(state))
    return total


def extremes(solver: ShallowWaterSolver, state: State) -> dict[str, float]:
    """Largest and smallest values over grid and batch.

    Returns:
        vort_max, vort_min [s-1], u_max, u_min, v_max (largest |v|) [m s-1], phi_max, phi_min
        [m2 s-2], div_rms (over grid points) [s-1].
    """
    phi, zeta, delta = np.moveaxis(np.asarray(solver.to_grid(state)), -3, 0)
    u, v = np.moveaxis(np.asarray(solver.wind(state)), -3, 0)
    return {
        "vort_max": float(zeta.max()),
        "vort_min": float(zeta.min()),
        "u_max": float(u.max()),
        "u_min": float(u.min()),
        "v_max": float(abs(v).max()),
        "phi_max": float(phi.max()),
        "phi_min": float(phi.min()),
        "div_rms": float(np.sqrt((delta**2).mean())),
    }


def kinetic_energy_spectrum(solver: ShallowWaterSolver, state: State) -> jax.Array:
    """Mean kinetic energy by degree, (..., 2, lmax) [m2 s-2]: rotational and divergent part.

    E_l = R^2 / (2 l (l+1)) sum_m |zeta_lm|^2 / (4 pi), both signs of m; its sum over degrees and
    parts is the global mean of |V|^2 / 2.
    """
    spec = state.spec if isinstance(state, ShallowWaterState) else state
    p = solver.parameters
    l = np.arange(p.lmax, dtype=np.float64)
    factor = np.where(l > 0, p.radius**2 / (8 * math.pi * np.maximum(l * (l + 1), 1)), 0.0)
    twice = np.where(np.arange(p.mmax) == 0, 1.0, 2.0)
    vrtdiv = spec[..., 1:, :, :]
    # Scaled before squaring: vorticities are 1e-5 and less, their squares are lost in float32.
    scaled = vrtdiv * jnp.asarray(np.sqrt(factor)[:, None] * np.sqrt(twice), spec.real.dtype)
    return (scaled.real**2 + scaled.imag**2).sum(-1)


def diagnose(solver: ShallowWaterSolver, state: State) -> ShallowWaterDiagnostics:
    """All scalar diagnostics of one state, as Python numbers."""
    return ShallowWaterDiagnostics(
        mass=float(mass(solver, state)),
        energy=float(energy(solver, state)),
        potential_enstrophy=float(potential_enstrophy(solver, state)),
        extremes=extremes(solver, state),
    )


@jax.jit
def _energy(solver: ShallowWaterSolver, phi: jax.Array, wind: jax.Array) -> jax.Array:
    return _integral(solver, phi * (0.5 * (wind**2).sum(-3)) + 0.5 * phi**2)


@jax.jit
def _potential_enstrophy(solver: ShallowWaterSolver, grid: jax.Array) -> jax.Array:
    absolute = grid[..., 1, :, :] + solver.coriolis(grid.dtype)
    return _integral(solver, absolute**2 / (2 * grid[..., 0, :, :]))


def _integral(solver: ShallowWaterSolver, field: jax.Array) -> jax.Array:
    """Integral over the sphere [unit m2]."""
    p = solver.parameters
    weights = area_weights(p.grid, p.nlat, p.nlon) * p.radius**2
    return (field * jnp.asarray(weights, field.dtype)).sum((-2, -1))

"""Initial conditions of the shallow-water equations."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfno_jax._dtypes import real_array
from sfno_jax.grids import latitudes, longitudes
from sfno_jax.physics.shallow_water import ShallowWaterSolver
from sfno_jax.physics.shallow_water_state import ShallowWaterParameters, ShallowWaterState

__all__ = ["galewsky", "random_state", "scale_noise", "solid_body_rotation"]


def galewsky(solver: ShallowWaterSolver, *, bump: bool = True, dtype: Any = None) -> ShallowWaterState:
    r"""A balanced mid-latitude jet of 80 m s-1 that a small bump makes unstable.

    Within phi0 < phi < phi1, phi0 = pi/7 and phi1 = pi/2 - phi0,

    .. math::
        u = \frac{80}{e_n} \exp\frac{1}{(\varphi-\varphi_0)(\varphi-\varphi_1)},
        \qquad e_n = \exp\frac{-4}{(\varphi_1-\varphi_0)^2},

    zero elsewhere; the geopotential balances it (the divergence does not change at the start) but
    for a bump of the depth, hamp cos(phi) exp(-(3 (lambda - pi))^2 - 15 (pi/4 - phi)^2).

    Args:
        solver: Gives grid and constants (the mean depth is its havg, the bump's height its hamp).
        bump: False for the balanced jet alone, which stays as it is until rounding grows.
        dtype: Real dtype; by default JAX's default float.

    Source:
        Galewsky, Scott and Polvani (2004), Tellus 56A, 429.
    """
    p = solver.parameters
    latitude = latitudes(p.grid, p.nlat)[:, None]
    longitude = longitudes(p.nlon)[None, :]
    south, north = math.pi / 7, math.pi / 2 - math.pi / 7
    inside = (latitude > south) & (latitude < north)
    # Masked before the exponential: outside the jet the exponent is positive and overflows.
    product = np.where(inside, (latitude - south) * (latitude - north), -1.0)
    peak = 80.0 * math.exp(4 / (north - south) ** 2)
    u = np.where(inside, peak * np.exp(1 / product), 0.0) * np.ones_like(longitude)
    depth = np.full_like(u, p.havg)
    if bump:
        width = (3 * (longitude - math.pi)) ** 2 + 15 * (math.pi / 4 - latitude) ** 2
        depth += p.hamp * np.cos(latitude) * np.exp(-width)
    wind = jnp.asarray(np.stack([u, np.zeros_like(u)]), _default(dtype))
    return solver.initial_state(_balanced(solver, wind, jnp.asarray(p.gravity * depth, wind.dtype)))


def solid_body_rotation(
    solver: ShallowWaterSolver, *, speed: float = 2 * math.pi * 6.37122e6 / 1036800, dtype: Any = None
) -> ShallowWaterState:
    r"""A steady zonal flow u = speed cos(latitude), in balance.

    .. math::
        \phi = g\,h_{avg} - \Big(R\Omega u_0 + \tfrac12 u_0^2\Big)
               \big(\sin^2\varphi - \tfrac13\big), \qquad
        \zeta = \frac{2u_0}{R}\sin\varphi.

    Args:
        solver: Gives grid and constants.
        speed: u0 at the equator [m s-1]; by default once around the Earth in 12 days.
        dtype: Real dtype; by default JAX's default float.

    Source:
        Williamson et al. (1992), J. Comput. Phys. 102, 211, test case 2 with alpha = 0 (there
        the depth at the poles' level is given, here the mean one).
    """
    p = solver.parameters
    latitude = latitudes(p.grid, p.nlat)[:, None] * np.ones((1, p.nlon))
    sine = np.sin(latitude)
    drop = (p.radius * p.omega * speed + speed**2 / 2) * (sine**2 - 1 / 3)
    fields = [p.gravity * p.havg - drop, 2 * speed / p.radius * sine, np.zeros_like(sine)]
    return solver.from_grid(jnp.asarray(np.stack(fields), _default(dtype)))


def random_state(
    solver: ShallowWaterSolver,
    key: jax.Array,
    *,
    mach: float = 0.1,
    batch: tuple[int, ...] = (),
    dtype: Any = None,
) -> ShallowWaterState:
    """A random state: white coefficients below degree and order 120.

    All coefficients are complex normal with standard deviation sqrt(4 pi / (120 121)), times
    gravity hamp for the geopotential, whose mean is gravity havg, and times mach sqrt(gravity havg)
    / radius for vorticity and divergence.

    Two things differ from torch-harmonics 0.9 and change no field in it but a constant: the
    imaginary part of order 0, which the inverse transform ignores, is 0; so are the means of
    vorticity and divergence, which cannot be anything else on a sphere.

    Args:
        solver: Gives truncation and constants.
        key: Random key.
        mach: Typical wind over the speed of gravity waves (the data set of the paper takes 0.2).
        batch: Batch axes of the state, for an ensemble.
        dtype: Real dtype; by default JAX's default float.

    Raises:
        ValueError: mach is negative or not finite.
    """
    p = solver.parameters
    # One draw of both parts: the generator takes a second to compile.
    normal = jax.random.normal(key, (2, *batch, 3, p.lmax, p.mmax), _default(dtype))
    return solver.initial_state(scale_noise(solver, normal, mach))


def scale_noise(solver: ShallowWaterSolver, normal: Any, mach: float) -> jax.Array:
    """The coefficients of `random_state` from standard normal numbers.

    Args:
        solver: Gives truncation and constants.
        normal: (2, ..., 3, lmax, mmax) real and imaginary parts.
        mach: As in `random_state`.

    Returns:
        (..., 3, lmax, mmax) complex.

    Raises:
        ValueError: mach is negative or not finite.
    """
    if not (math.isfinite(mach) and mach >= 0):
        raise ValueError(f"mach={mach!r}; expected a finite number >= 0")
    coeffs: jax.Array = _scaled(solver.parameters, real_array("normal", normal), float(mach))
    return coeffs


@jax.jit(static_argnums=(0, 2))
def _scaled(p: ShallowWaterParameters, normal: jax.Array, mach: float) -> jax.Array:
    re, im = normal
    limit = 120
    l, m = np.arange(p.lmax)[:, None], np.arange(p.mmax)[None, :]
    keep = (m <= l) & (l < limit) & (m < limit)
    wind = mach * p.wave_speed / p.radius
    deviation = np.stack([p.gravity * p.hamp * keep, wind * (keep & (l > 0)), wind * (keep & (l > 0))])
    deviation *= math.sqrt(2 * math.pi / (limit * (limit + 1)))  # of each part
    spec = jax.lax.complex(re, jnp.where(m == 0, 0, im)) * jnp.asarray(deviation, re.dtype)
    mean = math.sqrt(4 * math.pi) * p.gravity * p.havg
    return spec.at[..., 0, 0, 0].add(mean)


@jax.jit
def _balanced(solver: ShallowWaterSolver, wind: jax.Array, geopotential: jax.Array) -> jax.Array:
    """Coefficients of a wind, and of `geopotential` plus what balances the wind.

    phi = lap^-1 [k . curl((zeta + f) V)] - |V|^2 / 2 + geopotential.
    """
    p, ops = solver.parameters, solver.operators.prepared(wind)
    kinetic = 0.5 * (wind**2).sum(0)
    scalars = jnp.stack([geopotential, kinetic])
    vrtdiv, (phi, kinetic) = ops.curl_divergence(wind[None], scalars)
    zeta = ops.synthesis(vrtdiv[0, 0])
    absolute = zeta + solver.coriolis(wind.dtype)
    curl = ops.curl_divergence((absolute * wind)[None], scalars)[0][0, 0]
    l = np.arange(p.lmax, dtype=np.float64)[:, None]
    inverse = np.where(l > 0, -(p.radius**2) / np.maximum(l * (l + 1), 1), 0.0)
    phi = phi + jnp.asarray(inverse, wind.dtype) * curl - kinetic
    return jnp.concatenate([phi[None], vrtdiv[0]])


def _default(dtype: Any) -> Any:
    return jnp.zeros(()).dtype if dtype is None else dtype

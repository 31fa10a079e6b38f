r"""The shallow-water equations on the rotating sphere, spectral, in JAX.

The state is the geopotential phi [m2 s-2], the vorticity zeta [s-1] and the divergence delta [s-1],
as spherical-harmonic coefficients (..., 3, lmax, mmax).  With the wind V and f = 2 Omega sin(latitude),

.. math::
    \partial_t\zeta = -\nabla\cdot\big((\zeta+f)V\big), \qquad
    \partial_t\delta = k\cdot\nabla\times\big((\zeta+f)V\big)
                         - \nabla^2\big(\phi + \tfrac12|V|^2\big), \qquad
    \partial_t\phi = -\nabla\cdot(\phi V),

and after each step zeta and delta are multiplied by
exp(-(dt/tau) (l(l+1) / (lmax(lmax-1)))^4), an eighth-order hyperdiffusion that damps the last degree
in tau = 2 h.  Equations, constants and hyperdiffusion are those of the solver in torch-harmonics 0.9
(Bonev et al. 2023, "Spherical Fourier Neural Operators", section 5); the discretisation differs in
three places that do not change the numbers:

* phi is split as mean + anomaly, phi_bar = g havg: the linear terms -phi_bar delta and -lap(phi) need
  no transform, float32 does not lose the anomaly in the mean, and they are what the semi-implicit
  scheme treats implicitly;
* winds and fluxes go through scalar transforms (`sfno_jax.physics.operators`): four syntheses and
  five analyses a step, in one batch each;
* the total mass is the coefficient (l, m) = (0, 0) of phi, which no term touches: it is conserved
  to the last bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfno_jax._dtypes import complex_array, real_array
from sfno_jax.grids import canonical_grid, latitudes, max_lmax, resolve_truncation
from sfno_jax.physics.operators import Operators, make_operators
from sfno_jax.physics.shallow_water_state import InstabilityError, ShallowWaterParameters, ShallowWaterState
from sfno_jax.physics.time_stepping import (
    ADAMS_BASHFORTH_LIMIT,
    HISTORY,
    SEMI_IMPLICIT_LIMIT,
    SplitSystem,
    backward_history,
    step,
)

__all__ = ["ShallowWaterSolver"]


@jax.tree_util.register_pytree_node_class
class ShallowWaterSolver:
    """Integrates the shallow-water equations; see the module docstring for them.

    A solver is an immutable pytree: it can be closed over, or passed to jitted functions.  Every
    method takes states with any leading batch axes (an ensemble is one batch) and works under
    `jax.jit`, `jax.vmap`, `jax.grad`.  The precision is that of the state.

    Example:
        >>> solver = ShallowWaterSolver(64, 128, dt=300.0)
        >>> state = solver.integrate(galewsky(solver), 288)
        >>> vorticity = solver.vorticity(state)

    Args:
        nlat: Latitudes.
        nlon: Longitudes.
        dt: Time step [s].
        grid: One of `sfno_jax.grids.GRIDS`.
        lmax: Degrees (exclusive bound); by default what keeps quadratic terms free of aliasing
            (the two-thirds rule, 43 for 64 x 128).
        mmax: Orders (exclusive bound); by default lmax.
        **parameters: Further fields of `ShallowWaterParameters`: radius, omega, gravity, havg,
            hamp, scheme ("ab3", "reference" or "semi-implicit"), hyperdiffusion_time,
            hyperdiffusion_order.

    Raises:
        ValueError: A parameter out of range, or a dt that gravity waves make unstable.
    """

    def __init__(
        self,
        nlat: int,
        nlon: int,
        dt: float,
        *,
        grid: str = "legendre-gauss",
        lmax: int | None = None,
        mmax: int | None = None,
        **parameters: Any,
    ) -> None:
        grid = canonical_grid(grid)
        lmax = _quadratic_lmax(nlat, nlon, grid) if lmax is None else lmax
        mmax = min(lmax, nlon // 2 + 1) if mmax is None else mmax
        resolve_truncation(nlat, nlon, lmax, mmax, grid)
        self.parameters = p = ShallowWaterParameters(nlat, nlon, float(dt), lmax, mmax, grid, **parameters)
        self.operators: Operators = make_operators(nlat, nlon, lmax, mmax, p.radius, grid)
        l = np.arange(lmax, dtype=np.float64)[:, None]
        self._laplacian = -l * (l + 1) / p.radius**2
        self._coriolis = 2 * p.omega * np.sin(latitudes(grid, nlat))[:, None]
        # What torch-harmonics 0.9 loses: its vector analysis holds 1/(l(l+1)) in float32, so that
        # its curls and divergences are off by 3e-8. Its numbers cannot be met without.
        self._rounding = np.ones((lmax, 1))
        if p.scheme == "reference":
            rounded = np.float32(1) / np.maximum(l, 1).astype(np.float32)
            rounded = (rounded / (l + 1).astype(np.float32)).astype(np.float64)
            self._rounding = np.where(l > 0, rounded * l * (l + 1), 1.0)
        self._damping = np.ones((lmax, 1))
        if p.hyperdiffusion_time is not None and lmax > 1:
            ratio = l * (l + 1) / (lmax * (lmax - 1))
            self._damping = np.exp(-p.dt / p.hyperdiffusion_time * ratio**p.hyperdiffusion_order)

    def tree_flatten(self) -> tuple[tuple[Any, ...], ShallowWaterParameters]:
        """Operators and tables are leaves, the parameters are static."""
        tables = (self._laplacian, self._coriolis, self._damping, self._rounding)
        return (self.operators, *tables), self.parameters

    @classmethod
    def tree_unflatten(cls, parameters: ShallowWaterParameters, children: tuple[Any, ...]) -> ShallowWaterSolver:
        """Rebuild from `tree_flatten`."""
        new = object.__new__(cls)
        new.parameters = parameters
        new.operators, new._laplacian, new._coriolis, new._damping, new._rounding = children
        return new

    def __repr__(self) -> str:
        """The parameters."""
        return f"{type(self).__name__}({self.parameters})"

    # ---- states ------------------------------------------------------------------------------

    def initial_state(self, spec: Any) -> ShallowWaterState:
        """A state at time 0 from coefficients, with the history that the scheme needs.

        Args:
            spec: (..., 3, lmax, mmax) complex coefficients of geopotential [m2 s-2], vorticity
                and divergence [s-1].

        Raises:
            ValueError: Wrong shape.
            TypeError: Not complex64 or complex128.
        """
        spec = complex_array("spec", spec)
        self._check_shape("spec", spec, (3, self.parameters.lmax, self.parameters.mmax))
        return self._started(spec)

    def from_grid(self, fields: Any) -> ShallowWaterState:
        """A state at time 0 from fields.

        Args:
            fields: (..., 3, nlat, nlon) geopotential [m2 s-2], vorticity and divergence [s-1].

        Raises:
            ValueError: Wrong shape.
        """
        fields = real_array("fields", fields)
        self._check_shape("fields", fields, (3, self.parameters.nlat, self.parameters.nlon))
        return self._started(self._for(fields).operators.analysis(fields))

    def from_wind(self, geopotential: Any, wind: Any) -> ShallowWaterState:
        """A state at time 0 from geopotential and wind.

        Args:
            geopotential: (..., nlat, nlon) [m2 s-2].
            wind: (..., 2, nlat, nlon) eastward and northward components [m s-1].

        Raises:
            ValueError: Wrong shape.
        """
        p = self.parameters
        geopotential, wind = real_array("geopotential", geopotential), real_array("wind", wind)
        self._check_shape("geopotential", geopotential, (p.nlat, p.nlon))
        self._check_shape("wind", wind, (2, p.nlat, p.nlon))
        vrtdiv, phi = self._for(wind).operators.curl_divergence(wind[..., None, :, :, :], geopotential[..., None, :, :])
        return self._started(jnp.concatenate([phi, vrtdiv[..., 0, :, :, :]], axis=-3))

    def to_grid(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """Fields (..., 3, nlat, nlon) of geopotential [m2 s-2], vorticity, divergence [s-1]."""
        return self._synthesis(_spec(state))

    def geopotential(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """Geopotential (..., nlat, nlon) [m2 s-2]."""
        return self._synthesis(_spec(state)[..., 0, :, :])

    def vorticity(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """Relative vorticity (..., nlat, nlon) [s-1]."""
        return self._synthesis(_spec(state)[..., 1, :, :])

    def divergence(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """Divergence (..., nlat, nlon) [s-1]."""
        return self._synthesis(_spec(state)[..., 2, :, :])

    def wind(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """Wind (..., 2, nlat, nlon), eastward and northward [m s-1]."""
        spec = _spec(state)
        wind: jax.Array = _wind(self._for(spec), spec)
        return wind

    def potential_vorticity(self, state: ShallowWaterState | jax.Array) -> jax.Array:
        """(zeta + f) / phi (..., nlat, nlon) [s m-2], conserved along the flow."""
        grid = self.to_grid(state)
        return (grid[..., 1, :, :] + self.coriolis(grid.dtype)) / grid[..., 0, :, :]

    def coriolis(self, dtype: Any = None) -> jax.Array:
        """The Coriolis parameter f = 2 Omega sin(latitude) (nlat, 1) [s-1]."""
        return jnp.asarray(self._coriolis, dtype)

    # ---- dynamics ----------------------------------------------------------------------------

    def tendency(self, spec: jax.Array) -> jax.Array:
        """d(spec)/dt (..., 3, lmax, mmax) [unit s-1] of the undamped equations."""
        return self._for(spec).system().tendency(spec)

    def system(self) -> SplitSystem:
        """The equations as the time-stepping schemes see them."""
        return SplitSystem(self._explicit, self._implicit, self._solve, self._damp)

    def integrate(
        self, state: ShallowWaterState, nsteps: int, *, remat: bool = False, check: bool = True
    ) -> ShallowWaterState:
        """Advance a state by `nsteps` steps.

        Args:
            state: Where to start.
            nsteps: Number of steps.
            remat: Recompute each step in the backward pass instead of storing what happened
                inside it; then a gradient over n steps stores n states and nothing else.
            check: Raise if the result is not finite (outside of jit; inside, there is no result
                to look at).

        Raises:
            InstabilityError: The state became infinite or not a number; says at which step.
            ValueError: nsteps < 0.
        """
        return self.trajectory(state, 1, nsteps, remat=remat, check=check)[0]

    def trajectory(
        self,
        state: ShallowWaterState,
        count: int,
        every: int = 1,
        *,
        remat: bool = False,
        check: bool = True,
    ) -> tuple[ShallowWaterState, jax.Array]:
        """Advance a state by ``count * every`` steps and keep every `every`-th.

        Args:
            state: Where to start (not part of the output).
            count: Number of states to keep.
            every: Steps from one to the next.
            remat: As in `integrate`.
            check: As in `integrate`.

        Returns:
            The last state, and the coefficients (count, ..., 3, lmax, mmax).

        Raises:
            InstabilityError: As in `integrate`.
            ValueError: count or every < 0.
        """
        if count < 0 or every < 0:
            raise ValueError(f"count={count}, nsteps or every={every}; expected numbers >= 0")
        solver = self._for(state.spec)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((solver, state))):
            # Under a transformation that may be a gradient: a loop of known length.
            return _integrate_traced(solver, state, count, every, remat)  # type: ignore[no-any-return]
        # Otherwise one compiled loop serves any number of steps.
        end, spec = _integrate_concrete(solver, state, count, every)
        if check and not bool(jnp.isfinite(end.spec).all()):
            solver._raise_instability(state, count * every)
        return end, spec

    def stable_dt(self, state: ShallowWaterState | jax.Array) -> float:
        """The longest step [s] that the scheme bears with the winds and depths of a state.

        Explicit schemes: gravity waves sqrt(phi) carried by the wind at the last degree.
        Semi-implicit: the wind alone (an estimate; it neglects what of the wave speed differs
        from that of the mean depth).
        """
        p = self.parameters
        phi, wind = np.asarray(self.geopotential(state)), np.asarray(self.wind(state))
        speed = float(np.sqrt((wind**2).sum(-3)).max())
        if p.scheme == "semi-implicit":
            return SEMI_IMPLICIT_LIMIT / (speed * p.largest_wavenumber + 2 * abs(p.omega) + 1e-30)
        wave = math.sqrt(max(float(phi.max()), 0.0))
        return ADAMS_BASHFORTH_LIMIT / ((wave + speed) * p.largest_wavenumber)

    def _explicit(self, spec: jax.Array) -> jax.Array:
        """All terms but the linear gravity waves about the mean depth."""
        real = spec.real.dtype
        mean = self.parameters.gravity * self.parameters.havg * math.sqrt(4 * math.pi)
        anomaly = spec[..., :2, :, :].at[..., 0, 0, 0].add(-mean)
        fields, wind = self.operators.fields_and_wind(anomaly, spec[..., 1:, :, :])
        phi, zeta = fields[..., 0, :, :], fields[..., 1, :, :]
        absolute = zeta + jnp.asarray(self._coriolis, real)
        # The axis of the two vectors, (zeta + f) V and phi' V, comes before that of components.
        fluxes = jnp.stack([absolute, phi], axis=-3)[..., :, None, :, :] * wind[..., None, :, :, :]
        kinetic = 0.5 * (wind**2).sum(-3, keepdims=True)
        curl_div, kinetic = self.operators.curl_divergence(fluxes, kinetic)
        if self.parameters.scheme == "reference":
            curl_div = curl_div * jnp.asarray(self._rounding, real)
        laplacian = jnp.asarray(self._laplacian, real)
        return jnp.stack(
            [
                -curl_div[..., 1, 1, :, :],
                -curl_div[..., 0, 1, :, :],
                curl_div[..., 0, 0, :, :] - laplacian * kinetic[..., 0, :, :],
            ],
            axis=-3,
        )

    def _implicit(self, spec: jax.Array) -> jax.Array:
        """Linear gravity waves: phi_t = -phi_bar delta, delta_t = -lap phi."""
        phi, delta = spec[..., 0, :, :], spec[..., 2, :, :]
        laplacian = jnp.asarray(self._laplacian, spec.real.dtype)
        expansion = self.parameters.gravity * self.parameters.havg * delta
        if self.parameters.scheme == "reference":
            expansion = expansion * jnp.asarray(self._rounding, spec.real.dtype)
        return jnp.stack([-expansion, jnp.zeros_like(phi), -laplacian * phi], axis=-3)

    def _solve(self, right: jax.Array, a: float) -> jax.Array:
        """Solve u - a L u = right, a 2 x 2 system of phi and delta for every degree."""
        laplacian = jnp.asarray(self._laplacian, right.real.dtype)
        mean = self.parameters.gravity * self.parameters.havg
        phi, zeta, delta = (right[..., i, :, :] for i in range(3))
        delta = (delta - a * laplacian * phi) / (1 - a * a * mean * laplacian)
        return jnp.stack([phi - a * mean * delta, zeta, delta], axis=-3)

    def _damp(self, spec: jax.Array) -> jax.Array:
        """Hyperdiffusion of vorticity and divergence over one step."""
        damping = jnp.asarray(self._damping, spec.real.dtype)
        return spec * jnp.stack([jnp.ones_like(damping), damping, damping])

    def _for(self, x: jax.Array) -> ShallowWaterSolver:
        """This solver with transforms as they suit `x` (see `Operators.prepared`)."""
        new = copy.copy(self)
        new.operators = self.operators.prepared(x)
        return new

    def _started(self, spec: jax.Array) -> ShallowWaterState:
        state: ShallowWaterState = _start(self._for(spec), spec)
        return state

    def _synthesis(self, coeffs: jax.Array) -> jax.Array:
        fields: jax.Array = _to_grid(self._for(coeffs), coeffs)
        return fields

    # ---- guards ------------------------------------------------------------------------------

    def _check_shape(self, name: str, x: jax.Array, tail: tuple[int, ...]) -> None:
        if x.shape[-len(tail) :] != tail:
            expected = ", ".join(map(str, tail))
            raise ValueError(f"{name} has shape {x.shape}; expected (..., {expected})")

    def _raise_instability(self, state: ShallowWaterState, nsteps: int) -> None:
        """Find the first bad step again and report it."""
        p = self.parameters
        if not bool(jnp.isfinite(state.spec).all()):
            bad, suggested = 0, p.dt / 2
        else:
            bad = int(_first_bad_step(self, state, nsteps))
            # A step that the winds at the start allow was not enough if the flow sped up.
            suggested = min(0.9 * self.stable_dt(state), p.dt / 2)
        start = int(np.max(np.asarray(state.step)))
        time = float(np.max(np.asarray(state.time)))
        raise InstabilityError(start + bad, time + bad * p.dt, p.dt, suggested)


def _quadratic_lmax(nlat: int, nlon: int, grid: str) -> int:
    """Largest lmax at which products of two fields are analysed without aliasing.

    A product of two fields of degree M, projected on degree M, is a polynomial of degree 3 M: the
    latitudes must integrate it, and the longitudes must tell the orders M and 2 M apart.
    """
    exact = {"legendre-gauss": 2 * nlat - 1, "lobatto": 2 * nlat - 3}.get(grid, nlat - 1)
    return max(1, min(min(exact, nlon - 1) // 3 + 1, max_lmax(grid, nlat)))


def _spec(state: ShallowWaterState | jax.Array) -> jax.Array:
    return state.spec if isinstance(state, ShallowWaterState) else complex_array("state", state)


@jax.jit
def _start(solver: ShallowWaterSolver, spec: jax.Array) -> ShallowWaterState:
    p = solver.parameters
    if HISTORY[p.scheme]:
        history = jnp.stack(backward_history(solver.system(), p.dt, spec), axis=-4)
    else:
        history = jnp.zeros((*spec.shape[:-3], 0, *spec.shape[-3:]), spec.dtype)
    return ShallowWaterState(spec, history, jnp.int32(0), jnp.zeros((), spec.real.dtype))


@jax.jit
def _to_grid(solver: ShallowWaterSolver, coeffs: jax.Array) -> jax.Array:
    return solver.operators.synthesis(coeffs)


@jax.jit
def _wind(solver: ShallowWaterSolver, spec: jax.Array) -> jax.Array:
    return solver.operators.fields_and_wind(spec[..., :1, :, :], spec[..., 1:, :, :])[1]


def _one_step(solver: ShallowWaterSolver) -> Callable[[Any], Any]:
    """The step as a function of the loops' carry: coefficients, history, index and time."""
    p, system = solver.parameters, solver.system()

    def body(carry: Any) -> Any:
        spec, history, index, time = carry
        spec, history = step(p.scheme, system, p.dt, spec, history, index)
        return spec, history, index + 1, time + p.dt

    return body


def _carry(solver: ShallowWaterSolver, state: ShallowWaterState) -> Any:
    scheme = solver.parameters.scheme
    history = tuple(state.history[..., i, :, :, :] for i in range(HISTORY[scheme]))
    if scheme == "reference":
        history = (jnp.zeros_like(state.spec),) * 2
    return state.spec, history, jnp.int32(0), state.time


def _integrate(
    solver: ShallowWaterSolver, state: ShallowWaterState, count: int, every: Any, remat: bool = False
) -> tuple[ShallowWaterState, jax.Array]:
    body = _one_step(solver)
    body = jax.checkpoint(body) if remat else body

    def block(carry: Any, _: None) -> tuple[Any, jax.Array]:
        carry = jax.lax.fori_loop(0, every, lambda _, c: body(c), carry)
        return carry, carry[0]

    carry, kept = jax.lax.scan(block, _carry(solver, state), None, length=count)
    spec, history, index, time = carry
    carried = jnp.stack(history, axis=-4) if HISTORY[solver.parameters.scheme] else state.history
    return ShallowWaterState(spec, carried, state.step + index, time), kept


_integrate_traced = jax.jit(_integrate, static_argnames=("count", "every", "remat"))
_integrate_concrete = jax.jit(_integrate, static_argnames=("count", "remat"))


@jax.jit
def _first_bad_step(solver: ShallowWaterSolver, state: ShallowWaterState, nsteps: jax.Array) -> jax.Array:
    """1-based number of the first step after which the state is not finite."""
    body = _one_step(solver)

    def go_on(carry: Any) -> jax.Array:
        finite: jax.Array = jnp.isfinite(carry[0]).all()
        more: jax.Array = carry[2] < nsteps
        return more & finite

    count: jax.Array = jax.lax.while_loop(go_on, body, _carry(solver, state))[2]
    return count

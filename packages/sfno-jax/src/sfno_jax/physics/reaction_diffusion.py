"""Two reaction-diffusion equations on the sphere: Allen-Cahn and complex Ginzburg-Landau.

The Laplacian is diagonal in spherical harmonics, so its flow is an exact exponential for every
degree, and only the reaction needs a time-stepping error: ETDRK4 (Cox and Matthews 2002, J. Comput.
Phys. 176, 430; coefficients by contour means, Kassam and Trefethen 2005, SIAM J. Sci. Comput. 26,
1214), fourth order, without a limit on dt from diffusion.

Both equations are in torch-harmonics 0.9 with the coefficient c = 0.001.  There, Ginzburg-Landau is
integrated with A^3 of the real part of A; here A is complex and the reaction is the usual
|A|^2 A, which leaves the phase of A free.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sfno_jax._dtypes import complex_array, real_array
from sfno_jax.grids import canonical_grid, max_lmax
from sfno_jax.transforms import InverseRealSHT, RealSHT

__all__ = ["AllenCahn", "GinzburgLandau", "etdrk4_coefficients"]

Complex = NDArray[np.complex128]


def etdrk4_coefficients(rates: Complex, dt: float) -> tuple[Complex, ...]:
    """Coefficients of ETDRK4 for u_t = rate u + N(u), one set for each rate.

    With z = rate dt, phi-functions such as (e^z - 1)/z lose all digits near z = 0 if computed as
    written; their mean over a circle of radius 1 about z is the same number and does not.

    Args:
        rates: Linear rates [s-1], any shape.
        dt: Step [s].

    Returns:
        exp(z), exp(z/2), the weight of N in the half steps [s], and the weights [s] of N(u), of
        N(a) + N(b) and of N(c) in the full step; each shaped like `rates`.
    """
    z = np.asarray(rates, np.complex128) * dt
    circle = np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)
    r = z[..., None] + circle
    e = np.exp(r)
    half = dt * ((np.exp(r / 2) - 1) / r).mean(-1)
    first = dt * ((-4 - r + e * (4 - 3 * r + r**2)) / r**3).mean(-1)
    middle = dt * (2 * (2 + r + e * (r - 2)) / r**3).mean(-1)
    last = dt * ((-4 - 3 * r - r**2 + e * (4 - r)) / r**3).mean(-1)
    return np.exp(z), np.exp(z / 2), half, first, middle, last


class _ReactionDiffusion:
    """What both equations share: transforms, coefficients and the ETDRK4 step.

    Subclasses say how a rate multiplies coefficients and what the reaction is.
    """

    def __init__(
        self,
        nlat: int,
        nlon: int,
        dt: float,
        diffusivity: complex,
        grid: str,
        lmax: int | None,
        radius: float,
    ) -> None:
        for name, value in (("dt", dt), ("radius", radius)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}; expected a positive finite number")
        if not (np.isfinite(diffusivity) and diffusivity.real >= 0):
            raise ValueError(f"diffusivity={diffusivity.real!r}; expected a finite number >= 0")
        grid = canonical_grid(grid)
        lmax = _cubic_lmax(nlat, nlon, grid) if lmax is None else lmax
        self.nlat, self.nlon, self.dt, self.lmax, self.grid = nlat, nlon, float(dt), lmax, grid
        self.sht = RealSHT(nlat, nlon, lmax=lmax, mmax=lmax, grid=grid)
        self.isht = InverseRealSHT(nlat, nlon, lmax=lmax, mmax=lmax, grid=grid)
        l = np.arange(lmax, dtype=np.float64)[:, None]
        self.rates = 1.0 - diffusivity * l * (l + 1) / radius**2
        self._coefficients = etdrk4_coefficients(np.asarray(self.rates, np.complex128), self.dt)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Transforms and tables are leaves, sizes are static."""
        leaves = (self.sht, self.isht, self.rates, self._coefficients)
        return leaves, (self.nlat, self.nlon, self.dt, self.lmax, self.grid)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], leaves: tuple[Any, ...]) -> Self:
        """Rebuild from `tree_flatten`."""
        new = object.__new__(cls)
        new.sht, new.isht, new.rates, new._coefficients = leaves
        new.nlat, new.nlon, new.dt, new.lmax, new.grid = static
        return new

    def integrate(self, spec: Any, nsteps: int) -> jax.Array:
        """Advance coefficients by `nsteps` steps of ETDRK4.

        Args:
            spec: Coefficients as `from_grid` returns them.
            nsteps: Number of steps.

        Returns:
            Coefficients, shaped like `spec`.

        Raises:
            ValueError: Wrong shape or nsteps < 0.
        """
        spec = complex_array("spec", spec)
        tail = (*self._components, self.lmax, self.lmax)
        if spec.shape[-len(tail) :] != tail:
            raise ValueError(f"spec has shape {spec.shape}; expected (..., {str(tail)[1:-1]})")
        if nsteps < 0:
            raise ValueError(f"nsteps={nsteps}; expected a number >= 0")
        # Tables of the precision of `spec`, and none that an enclosing trace would capture.
        solver = copy.copy(self)
        solver.sht, solver.isht = self.sht._for(spec), self.isht._for(spec)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((solver, spec)))
        out: jax.Array = (_integrate_traced if traced else _integrate_concrete)(solver, spec, nsteps)
        return out

    _components: tuple[int, ...] = ()

    def _multiply(self, rate: Any, spec: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _reaction(self, field: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _step(self, u: jax.Array) -> jax.Array:
        whole, half, q, first, middle, last = self._coefficients
        mul = self._multiply

        def reaction(spec: jax.Array) -> jax.Array:
            return self.sht(self._reaction(self.isht(spec)))

        n = reaction(u)
        half_u = mul(half, u)
        a = half_u + mul(q, n)
        n_a = reaction(a)
        b = half_u + mul(q, n_a)
        n_b = reaction(b)
        c = mul(half, a) + mul(q, 2 * n_b - n)
        n_c = reaction(c)
        return mul(whole, u) + mul(first, n) + mul(middle, n_a + n_b) + mul(last, n_c)


@jax.tree_util.register_pytree_node_class
class AllenCahn(_ReactionDiffusion):
    """Allen-Cahn equation u_t = c lap(u) + u - u^3: two phases, +1 and -1, that coarsen.

    Args:
        nlat: Latitudes.
        nlon: Longitudes.
        dt: Time step [time unit of the reaction].
        diffusivity: c [radius unit squared per time unit].
        grid: One of `sfno_jax.grids.GRIDS`.
        lmax: Degrees (and orders); by default what keeps the cubic term free of aliasing.
        radius: Radius of the sphere.

    Raises:
        ValueError: A parameter out of range.
    """

    def __init__(
        self,
        nlat: int,
        nlon: int,
        dt: float,
        *,
        diffusivity: float = 1e-3,
        grid: str = "legendre-gauss",
        lmax: int | None = None,
        radius: float = 1.0,
    ) -> None:
        super().__init__(nlat, nlon, dt, complex(diffusivity), grid, lmax, radius)

    def from_grid(self, field: Any) -> jax.Array:
        """Coefficients (..., lmax, lmax) of a real field (..., nlat, nlon)."""
        return self.sht(real_array("field", field))

    def to_grid(self, spec: jax.Array) -> jax.Array:
        """Field (..., nlat, nlon) of coefficients (..., lmax, lmax)."""
        return self.isht(spec)

    def random_state(self, key: jax.Array, amplitude: float = 0.1, dtype: Any = None) -> jax.Array:
        """White noise: coefficients (lmax, lmax) of a field of root-mean-square `amplitude`."""
        return _noise(key, (self.lmax, self.lmax), amplitude, dtype)

    def _multiply(self, rate: Any, spec: jax.Array) -> jax.Array:
        return jnp.asarray(rate.real, spec.real.dtype) * spec

    def _reaction(self, field: jax.Array) -> jax.Array:
        return -(field**3)


@jax.tree_util.register_pytree_node_class
class GinzburgLandau(_ReactionDiffusion):
    """Complex Ginzburg-Landau equation A_t = A + (1 + i a) c lap(A) - (1 + i b) |A|^2 A.

    The state is the pair of real fields (Re A, Im A).

    Args:
        nlat: Latitudes.
        nlon: Longitudes.
        dt: Time step [time unit of the reaction].
        diffusivity: c [radius unit squared per time unit].
        dispersion: a.
        detuning: b.
        grid: One of `sfno_jax.grids.GRIDS`.
        lmax: Degrees (and orders); by default what keeps the cubic term free of aliasing.
        radius: Radius of the sphere.

    Raises:
        ValueError: A parameter out of range.
    """

    _components = (2,)

    def __init__(
        self,
        nlat: int,
        nlon: int,
        dt: float,
        *,
        diffusivity: float = 1e-3,
        dispersion: float = 2.0,
        detuning: float = 2.0,
        grid: str = "legendre-gauss",
        lmax: int | None = None,
        radius: float = 1.0,
    ) -> None:
        for name, value in (("dispersion", dispersion), ("detuning", detuning)):
            if not math.isfinite(value):
                raise ValueError(f"{name}={value!r}; expected a finite number")
        self.detuning = float(detuning)
        super().__init__(nlat, nlon, dt, diffusivity * (1 + 1j * dispersion), grid, lmax, radius)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """As the base class, with the detuning."""
        leaves, static = super().tree_flatten()
        return leaves, (*static, self.detuning)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], leaves: tuple[Any, ...]) -> Self:
        """Rebuild from `tree_flatten`."""
        new = super().tree_unflatten(static[:-1], leaves)
        new.detuning = static[-1]
        return new

    def from_grid(self, field: Any) -> jax.Array:
        """Coefficients (..., 2, lmax, lmax) of a complex field (..., nlat, nlon)."""
        field = complex_array("field", field)
        return self.sht(jnp.stack([field.real, field.imag], axis=-3))

    def to_grid(self, spec: jax.Array) -> jax.Array:
        """Complex field (..., nlat, nlon) of coefficients (..., 2, lmax, lmax)."""
        pair = self.isht(spec)
        return jax.lax.complex(pair[..., 0, :, :], pair[..., 1, :, :])

    def random_state(self, key: jax.Array, amplitude: float = 0.1, dtype: Any = None) -> jax.Array:
        """White noise: coefficients (2, lmax, lmax), each part of root-mean-square `amplitude`."""
        return _noise(key, (2, self.lmax, self.lmax), amplitude, dtype)

    def _multiply(self, rate: Any, spec: jax.Array) -> jax.Array:
        # A complex rate mixes real and imaginary fields; their coefficients are complex in
        # another sense (of longitude), so the product is written out.
        x, y = (jnp.asarray(part, spec.real.dtype) for part in (rate.real, rate.imag))
        re, im = spec[..., 0, :, :], spec[..., 1, :, :]
        return jnp.stack([x * re - y * im, y * re + x * im], axis=-3)

    def _reaction(self, field: jax.Array) -> jax.Array:
        re, im = field[..., 0, :, :], field[..., 1, :, :]
        square = re**2 + im**2
        turned = jnp.stack([re - self.detuning * im, im + self.detuning * re], axis=-3)
        return -square[..., None, :, :] * turned


def _cubic_lmax(nlat: int, nlon: int, grid: str) -> int:
    """Largest lmax at which a product of three fields is analysed without aliasing."""
    exact = {"legendre-gauss": 2 * nlat - 1, "lobatto": 2 * nlat - 3}.get(grid, nlat - 1)
    return max(1, min(min(exact, nlon - 1) // 4 + 1, max_lmax(grid, nlat)))


def _noise(key: jax.Array, shape: tuple[int, ...], amplitude: float, dtype: Any) -> jax.Array:
    real = jnp.zeros(()).dtype if dtype is None else dtype
    lmax, mmax = shape[-2:]
    l, m = np.arange(lmax)[:, None], np.arange(mmax)[None, :]
    re, im = jax.random.normal(key, (2, *shape), real)
    noise = jax.lax.complex(re, jnp.where(m == 0, 0, im)) * (m <= l)
    # Coefficients of order 0 have variance 1, the others 1 for both parts together: lmax^2 such
    # terms make the square of the field, over the area 4 pi.
    unit = np.where(m == 0, 1.0, math.sqrt(0.5)) * (amplitude * math.sqrt(4 * math.pi) / lmax)
    return noise * jnp.asarray(unit, real)


def _integrate(solver: _ReactionDiffusion, spec: jax.Array, nsteps: Any) -> jax.Array:
    out: jax.Array = jax.lax.fori_loop(0, nsteps, lambda _, u: solver._step(u), spec)
    return out


# A gradient needs a loop of known length; without one, a single compiled loop serves any length.
_integrate_traced = jax.jit(_integrate, static_argnames=("nsteps",))
_integrate_concrete = jax.jit(_integrate)

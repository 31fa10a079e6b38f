"""What a shallow-water solver is defined by, what it advances, and how it fails."""

from __future__ import annotations

import dataclasses
import math

import jax

from sfno_jax.grids import choose
from sfno_jax.physics.time_stepping import ADAMS_BASHFORTH_LIMIT, SCHEMES

__all__ = ["InstabilityError", "ShallowWaterParameters", "ShallowWaterState"]


class InstabilityError(FloatingPointError):
    """The state became infinite or not a number.

    Attributes:
        step: Steps since the state was created, at the first bad one.
        time: Model time then [s].
        dt: The step used [s].
        suggested_dt: A step that the wave speeds before the failure allow [s].
    """

    def __init__(self, step: int, time: float, dt: float, suggested_dt: float) -> None:
        self.step, self.time, self.dt, self.suggested_dt = step, time, dt, suggested_dt
        super().__init__(
            f"the state is not finite at step {step} (time {time:g} s) with dt={dt:g} s; try dt={suggested_dt:.3g} s"
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShallowWaterState:
    """State of the shallow-water equations; a pytree.

    Attributes:
        spec: (..., 3, lmax, mmax) complex coefficients of geopotential [m2 s-2], vorticity [s-1]
            and divergence [s-1].
        history: (..., k, 3, lmax, mmax) earlier tendencies that the scheme needs, latest first.
        step: () int32, steps since the state was created.
        time: () model time [s].
    """

    spec: jax.Array
    history: jax.Array
    step: jax.Array
    time: jax.Array


@dataclasses.dataclass(frozen=True)
class ShallowWaterParameters:
    """Everything that defines a solver; hashable, and static under `jax.jit`.

    The defaults of the physical constants are those of torch-harmonics 0.9.

    Attributes:
        nlat: Latitudes.
        nlon: Longitudes.
        dt: Time step [s].
        lmax: Degrees (exclusive bound).
        mmax: Orders (exclusive bound).
        grid: One of `sfno_jax.grids.GRIDS`.
        radius: Radius of the sphere [m].
        omega: Rotation rate [rad s-1].
        gravity: Gravitational acceleration [m s-2].
        havg: Mean depth [m].
        hamp: Depth of the initial perturbations [m].
        scheme: One of `SCHEMES`.
        hyperdiffusion_time: Time in which the last degree decays by e [s]; None for no diffusion.
        hyperdiffusion_order: Power of the Laplacian.
    """

    nlat: int
    nlon: int
    dt: float
    lmax: int
    mmax: int
    grid: str = "legendre-gauss"
    radius: float = 6.37122e6
    omega: float = 7.292e-5
    gravity: float = 9.80616
    havg: float = 1.0e4
    hamp: float = 120.0
    scheme: str = "ab3"
    hyperdiffusion_time: float | None = 7200.0
    hyperdiffusion_order: int = 4

    def __post_init__(self) -> None:
        choose("scheme", self.scheme, SCHEMES)
        positive = ("dt", "radius", "gravity", "havg")
        for name in positive:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}; expected a positive finite number")
        for name in ("omega", "hamp"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}; expected a finite number")
        tau = self.hyperdiffusion_time
        if tau is not None and not (math.isfinite(tau) and tau > 0):
            raise ValueError(f"hyperdiffusion_time={tau!r}; expected seconds > 0, or None for none")
        if self.hyperdiffusion_order < 1:
            raise ValueError(f"hyperdiffusion_order={self.hyperdiffusion_order}; expected >= 1")
        longest = ADAMS_BASHFORTH_LIMIT / (self.largest_wavenumber * self.wave_speed)
        if self.scheme != "semi-implicit" and self.dt > longest:
            raise ValueError(
                f"dt={self.dt:g} s is unstable with scheme={self.scheme!r}: gravity waves of "
                f"{self.wave_speed:.0f} m s-1 at lmax={self.lmax} allow dt <= {longest:.4g} s. "
                f"Use a shorter step or scheme='semi-implicit'."
            )

    @property
    def wave_speed(self) -> float:
        """Speed of gravity waves on the mean depth, sqrt(gravity havg) [m s-1]."""
        return math.sqrt(self.gravity * self.havg)

    @property
    def largest_wavenumber(self) -> float:
        """sqrt(l (l+1)) / radius at the last degree [m-1]."""
        return math.sqrt(max(self.lmax * (self.lmax - 1), 1)) / self.radius

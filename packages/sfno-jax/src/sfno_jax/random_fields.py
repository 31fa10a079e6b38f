r"""Gaussian random fields on the sphere.

An isotropic Gaussian field is a sum of spherical harmonics with independent Gaussian coefficients
whose variance depends on the degree alone,

.. math::
    E|a_{lm}|^2 = \lambda_l \quad (-l \le m \le l), \qquad E\,P_l = (2l+1)\,\lambda_l .

For a real field stored with m >= 0 that means a real a_l0 of variance lambda_l, and real and imaginary
parts of variance lambda_l / 2 for m > 0. The covariance :math:`\sigma^2(-\nabla^2+\tau^2)^{-\alpha}`
(Whittle-Matern) has :math:`\lambda_l = \sigma^2\,(l(l+1)/R^2 + \tau^2)^{-\alpha}`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax.grids import SphereGrid
from sfno_jax.transforms import InverseRealSHT

__all__ = ["GaussianRandomField"]

Convention = Literal["isotropic", "torch-harmonics"]


@jax.tree_util.register_pytree_node_class
class GaussianRandomField:
    r"""Samples Gaussian random fields of zero mean with covariance sigma^2 (-laplacian + tau^2)^-alpha.

    An immutable pytree, to be passed to jitted functions as an argument. It follows the truncation of
    its transform (`.isht.lmax`), whatever the grid's default is.

    Args:
        nlat: number of latitudes.
        nlon: number of longitudes.
        alpha: exponent, > 1 (otherwise point values have infinite variance); larger is smoother.
        tau: inverse length scale, > 0.
        sigma: amplitude; default tau^(alpha-1).
        radius: R of the sphere.
        grid: latitude grid, one of `sfno_jax.GRIDS`.
        lmax: number of degrees and orders; default that of the grid, at most nlon/2.
        convention: "isotropic", as in the module docstring, or "torch-harmonics": the law of
            `GaussianRandomFieldS2` of torch-harmonics 0.9, coefficients divided by sqrt(4 pi) and
            those with m > 0 of twice the variance, so that
            E P_l = lambda_l (4l+1) / (4 pi) and the field is not quite isotropic.

    Raises:
        ValueError: if a parameter is out of range or a name is unknown.
    """

    isht: InverseRealSHT
    amplitude: NDArray[np.float64]
    zonal_ratio: float

    def __init__(
        self,
        nlat: int,
        nlon: int,
        *,
        alpha: float = 2.0,
        tau: float = 3.0,
        sigma: float | None = None,
        radius: float = 1.0,
        grid: str = "equiangular",
        lmax: int | None = None,
        convention: Convention = "isotropic",
    ) -> None:
        if not (math.isfinite(alpha) and alpha > 1):
            raise ValueError(f"alpha={alpha}: expected alpha > 1, or the variance is infinite")
        for name, value in (("tau", tau), ("radius", radius), ("sigma", sigma)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value}: expected a positive, finite number")
        if convention not in ("isotropic", "torch-harmonics"):
            raise ValueError(f"convention={convention!r}: expected 'isotropic' or 'torch-harmonics'")
        isht = _transform(nlat, nlon, grid, lmax)
        degree = np.arange(isht.lmax, dtype=np.float64)
        scale = tau ** (alpha - 1) if sigma is None else sigma
        root = scale * (degree * (degree + 1) / radius**2 + tau**2) ** (-alpha / 2)
        root[0] = 0.0  # zero mean
        if convention == "torch-harmonics":
            self._set(isht, root * math.sqrt(2 / (4 * math.pi)), math.sqrt(0.5))
        else:
            self._set(isht, root, 1.0)

    @classmethod
    def from_spectrum(cls, power: ArrayLike, nlat: int, nlon: int, *, grid: str = "equiangular") -> GaussianRandomField:
        """Isotropic field with a given expected power per degree.

        Args:
            power: `(lmax,)` real, >= 0 [U2]; what `power_spectrum` gives. power[0] is the expected
                square of the l = 0 coefficient (0 for zero mean).
            nlat: number of latitudes.
            nlon: number of longitudes.
            grid: latitude grid.

        Returns:
            The sampler, with fields in unit U.

        Raises:
            ValueError: if `power` is not one-dimensional, negative, not finite, or longer than the
                grid resolves.
        """
        spectrum = np.asarray(power, dtype=np.float64)
        if spectrum.ndim != 1 or spectrum.size == 0:
            raise ValueError(f"power has shape {spectrum.shape}: expected (lmax,)")
        bad = np.flatnonzero(~(np.isfinite(spectrum) & (spectrum >= 0)))
        if bad.size:
            raise ValueError(f"power[{bad[0]}]={spectrum[bad[0]]}: expected finite numbers >= 0 ({bad.size} are not)")
        self = object.__new__(cls)
        isht = _transform(nlat, nlon, grid, spectrum.size)
        self._set(isht, np.sqrt(spectrum / (2 * np.arange(spectrum.size) + 1)), 1.0)
        return self

    @property
    def expected_power(self) -> NDArray[np.float64]:
        """Expected power per degree, `(lmax,)`, as `power_spectrum` of the coefficients gives it."""
        degree = np.arange(self.isht.lmax)
        return self.amplitude**2 * (2 * degree + self.zonal_ratio**2)

    def coefficients(self, key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = None) -> jax.Array:
        """Draw coefficients (ortho norm, Condon-Shortley phase).

        Args:
            key: JAX random key.
            shape: leading shape, the number of samples.
            dtype: float32 or float64; default is JAX's default float.

        Returns:
            `(*shape, lmax, mmax)` complex.
        """
        real = jax.dtypes.canonicalize_dtype(np.float64) if dtype is None else np.dtype(dtype)
        drawn: jax.Array = _draw(self, key, tuple(shape), np.dtype(real).name)
        return drawn

    def __call__(self, key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = None) -> jax.Array:
        """Draw fields `(*shape, nlat, nlon)`; arguments as in `coefficients`."""
        return self.isht(self.coefficients(key, shape, dtype))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"GaussianRandomField is immutable: cannot set {name}")

    def tree_flatten(self) -> tuple[tuple[Any, Any], float]:
        """Transform and amplitudes as children."""
        return (self.isht, self.amplitude), self.zonal_ratio

    @classmethod
    def tree_unflatten(cls, static: float, children: tuple[Any, Any]) -> GaussianRandomField:
        """Inverse of `tree_flatten`."""
        self = object.__new__(cls)
        self._set(*children, static)
        return self

    def _set(self, isht: Any, amplitude: Any, zonal_ratio: float) -> None:
        parts = (("isht", isht), ("amplitude", amplitude), ("zonal_ratio", zonal_ratio))
        for name, value in parts:
            object.__setattr__(self, name, value)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _draw(field: GaussianRandomField, key: jax.Array, shape: tuple[int, ...], real: str) -> jax.Array:
    lmax, mmax = field.isht.lmax, field.isht.mmax
    degree, order = np.arange(lmax)[:, None], np.arange(mmax)
    # The ratio of the deviation of each part to that of the whole coefficient.
    real_part = np.where(order == 0, field.zonal_ratio, math.sqrt(0.5)) * (order <= degree)
    imaginary_part = np.where(order == 0, 0.0, math.sqrt(0.5)) * (order <= degree)
    normal = jax.random.normal(key, (*shape, 2, lmax, mmax), real)
    scale = jnp.asarray(field.amplitude).astype(real)[:, None]
    return jax.lax.complex(
        normal[..., 0, :, :] * jnp.asarray(real_part, real) * scale,
        normal[..., 1, :, :] * jnp.asarray(imaginary_part, real) * scale,
    )


def _transform(nlat: int, nlon: int, grid: str, lmax: int | None) -> InverseRealSHT:
    # The Nyquist order nlon/2 has room for one of its two parts only: it would break isotropy.
    wanted = min(SphereGrid(nlat, nlon, grid).default_lmax, nlon // 2) if lmax is None else lmax
    if wanted > nlon // 2:
        raise ValueError(f"lmax={lmax}: nlon={nlon} longitudes hold the orders of lmax <= nlon/2 = {nlon // 2}")
    return InverseRealSHT(nlat, nlon, wanted, wanted, grid)

r"""What can be done per degree: power spectra, coherence, filters, truncation, regridding.

A real field is stored as coefficients :math:`a_{lm}` with :math:`m \ge 0`; the other half follows
from :math:`a_{l,-m} = (-1)^m \overline{a_{lm}}`, so every sum over the orders of a degree is the
m = 0 term plus twice the rest. With `norm="ortho"` Parseval's theorem reads
:math:`\int f^2\,dA = \sum_l P_l` on the unit sphere.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax._dtypes import complex_array, real_array
from sfno_jax.grids import SphereGrid
from sfno_jax.transforms import InverseRealSHT, RealSHT

__all__ = [
    "apply_filter",
    "coherence",
    "cross_spectrum",
    "exponential_filter",
    "gaussian_filter",
    "hyperdiffusion_filter",
    "power_spectrum",
    "regrid",
    "resample",
]


def power_spectrum(coeffs: ArrayLike) -> jax.Array:
    r"""Power per degree, :math:`P_l = |a_{l0}|^2 + 2\sum_{m>0}|a_{lm}|^2`.

    Args:
        coeffs: `(..., lmax, mmax)` complex, of a field in some unit U.

    Returns:
        `(..., lmax)` real [U2].

    Raises:
        ValueError: if `coeffs` has fewer than two axes.
    """
    coeffs = _coefficients(coeffs, "coeffs")
    return _sum_orders(coeffs.real**2 + coeffs.imag**2)


def cross_spectrum(first: ArrayLike, second: ArrayLike) -> jax.Array:
    r"""Covariance per degree, :math:`\Re(a_{l0}\bar b_{l0}) + 2\sum_{m>0}\Re(a_{lm}\bar b_{lm})`.

    Args:
        first: `(..., lmax, mmax)` complex, of a field in unit U.
        second: coefficients of another field in unit V, broadcastable against `first`.

    Returns:
        `(..., lmax)` real [U V].

    Raises:
        ValueError: if the last two axes of the two arguments differ.
    """
    a, b = _coefficients(first, "first"), _coefficients(second, "second")
    if a.shape[-2:] != b.shape[-2:]:
        raise ValueError(
            f"first and second have truncations {a.shape[-2:]} and {b.shape[-2:]}: bring both to one "
            "(lmax, mmax), for example with resample"
        )
    return _sum_orders(a.real * b.real + a.imag * b.imag)


def coherence(first: ArrayLike, second: ArrayLike) -> jax.Array:
    """Correlation of two fields per degree, in [-1, 1]; 0 where one of them has no power.

    Args:
        first: `(..., lmax, mmax)` complex.
        second: coefficients of another field, broadcastable against `first`.

    Returns:
        `(..., lmax)` real: cross spectrum over the root of the product of the power spectra.

    Raises:
        ValueError: if the last two axes of the two arguments differ.
    """
    cross = cross_spectrum(first, second)
    power_a, power_b = power_spectrum(first), power_spectrum(second)
    some = (power_a > 0) & (power_b > 0)
    # The root of each factor, not of the product, and a harmless value where the division is not
    # used: neither underflow nor the gradient of the unused branch may give NaN.
    root = jnp.sqrt(jnp.where(some, power_a, 1)) * jnp.sqrt(jnp.where(some, power_b, 1))
    return jnp.where(some, cross / root, 0)


def resample(coeffs: ArrayLike, lmax: int, mmax: int | None = None) -> jax.Array:
    """Truncate or pad with zeros to another truncation.

    Args:
        coeffs: `(..., l, m)` complex.
        lmax: number of degrees wanted.
        mmax: number of orders wanted; default `lmax` (triangular).

    Returns:
        `(..., lmax, mmax)`: the common entries of `coeffs`, 0 elsewhere.

    Raises:
        ValueError: if `lmax` or `mmax` is less than 1, or `coeffs` has fewer than two axes.
    """
    coeffs = _coefficients(coeffs, "coeffs")
    mmax = lmax if mmax is None else mmax
    if lmax < 1 or mmax < 1:
        raise ValueError(f"lmax={lmax}, mmax={mmax}: expected both to be at least 1")
    coeffs = coeffs[..., :lmax, :mmax]
    missing = [(0, 0)] * (coeffs.ndim - 2)
    missing += [(0, lmax - coeffs.shape[-2]), (0, mmax - coeffs.shape[-1])]
    return jnp.pad(coeffs, missing)


def regrid(
    x: ArrayLike,
    source: SphereGrid,
    target: SphereGrid,
    *,
    lmax: int | None = None,
    response: ArrayLike | None = None,
) -> jax.Array:
    """Carry a scalar field from one grid to another by way of its spherical harmonics.

    Exact for fields that both grids resolve; what the truncation does not resolve is removed, so a
    regridded field is smooth and has no preferred direction. The area mean is preserved. Sharp fields
    (land masks, precipitation) ring: smooth them with `response`, or interpolate instead.

    Args:
        x: `(..., source.nlat, source.nlon)` real.
        source: grid of `x`.
        target: grid wanted.
        lmax: number of degrees (and orders) kept. Default: as many as both grids resolve, without the
            Nyquist order, whose phase a grid cannot tell.
        response: `(lmax,)` factor per degree, for example `exponential_filter(lmax)`; needs `lmax`.

    Returns:
        `(..., target.nlat, target.nlon)` real, dtype of `x`.

    Raises:
        ValueError: if the last two axes of `x` are not those of `source`, `lmax` is more than both
            grids resolve, or `response` does not have `lmax` entries.
    """
    x = real_array("x", x)
    if lmax is None and response is not None:
        raise ValueError("response is given without lmax: pass lmax=len(response)")
    nyquist = min(source.nlon, target.nlon) // 2
    limit = min(source.max_lmax, target.max_lmax, nyquist)
    if lmax is None:
        lmax = min(_exact_lmax(source), limit)
    if not 1 <= lmax <= limit:
        raise ValueError(f"lmax={lmax}: the grids {source} and {target} resolve lmax = 1 ... {limit} together")
    analysis = RealSHT(source.nlat, source.nlon, lmax, lmax, source.kind)
    synthesis = InverseRealSHT(target.nlat, target.nlon, lmax, lmax, target.kind)
    coeffs = analysis(x)
    if response is not None:
        coeffs = apply_filter(coeffs, response)
    return synthesis(coeffs)


def apply_filter(coeffs: ArrayLike, response: ArrayLike) -> jax.Array:
    """Multiply every degree by its factor: an isotropic (zonal) convolution.

    Args:
        coeffs: `(..., lmax, mmax)` complex.
        response: `(..., lmax)` real factor per degree, broadcastable against the leading axes.

    Returns:
        `(..., lmax, mmax)`, dtype of `coeffs`.

    Raises:
        ValueError: if `response` does not have one entry per degree.
    """
    coeffs = _coefficients(coeffs, "coeffs")
    factor = jnp.asarray(response, dtype=coeffs.real.dtype)
    if factor.ndim < 1 or factor.shape[-1] != coeffs.shape[-2]:
        raise ValueError(
            f"response has shape {factor.shape}: expected one factor for each of the "
            f"{coeffs.shape[-2]} degrees on its last axis"
        )
    return coeffs * factor[..., None]


def exponential_filter(
    lmax: int, order: float = 16.0, attenuation: float = 36.0, cutoff: int = 0
) -> NDArray[np.float64]:
    r"""Exponential (Vandeven-type) filter, :math:`\exp(-\alpha\,s^p)`, 1 up to `cutoff`.

    :math:`s = (l - l_c)/(l_\max - l_c)` runs from 0 at the cutoff to 1 at the last degree (Gottlieb &
    Hesthaven 2001, J. Comput. Appl. Math. 128, 83). The default attenuation leaves the last degree
    at rounding level of float64.

    Args:
        lmax: number of degrees.
        order: p; large is sharp.
        attenuation: alpha, e-foldings of the last degree.
        cutoff: last degree that is left alone.

    Returns:
        `(lmax,)` float64.

    Raises:
        ValueError: if an argument is out of range.
    """
    degree = _degrees(lmax)
    if order <= 0 or attenuation < 0 or not 0 <= cutoff < max(lmax - 1, 1):
        raise ValueError(
            f"order={order}, attenuation={attenuation}, cutoff={cutoff}: expected order > 0, "
            f"attenuation >= 0 and 0 <= cutoff < {max(lmax - 1, 1)}, the last degree"
        )
    span = max(lmax - 1 - cutoff, 1)
    return np.exp(-attenuation * (np.maximum(degree - cutoff, 0) / span) ** order)


def hyperdiffusion_filter(lmax: int, dt: float, timescale: float = 7200.0, order: int = 4) -> NDArray[np.float64]:
    r"""Factor of one step of implicit hyperdiffusion :math:`\propto(-\nabla^2)^n`.

    :math:`\exp\{-(\Delta t/\tau)\,[l(l+1)/(l_m(l_m+1))]^n\}` with :math:`l_m` the last degree: that
    degree decays e-fold in :math:`\tau`. The defaults are the eighth-order damping, e-fold 2 h, of the
    shallow-water example of torch-harmonics 0.9.

    Args:
        lmax: number of degrees.
        dt: time step [s].
        timescale: tau [s].
        order: n, power of the Laplacian (the derivative is of order 2n).

    Returns:
        `(lmax,)` float64.

    Raises:
        ValueError: if `dt` is negative, `timescale` or `order` not positive, or `lmax` less than 1.
    """
    degree = _degrees(lmax)
    if dt < 0 or timescale <= 0 or order <= 0:
        raise ValueError(
            f"dt={dt}, timescale={timescale}, order={order}: expected dt >= 0, timescale > 0 and order > 0"
        )
    last = max(lmax - 1, 1)
    return np.exp(-dt / timescale * (degree * (degree + 1) / (last * (last + 1))) ** order)


def gaussian_filter(lmax: int, width: float, radius: float = 1.0) -> NDArray[np.float64]:
    r"""Heat kernel on the sphere, :math:`\exp\{-l(l+1)\,w^2/(2R^2)\}`: a Gaussian of deviation w.

    Args:
        lmax: number of degrees.
        width: standard deviation w along each axis [m], small against the radius.
        radius: R [m].

    Returns:
        `(lmax,)` float64.

    Raises:
        ValueError: if `width` is negative, `radius` not positive, or `lmax` less than 1.
    """
    degree = _degrees(lmax)
    if not (math.isfinite(width) and width >= 0 and math.isfinite(radius) and radius > 0):
        raise ValueError(f"width={width}, radius={radius}: expected width >= 0 and radius > 0")
    return np.exp(-0.5 * degree * (degree + 1) * (width / radius) ** 2)


def _exact_lmax(grid: SphereGrid) -> int:
    # Analysis on the trapezoidal grid is never exact: stay where it is at least fair.
    return grid.default_lmax if grid.kind == "trapezoidal" else grid.max_lmax


def _degrees(lmax: int) -> NDArray[np.float64]:
    if lmax < 1:
        raise ValueError(f"lmax={lmax}: expected at least one degree (lmax >= 1)")
    return np.arange(lmax, dtype=np.float64)


def _coefficients(coeffs: ArrayLike, name: str) -> jax.Array:
    array = complex_array(name, coeffs)
    if array.ndim < 2:
        raise ValueError(f"{name} has shape {array.shape}: expected (..., lmax, mmax)")
    return array


def _sum_orders(terms: jax.Array) -> jax.Array:
    return 2 * terms.sum(axis=-1) - terms[..., 0]

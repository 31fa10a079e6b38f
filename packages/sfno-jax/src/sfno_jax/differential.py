r"""Derivatives on the sphere by spherical harmonics: Laplacian, gradient, winds and Helmholtz.

Two bases for the same tangent vector appear here and only here do they meet:

* `(theta, lambda)`: along increasing colatitude (SOUTHWARD) and longitude (eastward). This is what
  the vector transforms and `gradient` speak.
* `(u, v)`: the meteorologist's eastward and NORTHWARD wind [m s-1]. `u` is the lambda component, `v`
  is minus the theta component. This is what `vorticity_divergence`, `wind` and `helmholtz` speak.

The vector transform writes a field as :math:`V = \nabla S + (\partial_\lambda T / \sin\theta,
-\partial_\theta T)` on the unit sphere. Handing it :math:`(u, v)` in the :math:`(\theta, \lambda)`
slots transforms the wind turned by a quarter circle, :math:`W = (W^\theta, W^\lambda) = (u, v)`,
for which

.. math::
    \nabla\cdot W = \frac{1}{\sin\theta}\Bigl[\partial_\theta(u\sin\theta) + \partial_\lambda v\Bigr]
        = \text{curl of the wind},
    \qquad
    \nabla\times W = \frac{1}{\sin\theta}\Bigl[\partial_\theta(v\sin\theta)-\partial_\lambda u\Bigr]
        = -\text{divergence of the wind},

because :math:`v = -V^\theta`. As :math:`\nabla\cdot W = \nabla^2 S` and :math:`\nabla\times W =
-\nabla^2 T`, spheroidal and toroidal coefficients of the turned wind are, up to the factor
:math:`R\,\Lambda_l` with :math:`\Lambda_l = -l(l+1)/R^2`, the vorticity and the divergence, both with
a plus sign: one transform and no sign to remember (the shallow-water solver of torch-harmonics 0.9
uses the same order). Solid-body rotation :math:`u = u_0\cos\varphi` has vorticity
:math:`2u_0\sin\varphi/R`.

All coefficients are `(..., lmax, mmax)` complex, as the transforms return them; every function works
under `jit`, `grad` and `vmap` and keeps the precision of its input.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax._dtypes import complex_array, real_array
from sfno_jax.transforms import InverseRealSHT, InverseRealVectorSHT, RealVectorSHT

__all__ = [
    "HelmholtzDecomposition",
    "divergence",
    "east_north",
    "gradient",
    "helmholtz",
    "inverse_laplacian",
    "laplacian",
    "laplacian_eigenvalues",
    "theta_lambda",
    "vorticity",
    "vorticity_divergence",
    "wind",
]


class HelmholtzDecomposition(NamedTuple):
    """A wind split into its rotational and its divergent part, on the grid.

    Attributes:
        streamfunction: psi [m2 s-1], `(..., nlat, nlon)`, zero mean; vorticity = laplacian(psi).
        velocity_potential: chi [m2 s-1], `(..., nlat, nlon)`, zero mean; divergence =
            laplacian(chi).
        rotational: k x grad(psi), `(..., 2, nlat, nlon)` = (u, v) [m s-1].
        divergent: grad(chi), `(..., 2, nlat, nlon)` = (u, v) [m s-1].
        vorticity: `(..., nlat, nlon)` [s-1].
        divergence: `(..., nlat, nlon)` [s-1].
    """

    streamfunction: jax.Array
    velocity_potential: jax.Array
    rotational: jax.Array
    divergent: jax.Array
    vorticity: jax.Array
    divergence: jax.Array


def laplacian_eigenvalues(lmax: int, radius: float = 1.0) -> NDArray[np.float64]:
    """Eigenvalues -l(l+1)/R^2 of the Laplacian for the degrees l = 0 ... lmax-1.

    Args:
        lmax: number of degrees.
        radius: R of the sphere [m], or 1 for the unit sphere.

    Returns:
        `(lmax,)` float64 [m-2].

    Raises:
        ValueError: if `lmax` is less than 1 or `radius` is not positive and finite.
    """
    if lmax < 1:
        raise ValueError(f"lmax={lmax}: expected at least one degree (lmax >= 1)")
    degree = np.arange(lmax, dtype=np.float64)
    return -degree * (degree + 1.0) / _positive(radius) ** 2


def laplacian(coeffs: ArrayLike, radius: float = 1.0) -> jax.Array:
    """Laplacian of a scalar field given by its coefficients.

    Args:
        coeffs: `(..., lmax, mmax)` complex, of a field in some unit U.
        radius: R [m].

    Returns:
        Coefficients of the Laplacian, same shape and dtype [U m-2].

    Raises:
        ValueError: if `coeffs` has fewer than two axes, or `radius` is not positive.
    """
    coeffs = _coefficients(coeffs)
    return _scale_degrees(coeffs, laplacian_eigenvalues(coeffs.shape[-2], radius))


def inverse_laplacian(coeffs: ArrayLike, radius: float = 1.0) -> jax.Array:
    """Solution of the Poisson equation with zero mean: the inverse of `laplacian`, 0 at l = 0.

    A Poisson equation on the sphere has a solution only for a right-hand side of zero mean; the mean
    (l = 0) of `coeffs` is dropped.

    Args:
        coeffs: `(..., lmax, mmax)` complex, of a field in some unit U.
        radius: R [m].

    Returns:
        Coefficients of the solution, same shape and dtype [U m2].

    Raises:
        ValueError: if `coeffs` has fewer than two axes, or `radius` is not positive.
    """
    coeffs = _coefficients(coeffs)
    return _scale_degrees(coeffs, _inverse_eigenvalues(coeffs.shape[-2], radius))


def gradient(coeffs: ArrayLike, ivsht: InverseRealVectorSHT, radius: float = 1.0) -> jax.Array:
    r"""Gradient :math:`(\partial_\theta f, \partial_\lambda f/\sin\theta)/R` of a scalar field.

    Args:
        coeffs: `(..., lmax, mmax)` complex, of a field in some unit U.
        ivsht: inverse vector transform of the wanted grid.
        radius: R [m].

    Returns:
        `(..., 2, nlat, nlon)` = (theta: southward, lambda: eastward) [U m-1]; `east_north` turns it
        into (eastward, northward).

    Raises:
        ValueError: if the shape of `coeffs` is not that of `ivsht`, or `radius` is not positive.
    """
    coeffs = _coefficients(coeffs) / _positive(radius)
    return ivsht(jnp.stack([coeffs, jnp.zeros_like(coeffs)], axis=-3))


def vorticity_divergence(wind: ArrayLike, vsht: RealVectorSHT, radius: float = 1.0) -> jax.Array:
    """Coefficients of vorticity and divergence of a wind; see the module on the sign convention.

    Args:
        wind: `(..., 2, nlat, nlon)` = (u eastward, v northward) [m s-1].
        vsht: vector transform of that grid.
        radius: R [m].

    Returns:
        `(..., 2, lmax, mmax)` complex = (vorticity, divergence) [s-1].

    Raises:
        ValueError: if the shape of `wind` is not that of `vsht`, or `radius` is not positive.
    """
    scale = _positive(radius) * laplacian_eigenvalues(vsht.lmax, radius)
    return _scale_degrees(vsht(_vector(wind, "wind")), scale)


def vorticity(wind: ArrayLike, vsht: RealVectorSHT, radius: float = 1.0) -> jax.Array:
    """Coefficients `(..., lmax, mmax)` [s-1] of the vorticity; see `vorticity_divergence`."""
    return vorticity_divergence(wind, vsht, radius)[..., 0, :, :]


def divergence(wind: ArrayLike, vsht: RealVectorSHT, radius: float = 1.0) -> jax.Array:
    """Coefficients `(..., lmax, mmax)` [s-1] of the divergence; see `vorticity_divergence`."""
    return vorticity_divergence(wind, vsht, radius)[..., 1, :, :]


def wind(vrtdiv: ArrayLike, ivsht: InverseRealVectorSHT, radius: float = 1.0) -> jax.Array:
    """Wind of given vorticity and divergence: the inverse of `vorticity_divergence`.

    The l = 0 entries are ignored: on a closed surface both means vanish (Stokes, Gauss).

    Args:
        vrtdiv: `(..., 2, lmax, mmax)` complex = (vorticity, divergence) [s-1].
        ivsht: inverse vector transform of the wanted grid.
        radius: R [m].

    Returns:
        `(..., 2, nlat, nlon)` = (u eastward, v northward) [m s-1].

    Raises:
        ValueError: if the shape of `vrtdiv` is not that of `ivsht`, or `radius` is not positive.
    """
    coeffs = _coefficients(vrtdiv, "vrtdiv")
    if coeffs.ndim < 3 or coeffs.shape[-3] != 2:
        raise ValueError(
            f"vrtdiv has shape {coeffs.shape}: expected (..., 2, lmax, mmax) with vorticity and divergence on axis -3"
        )
    scale = _inverse_eigenvalues(coeffs.shape[-2], radius) / _positive(radius)
    return ivsht(_scale_degrees(coeffs, scale))


def helmholtz(
    wind: ArrayLike,
    vsht: RealVectorSHT,
    isht: InverseRealSHT,
    ivsht: InverseRealVectorSHT,
    radius: float = 1.0,
) -> HelmholtzDecomposition:
    """Split a wind into rotational and divergent parts (Helmholtz decomposition).

    What the truncation of `vsht` resolves of the wind is `rotational + divergent`.

    Args:
        wind: `(..., 2, nlat, nlon)` = (u eastward, v northward) [m s-1].
        vsht: vector transform of that grid.
        isht: scalar inverse for the scalars wanted, same truncation, norm and csphase as `vsht`.
        ivsht: vector inverse for the winds wanted, same truncation, norm and csphase as `vsht`.
        radius: R [m].

    Returns:
        A `HelmholtzDecomposition` of arrays on the grid of `isht` and `ivsht`.

    Raises:
        ValueError: if the transforms disagree in lmax, mmax, norm or csphase, the shape of `wind` is
            not that of `vsht`, or `radius` is not positive.
    """
    for name in ("lmax", "mmax", "norm", "csphase"):
        given = [getattr(transform, name) for transform in (vsht, isht, ivsht)]
        if len(set(given)) != 1:
            raise ValueError(
                f"vsht, isht and ivsht must agree in {name}, got {given}: build all three with the same {name}"
            )
    turned = vsht(_vector(wind, "wind"))
    scale = _positive(radius) * laplacian_eigenvalues(vsht.lmax, radius)
    vrtdiv = _scale_degrees(turned, scale)
    # The mean of a potential has no physical meaning: l = 0 is dropped.
    potentials = turned.at[..., 0, :].set(0) * _positive(radius)
    scalars = isht(jnp.concatenate([potentials, vrtdiv], axis=-3))
    only_first = jnp.array([[1], [0]], dtype=turned.real.dtype)[..., None]
    parts = ivsht(jnp.stack([turned * only_first, turned * (1 - only_first)], axis=-4))
    return HelmholtzDecomposition(
        streamfunction=scalars[..., 0, :, :],
        velocity_potential=scalars[..., 1, :, :],
        rotational=parts[..., 0, :, :, :],
        divergent=parts[..., 1, :, :, :],
        vorticity=scalars[..., 2, :, :],
        divergence=scalars[..., 3, :, :],
    )


def east_north(vector: ArrayLike) -> jax.Array:
    """(theta southward, lambda eastward) components to (u eastward, v northward).

    Args:
        vector: `(..., 2, nlat, nlon)`, any unit.

    Returns:
        `(..., 2, nlat, nlon)`: u is the lambda component, v minus the theta component.

    Raises:
        ValueError: if axis -3 is not of size 2.
    """
    vector = _vector(vector, "vector")
    return jnp.stack([vector[..., 1, :, :], -vector[..., 0, :, :]], axis=-3)


def theta_lambda(wind: ArrayLike) -> jax.Array:
    """(u eastward, v northward) to (theta southward, lambda eastward): the inverse of `east_north`.

    Args:
        wind: `(..., 2, nlat, nlon)`, any unit.

    Returns:
        `(..., 2, nlat, nlon)`.

    Raises:
        ValueError: if axis -3 is not of size 2.
    """
    wind = _vector(wind, "wind")
    return jnp.stack([-wind[..., 1, :, :], wind[..., 0, :, :]], axis=-3)


def _positive(radius: float) -> float:
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius={radius}: expected a positive, finite number of metres")
    return float(radius)


def _coefficients(coeffs: ArrayLike, name: str = "coeffs") -> jax.Array:
    array = complex_array(name, coeffs)
    if array.ndim < 2:
        raise ValueError(f"{name} has shape {array.shape}: expected (..., lmax, mmax)")
    return array


def _vector(vector: ArrayLike, name: str) -> jax.Array:
    array = real_array(name, vector)
    if array.ndim < 3 or array.shape[-3] != 2:
        raise ValueError(
            f"{name} has shape {array.shape}: expected (..., 2, nlat, nlon) with the two components on axis -3"
        )
    return array


def _inverse_eigenvalues(lmax: int, radius: float) -> NDArray[np.float64]:
    inverse = np.zeros(lmax)
    inverse[1:] = 1.0 / laplacian_eigenvalues(lmax, radius)[1:]
    return inverse


def _scale_degrees(coeffs: jax.Array, per_degree: NDArray[np.float64]) -> jax.Array:
    return coeffs * jnp.asarray(per_degree.astype(coeffs.real.dtype))[:, None]

"""Losses on spherical harmonic coefficients, and with the true gradient on the sphere.

Fields have shape ``(..., channel, nlat, nlon)``; the transform is an argument, so that truncation
and grid are explicit. Every loss is the mean over batch axes and the (optionally weighted) mean over
channels.

Sources: makani's spectral Lp, H1 and AMSE losses, written anew from their formulas; ``w11_loss``
replaces the flat-FFT "W11" of torch-harmonics by the gradient on the sphere.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sfno_jax._area_mean import batch_channel_mean, check_pair, root, sphere_mean
from sfno_jax.spectral import cross_spectrum, power_spectrum
from sfno_jax.transforms import InverseRealVectorSHT, RealSHT

__all__ = ["amse_loss", "h1_loss", "spectral_lp_loss", "w11_loss"]


def w11_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    sht: RealSHT,
    inverse_vector_sht: InverseRealVectorSHT,
    *,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Mean length of the gradient of the difference, on the unit sphere.

    The gradient is spectral: with ``a`` the coefficients of the difference, ``grad`` is the inverse
    vector transform of (spheroidal, toroidal) = ``(a, 0)``; the integrand is
    ``sqrt((d/dtheta)^2 + (1/sin(theta) d/dlambda)^2)``, which does not depend on where the poles
    are.

    Args:
        prediction: Fields ``(..., channel, nlat, nlon)``.
        target: Fields of the same shape.
        weights: Quadrature weights, see :func:`loss_weights`.
        sht: Scalar analysis on the fields' grid.
        inverse_vector_sht: Vector synthesis with the same truncation and sign convention.
        mask: Optional, leaves points of the *integral* out; the gradient needs the whole field.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.
    """
    prediction, target = check_pair(prediction, target)
    coefficients = sht(prediction - target)
    gradient = inverse_vector_sht(jnp.stack([coefficients, jnp.zeros_like(coefficients)], -3))
    error = root(jnp.sum(gradient**2, -3))
    return batch_channel_mean(sphere_mean(error, weights, mask), channel_weights)


def _spectral_difference(prediction: ArrayLike, target: ArrayLike, sht: RealSHT) -> Array:
    prediction, target = check_pair(prediction, target)
    return sht(prediction - target)


def h1_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    sht: RealSHT,
    *,
    l2_weight: float = 0.0,
    squared: bool = True,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Sobolev H1 loss by spectrum: ``1/(4 pi) sum_lm (l(l+1) + l2_weight) |d_lm|^2``.

    Since ``l(l+1)`` are the eigenvalues of the Laplacian, the sum with ``l2_weight=0`` is exactly
    the mean of ``|grad d|^2`` over the unit sphere.

    Args:
        prediction: Fields ``(..., channel, nlat, nlon)``.
        target: Fields of the same shape.
        sht: Orthonormal scalar analysis on the fields' grid.
        l2_weight: 0 gives the semi-norm, 1 the full H1 norm.
        squared: Leave out the square root.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.

    Raises:
        ValueError: When the transform is not orthonormal.
    """
    _require_ortho(sht)
    difference = _spectral_difference(prediction, target, sht)
    power = power_spectrum(difference)
    degree = np.arange(sht.lmax)
    factor = jnp.asarray((degree * (degree + 1) + l2_weight) / (4 * np.pi), power.dtype)
    norm = jnp.sum(power * factor, -1)
    return batch_channel_mean(norm if squared else root(norm), channel_weights)


def spectral_lp_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    sht: RealSHT,
    *,
    p: float = 2,
    relative: bool = False,
    squared: bool = False,
    eps: float = 1e-6,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Lp norm of the coefficients, ``1/(4 pi) sum_lm |d_lm|^p`` over orders of both signs.

    For ``p=2`` it equals :func:`geometric_lp_loss` on band-limited fields (Parseval). Switches as
    there.

    Raises:
        ValueError: When ``p < 1`` or the transform is not orthonormal.
    """
    if p < 1:
        raise ValueError(f"p must be at least 1 for a norm, got {p}")
    _require_ortho(sht)
    prediction, target = check_pair(prediction, target)

    def norm(field: Array) -> Array:
        # |a|^2 first: |.| of a complex zero has no gradient, a power of its square has
        modulus = field.real**2 + field.imag**2
        modulus = modulus if p == 2 else root(modulus) ** p
        total = 2 * jnp.sum(modulus, (-2, -1)) - jnp.sum(modulus[..., 0], -1)
        total = total / (4 * np.pi)
        return total if squared else root(total, p)

    value = norm(sht(prediction - target))
    if relative:
        value = value / (norm(sht(target)) + eps)
    return batch_channel_mean(value, channel_weights)


def amse_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    sht: RealSHT,
    *,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Adjusted mean squared error, which does not reward blurring.

    With X_l, Y_l the power per degree of prediction and target and coh_l their coherence:
    ``1/(4 pi) sum_l (sqrt(X_l) - sqrt(Y_l))^2 + 2 max(X_l, Y_l) (1 - coh_l)``. With ``sqrt(X_l
    Y_l)`` in place of the maximum it would be the mean squared error; the maximum keeps the penalty
    for lost coherence when the prediction loses its amplitude.

    Source: Subich et al. 2025, "Fixing the double penalty in data-driven weather forecasting".

    Args:
        prediction: Fields ``(..., channel, nlat, nlon)``.
        target: Fields of the same shape.
        sht: Orthonormal scalar analysis on the fields' grid.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.
    """
    _require_ortho(sht)
    prediction, target = check_pair(prediction, target)
    a, b = sht(prediction), sht(target)
    power_a, power_b, cross = power_spectrum(a), power_spectrum(b), cross_spectrum(a, b)
    root_a, root_b = root(power_a), root(power_b)
    product = root_a * root_b
    coherence = jnp.where(product > 0, cross / jnp.where(product > 0, product, 1), 0)
    amplitude = (root_a - root_b) ** 2
    phase = 2 * jnp.maximum(power_a, power_b) * (1 - coherence)
    return batch_channel_mean(jnp.sum(amplitude + phase, -1) / (4 * np.pi), channel_weights)


def _require_ortho(sht: RealSHT) -> None:
    if sht.norm != "ortho":
        raise ValueError(
            f"spectral losses need coefficients that satisfy Parseval: build the transform with "
            f'norm="ortho", got norm="{sht.norm}"'
        )

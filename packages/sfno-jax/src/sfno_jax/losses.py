"""Losses for fields on the sphere.

Fields have shape ``(..., channel, nlat, nlon)``; every loss returns one scalar, the mean over the
batch axes and the (optionally weighted) mean over the channel axis -3. Point-wise losses integrate
with explicit quadrature weights: any array that broadcasts against ``(nlat, nlon)``; it is
normalised to sum 1, so that a loss is a mean over the sphere and not over grid points. Losses in
spectral space take the transform itself.

Sources: the sphere losses of torch-harmonics 0.9 (L1, L2, squared L2, W11) and of makani (geometric
and spectral Lp, H1, AMSE, channel weights), written anew from their formulas; the true-gradient
``h1`` and ``w11`` have no counterpart there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sfno_jax._area_mean import batch_channel_mean, check_pair, difference, root, sphere_mean
from sfno_jax._dtypes import real_array
from sfno_jax.grids import area_weights
from sfno_jax.metrics import crps_ensemble
from sfno_jax.spectral_losses import amse_loss, h1_loss, spectral_lp_loss, w11_loss
from sfno_jax.transforms import InverseRealVectorSHT, RealSHT

__all__ = [
    "LOSSES",
    "SphereLoss",
    "amse_loss",
    "crps_loss",
    "geometric_lp_loss",
    "h1_loss",
    "l1_loss",
    "l2_loss",
    "loss_weights",
    "named_channel_weights",
    "spectral_lp_loss",
    "sphere_mean",
    "squared_l2_loss",
    "w11_flat_fft_loss",
    "w11_loss",
]


def loss_weights(nlat: int, nlon: int, grid: str = "equiangular") -> np.ndarray:
    """Quadrature weights of a grid, normalised to sum 1.

    Args:
        nlat: Number of latitudes.
        nlon: Number of longitudes.
        grid: One of :data:`sfno_jax.grids.GRIDS`.

    Returns:
        Float64 array ``(nlat, nlon)``, sum 1.
    """
    weights = np.asarray(area_weights(grid, nlat, nlon), dtype=np.float64)
    return np.asarray(weights / weights.sum())


def l1_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Mean absolute difference over the sphere (torch-harmonics ``L1LossS2``).

    Args:
        prediction: Fields ``(..., channel, nlat, nlon)``.
        target: Fields of the same shape.
        weights: Quadrature weights, see :func:`loss_weights`.
        mask: Optional, 0 leaves a point out.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.

    Raises:
        ValueError: On shapes that do not fit.
        TypeError: On a dtype other than float32 or float64.
    """
    prediction, target = check_pair(prediction, target)
    error = jnp.abs(difference(prediction, target, mask))
    return batch_channel_mean(sphere_mean(error, weights, mask), channel_weights)


def squared_l2_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Mean squared difference over the sphere (torch-harmonics ``SquaredL2LossS2``).

    Arguments and errors as :func:`l1_loss`.
    """
    prediction, target = check_pair(prediction, target)
    error = difference(prediction, target, mask) ** 2
    return batch_channel_mean(sphere_mean(error, weights, mask), channel_weights)


def l2_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """L2 norm of the difference per sample and channel, then the mean (``L2LossS2``).

    Arguments and errors as :func:`l1_loss`.
    """
    prediction, target = check_pair(prediction, target)
    error = difference(prediction, target, mask) ** 2
    return batch_channel_mean(root(sphere_mean(error, weights, mask)), channel_weights)


def geometric_lp_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    p: float = 2,
    relative: bool = False,
    squared: bool = False,
    eps: float = 1e-6,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Lp norm over the sphere with makani's switches.

    With ``N(x) = sum_ij w_ij |x_ij|^p``: the loss per channel is ``N(prediction - target)``, divided
    by ``N(target) + eps`` when ``relative``; its p-th root is taken (of numerator and denominator
    each) unless ``squared``.

    Args:
        prediction: Fields ``(..., channel, nlat, nlon)``.
        target: Fields of the same shape.
        weights: Quadrature weights, see :func:`loss_weights`.
        p: Exponent, at least 1.
        relative: Divide by the norm of the target.
        squared: Leave out the p-th root.
        eps: Added to the denominator.
        mask: Optional, 0 leaves a point out.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.

    Raises:
        ValueError: When ``p < 1`` or shapes do not fit.
    """
    if p < 1:
        raise ValueError(f"p must be at least 1 for a norm, got {p}")
    prediction, target = check_pair(prediction, target)
    error = jnp.abs(difference(prediction, target, mask)) ** p
    norm = sphere_mean(error, weights, mask)
    norm = norm if squared else root(norm, p)
    if relative:
        reference = sphere_mean(jnp.abs(target) ** p, weights, mask)
        norm = norm / ((reference if squared else root(reference, p)) + eps)
    return batch_channel_mean(norm, channel_weights)


def w11_flat_fft_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """The reference's "W11": derivatives by a flat 2-D FFT over (colatitude, longitude).

    Kept for parity with torch-harmonics 0.9 ``W11LossS2``. It is NOT a gradient on the sphere: the
    colatitude is treated as periodic with period pi (wave numbers 2k) and the metric factor
    ``1/sin(theta)`` is missing, so that the poles ring. Use :func:`w11_loss` for the true one.
    The integrand is ``|d/dlambda| + |d/dtheta|`` of the difference.

    Arguments and errors as :func:`l1_loss`.
    """
    prediction, target = check_pair(prediction, target)
    gap = difference(prediction, target, mask)
    nlat, nlon = gap.shape[-2:]
    k_theta = jnp.asarray(2 * nlat * np.fft.fftfreq(nlat), gap.dtype)[:, None]
    k_lambda = jnp.asarray(nlon * np.fft.fftfreq(nlon), gap.dtype)
    spectrum = jnp.fft.fft2(gap)
    d_theta = jnp.fft.ifft2(1j * k_theta * spectrum).real
    d_lambda = jnp.fft.ifft2(1j * k_lambda * spectrum).real
    error = jnp.abs(d_lambda) + jnp.abs(d_theta)
    return batch_channel_mean(sphere_mean(error, weights, mask), channel_weights)


def crps_loss(
    ensemble: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    fair: bool = True,
    mask: ArrayLike | None = None,
    channel_weights: ArrayLike | None = None,
) -> Array:
    """Continuous ranked probability score of an ensemble, mean over the sphere.

    Args:
        ensemble: Fields ``(member, ..., channel, nlat, nlon)``; members on axis 0.
        target: Fields ``(..., channel, nlat, nlon)``.
        weights: Quadrature weights, see :func:`loss_weights`.
        fair: Unbiased for a finite ensemble (needs at least two members).
        mask: Optional, 0 leaves a point out.
        channel_weights: Optional ``(channel,)``, normalised to sum 1.

    Returns:
        Scalar.

    Raises:
        ValueError: On shapes that do not fit, or a fair score of one member.
    """
    members = real_array("ensemble", ensemble)
    if members.ndim < 3:
        raise ValueError(f"ensemble must be (member, ..., nlat, nlon), got shape {members.shape}")
    _, target = check_pair(members[0], target)
    if mask is not None:
        target = jnp.where(jnp.asarray(mask) != 0, target, 0)
    score = crps_ensemble(members, target, fair=fair)
    return batch_channel_mean(sphere_mean(score, weights, mask), channel_weights)


_SURFACE_LOW = ("u10m", "v10m", "u100m", "v100m", "sp", "msl", "tcwv", "tp", "sst")


def named_channel_weights(names: Sequence[str], kind: str = "auto") -> np.ndarray:
    """Channel weights of makani, as functions of the channel names.

    ``auto``: 0.1 for near-surface wind, pressure, water and sea temperature, 1 for ``t2m``, p/1000
    for a variable (z, u, v, t, r, q) on pressure level p [hPa], else 0.01. ``new auto``: the same
    with 2 for ``t2m`` and max(0.3, p/1000) on levels. ``constant``: ones. The losses normalise them
    to sum 1.

    Args:
        names: Channel names such as ``"t2m"`` or ``"z500"``.
        kind: ``"constant"``, ``"auto"`` or ``"new auto"``.

    Returns:
        Float64 array ``(len(names),)``.

    Raises:
        ValueError: When ``kind`` is unknown.
    """
    kinds = ("constant", "auto", "new auto")
    if kind not in kinds:
        raise ValueError(f"kind must be one of {kinds}, got {kind!r}")
    if kind == "constant":
        return np.ones(len(names))
    new = kind == "new auto"

    def weight(name: str) -> float:
        if name == "t2m":
            return 2.0 if new else 1.0
        if name in _SURFACE_LOW:
            return 0.1
        level = re.fullmatch(r"[zuvtrq](\d+)", name)
        if level is None:
            return 0.01
        pressure = int(level.group(1)) / 1000
        return max(0.3, pressure) if new else pressure

    return np.array([weight(name) for name in names])


_POINTWISE: dict[str, Callable[..., Array]] = {
    "l1": l1_loss,
    "l2": l2_loss,
    "squared_l2": squared_l2_loss,
    "relative_l2": partial(geometric_lp_loss, relative=True),
    "relative_squared_l2": partial(geometric_lp_loss, relative=True, squared=True),
    "w11_flat_fft": w11_flat_fft_loss,
}
_SPECTRAL: dict[str, Callable[..., Array]] = {
    "h1": partial(h1_loss, l2_weight=1.0),
    "spectral_l2": spectral_lp_loss,
    "amse": amse_loss,
}
#: Names that :meth:`SphereLoss.create` and a training configuration accept.
LOSSES = (*_POINTWISE, *_SPECTRAL, "w11")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights", "channel_weights", "sht", "inverse_vector_sht"],
    meta_fields=["name"],
)
@dataclass(frozen=True)
class SphereLoss:
    """A loss chosen by name, with what it needs, as a pytree that may be a jit argument.

    Attributes:
        name: One of :data:`LOSSES`.
        weights: Quadrature weights ``(nlat, 1)``.
        channel_weights: ``(channel,)`` or None.
        sht: Scalar analysis, where the loss is spectral.
        inverse_vector_sht: Vector synthesis, for ``w11``.
    """

    name: str
    weights: Any
    channel_weights: Any = None
    sht: Any = None
    inverse_vector_sht: Any = None

    @classmethod
    def create(
        cls,
        name: str,
        nlat: int,
        nlon: int,
        grid: str = "equiangular",
        *,
        channel_weights: ArrayLike | None = None,
    ) -> SphereLoss:
        """Build the loss ``name`` for a grid.

        Raises:
            ValueError: When the name is unknown.
        """
        if name not in LOSSES:
            raise ValueError(f"unknown loss {name!r}: choose one of {', '.join(LOSSES)}")
        spectral = name in _SPECTRAL or name == "w11"
        # one column: constant along a latitude, and small enough to travel into any jit
        weights = loss_weights(nlat, nlon, grid)[:, :1] * nlon
        return cls(
            name=name,
            weights=weights,
            channel_weights=None if channel_weights is None else np.asarray(channel_weights),
            sht=RealSHT(nlat, nlon, grid=grid) if spectral else None,
            inverse_vector_sht=InverseRealVectorSHT(nlat, nlon, grid=grid) if name == "w11" else None,
        )

    def __call__(self, prediction: ArrayLike, target: ArrayLike) -> Array:
        """The loss of fields ``(..., channel, nlat, nlon)``, a scalar."""
        if self.name in _POINTWISE:
            return _POINTWISE[self.name](prediction, target, self.weights, channel_weights=self.channel_weights)
        if self.name == "w11":
            return w11_loss(
                prediction,
                target,
                self.weights,
                self.sht,
                self.inverse_vector_sht,
                channel_weights=self.channel_weights,
            )
        return _SPECTRAL[self.name](prediction, target, self.sht, channel_weights=self.channel_weights)

"""Verification metrics for fields on the sphere.

Fields have shape ``(..., nlat, nlon)``; a metric reduces the two grid axes with quadrature weights
(see :func:`sfno_jax.losses.loss_weights`) and keeps the leading ones, so that ``(batch, channel,
nlat, nlon)`` gives ``(batch, channel)``. Ensembles carry their members on axis 0.

Sources: the quadrature-weighted metrics of makani; the fair CRPS of Ferro (2014); the spread-skill
correction of Fortin et al. (2014); streaming moments of Chan, Golub & LeVeque (1979).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax._area_mean import sphere_mean
from sfno_jax._dtypes import real_array
from sfno_jax.spectral import power_spectrum
from sfno_jax.transforms import RealSHT

__all__ = [
    "StreamingMoments",
    "anomaly_correlation",
    "bias",
    "crps_ensemble",
    "crps_gaussian",
    "mae",
    "mean_power_spectrum",
    "rank_histogram",
    "relative_l2",
    "rmse",
    "spread",
    "spread_skill_ratio",
]


def _pair(prediction: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    a, b = real_array("prediction", prediction), real_array("target", target)
    if a.shape != b.shape:
        raise ValueError(f"prediction and target must have the same shape, got {a.shape} and {b.shape}")
    return a, b


def rmse(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
) -> Array:
    """Area-weighted root-mean-square error, in the unit of the field.

    Args:
        prediction: Fields ``(..., nlat, nlon)``.
        target: Fields of the same shape.
        weights: Quadrature weights ``(nlat, nlon)``; any scale.
        mask: Optional, 0 leaves a point out.

    Returns:
        Array ``(...)``.

    Raises:
        ValueError: On shapes that do not fit.
        TypeError: On a dtype other than float32 or float64.
    """
    prediction, target = _pair(prediction, target)
    return jnp.sqrt(sphere_mean((prediction - target) ** 2, weights, mask))


def mae(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
) -> Array:
    """Area-weighted mean absolute error. Arguments as :func:`rmse`."""
    prediction, target = _pair(prediction, target)
    return sphere_mean(jnp.abs(prediction - target), weights, mask)


def bias(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    mask: ArrayLike | None = None,
) -> Array:
    """Area mean of ``prediction - target``. Arguments as :func:`rmse`."""
    prediction, target = _pair(prediction, target)
    return sphere_mean(prediction - target, weights, mask)


def relative_l2(prediction: ArrayLike, target: ArrayLike, weights: ArrayLike) -> Array:
    """``|prediction - target|_2 / |target|_2`` over the sphere. Arguments as :func:`rmse`."""
    prediction, target = _pair(prediction, target)
    error = sphere_mean((prediction - target) ** 2, weights)
    return jnp.sqrt(error / sphere_mean(target**2, weights))


def anomaly_correlation(
    prediction: ArrayLike,
    target: ArrayLike,
    weights: ArrayLike,
    *,
    climatology: ArrayLike,
    reduce: Literal["macro", "micro"] = "macro",
    batch_axis: int = 0,
) -> Array:
    """Anomaly correlation coefficient ``<x' y'> / sqrt(<x'^2> <y'^2>)``.

    Primes are departures from the climatology and ``<>`` the area mean; the mean anomaly itself is
    not removed (uncentred ACC, as in makani and WeatherBench 2).

    Args:
        prediction: Fields ``(batch, ..., nlat, nlon)``.
        target: Fields of the same shape.
        weights: Quadrature weights ``(nlat, nlon)``.
        climatology: Fields that broadcast against ``target``; a scalar 0 for anomalies.
        reduce: ``"macro"`` averages the coefficient of each sample; ``"micro"`` pools numerator and
            denominators over the batch first.
        batch_axis: The axis that is reduced.

    Returns:
        Array of the leading shape without the batch axis.

    Raises:
        ValueError: On an unknown ``reduce`` or shapes that do not fit.
    """
    if reduce not in ("macro", "micro"):
        raise ValueError(f'reduce must be "macro" or "micro", got {reduce!r}')
    prediction, target = _pair(prediction, target)
    if prediction.ndim < 3:
        raise ValueError(f"fields must be (batch, ..., nlat, nlon), got shape {prediction.shape}")
    normal = jnp.asarray(climatology, prediction.dtype)
    x, y = prediction - normal, target - normal
    product = sphere_mean(x * y, weights)
    x_square, y_square = sphere_mean(x**2, weights), sphere_mean(y**2, weights)
    if reduce == "micro":
        product, x_square, y_square = (jnp.sum(term, batch_axis) for term in (product, x_square, y_square))
        return product / jnp.sqrt(x_square * y_square)
    return jnp.mean(product / jnp.sqrt(x_square * y_square), batch_axis)


def _ensemble(ensemble: ArrayLike, target: ArrayLike, minimum: int) -> tuple[Array, Array]:
    members, truth = real_array("ensemble", ensemble), real_array("target", target)
    if members.shape[1:] != truth.shape:
        raise ValueError(
            f"ensemble must have shape (member, *target.shape) = (member, "
            f"{', '.join(map(str, truth.shape))}), got {members.shape}"
        )
    if members.shape[0] < minimum:
        raise ValueError(f"ensemble needs at least {minimum} members, got {members.shape[0]}")
    return members, truth


def crps_ensemble(ensemble: ArrayLike, target: ArrayLike, *, fair: bool = True) -> Array:
    """Continuous ranked probability score per point, ``E|X - y| - E|X - X'| / 2``.

    The double sum over members is done by sorting, in O(M log M).

    Args:
        ensemble: Array ``(member, ...)``.
        target: Array ``(...)``.
        fair: Divide the pair sum by M(M-1) instead of M^2, unbiased for a finite ensemble.

    Returns:
        Array ``(...)``, in the unit of the field.

    Raises:
        ValueError: On shapes that do not fit, or a fair score of one member.
    """
    members, truth = _ensemble(ensemble, target, 2 if fair else 1)
    count = members.shape[0]
    skill = jnp.mean(jnp.abs(members - truth), 0)
    # sum_{i<j} |x_i - x_j| = sum_i (2i - M + 1) x_(i), with x_(0) <= ... <= x_(M-1)
    factor = jnp.asarray(2 * np.arange(count) - count + 1, members.dtype)
    pairs = jnp.tensordot(factor, jnp.sort(members, 0), 1)
    return skill - pairs / (count * (count - 1) if fair else count**2)


def crps_gaussian(mean: ArrayLike, std: ArrayLike, target: ArrayLike) -> Array:
    """Closed-form CRPS of a normal forecast N(mean, std^2).

    ``std (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi))``, ``z = (target - mean) / std`` (Gneiting et
    al. 2005, equation 5).
    """
    mean, std = real_array("mean", mean), real_array("std", std)
    z = (real_array("target", target) - mean) / std
    cdf = jax.scipy.stats.norm.cdf(z)
    pdf = jax.scipy.stats.norm.pdf(z)
    return std * (z * (2 * cdf - 1) + 2 * pdf - 1 / math.sqrt(math.pi))


def spread(ensemble: ArrayLike, weights: ArrayLike) -> Array:
    """Root of the area mean of the unbiased ensemble variance.

    Args:
        ensemble: Fields ``(member, ..., nlat, nlon)``, at least two members.
        weights: Quadrature weights ``(nlat, nlon)``.

    Returns:
        Array ``(...)``, in the unit of the field.
    """
    members = real_array("ensemble", ensemble)
    if members.shape[0] < 2:
        raise ValueError(f"ensemble needs at least 2 members, got {members.shape[0]}")
    return jnp.sqrt(sphere_mean(jnp.var(members, 0, ddof=1), weights))


def spread_skill_ratio(ensemble: ArrayLike, target: ArrayLike, weights: ArrayLike) -> Array:
    """``sqrt((M+1)/M) spread / rmse(ensemble mean)``; 1 for a reliable ensemble, < 1 overconfident.

    Args:
        ensemble: Fields ``(member, ..., nlat, nlon)``.
        target: Fields ``(..., nlat, nlon)``.
        weights: Quadrature weights ``(nlat, nlon)``.

    Returns:
        Array ``(...)``.
    """
    members, truth = _ensemble(ensemble, target, 2)
    count = members.shape[0]
    skill = rmse(jnp.mean(members, 0), truth, weights)
    return math.sqrt((count + 1) / count) * spread(members, weights) / skill


def rank_histogram(ensemble: ArrayLike, target: ArrayLike, weights: ArrayLike) -> Array:
    """Area-weighted frequency of each rank of the truth among the members.

    Ties share their weight evenly over the ranks they could take.

    Args:
        ensemble: Fields ``(member, ..., nlat, nlon)``.
        target: Fields ``(..., nlat, nlon)``.
        weights: Quadrature weights ``(nlat, nlon)``.

    Returns:
        Array ``(..., member + 1)``, sum 1 over the last axis; flat for a reliable ensemble.
    """
    members, truth = _ensemble(ensemble, target, 1)
    below = jnp.sum(members < truth, 0)
    ties = jnp.sum(members == truth, 0)
    frequencies = [
        sphere_mean(
            jnp.where((rank >= below) & (rank <= below + ties), 1 / (ties + 1), 0).astype(truth.dtype),
            weights,
        )
        for rank in range(members.shape[0] + 1)
    ]
    return jnp.stack(frequencies, -1)


def mean_power_spectrum(fields: ArrayLike, sht: RealSHT) -> Array:
    """Power per degree, mean over the first (batch) axis; ``(batch, ..., nlat, nlon)`` to ``(...,
    lmax)``.
    """  # noqa: D205
    return jnp.mean(power_spectrum(sht(real_array("fields", fields))), 0)


Moments = NDArray[np.float64]


@dataclass
class StreamingMoments:
    """Weighted mean and variance of data that arrive in batches, in float64 on the host.

    Batches are merged by Chan's update of Welford's sums, which does not cancel as ``E[x^2] -
    E[x]^2`` does. The result does not depend on how the data are cut (up to rounding).

    Example:
        >>> moments = StreamingMoments()
        >>> moments.update([1.0, 2.0])
        >>> moments.update([3.0])
        >>> float(moments.mean), float(moments.variance)
        (2.0, 0.6666666666666666)
    """

    weight: Moments = field(default_factory=lambda: np.zeros(()))
    mean: Moments = field(default_factory=lambda: np.zeros(()))
    m2: Moments = field(default_factory=lambda: np.zeros(()))
    _started: bool = False

    def update(
        self,
        values: Any,
        weights: Any = None,
        axis: int | tuple[int, ...] = 0,
    ) -> None:
        """Add a batch.

        Args:
            values: Array; ``axis`` is reduced, what remains must be the same at each call.
            weights: Optional non-negative array that broadcasts against ``values``; a point of
                weight 0 is left out whatever its value.
            axis: Axes to reduce.

        Raises:
            ValueError: When the remaining shape differs from the one of earlier batches.
        """
        x = np.asarray(values, dtype=np.float64)
        if weights is None:
            w = np.ones(x.shape)
        else:
            w = np.broadcast_to(np.asarray(weights, np.float64), x.shape)
            x = np.where(w > 0, x, 0)
        total = np.asarray(w.sum(axis))
        safe = np.where(total > 0, total, 1)
        mean = np.asarray((w * x).sum(axis) / safe)
        centred = x - np.expand_dims(mean, axis)
        self._merge(total, mean, np.asarray((w * centred**2).sum(axis)))

    def merge(self, other: StreamingMoments) -> None:
        """Add what another accumulator has seen."""
        if other._started:
            self._merge(other.weight, other.mean, other.m2)

    def _merge(self, weight: Moments, mean: Moments, m2: Moments) -> None:
        if not self._started:
            self.weight, self.mean, self.m2, self._started = weight, mean, m2, True
            return
        if weight.shape != self.weight.shape:
            raise ValueError(f"batch reduces to shape {weight.shape}, earlier batches to {self.weight.shape}")
        total = self.weight + weight
        safe = np.where(total > 0, total, 1)
        delta = mean - self.mean
        self.m2 = self.m2 + m2 + delta**2 * self.weight * weight / safe
        self.mean = self.mean + delta * weight / safe
        self.weight = total

    @property
    def variance(self) -> Moments:
        """Population variance (divided by the total weight)."""
        return np.asarray(self.m2 / np.where(self.weight > 0, self.weight, 1))

    @property
    def std(self) -> Moments:
        """Root of the population variance."""
        return np.sqrt(self.variance)

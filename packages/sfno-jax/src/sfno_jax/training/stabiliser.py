"""Optional constraints that keep long rollouts on the sphere physical.

Both act on the output of any model, in normalised units, and are used in training and in rollouts
alike, so that the model learns under them:

- the degree-0 coefficient is kept right by projection: the area mean of a conserved channel (the
  geopotential: mass) is carried over from the input, that of a curl or a divergence is zero;
- scale-selective damping multiplies degree l by ``exp(-s (l/(lmax-1))^p)`` and drops what lies
  beyond the truncation, where pointwise non-linearities leave aliased noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from sfno_jax._area_mean import sphere_mean
from sfno_jax.losses import loss_weights
from sfno_jax.transforms import InverseRealSHT, RealSHT

__all__ = ["Stabiliser"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights", "conserve", "fix", "mean", "sht", "inverse_sht", "response"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Stabiliser:
    """``(previous, prediction) -> prediction`` with the constraints applied; a pytree.

    Attributes:
        weights: Quadrature weights ``(nlat, 1)``.
        conserve: ``(channel,)`` 1 where the area mean follows the input.
        fix: ``(channel,)`` 1 where the area mean is ``mean``.
        mean: ``(channel,)`` in normalised units.
        sht: Analysis, or None without damping.
        inverse_sht: Synthesis.
        response: ``(lmax,)`` factor per degree.
    """

    weights: Any
    conserve: Any
    fix: Any
    mean: Any
    sht: Any = None
    inverse_sht: Any = None
    response: Any = None

    @classmethod
    def create(
        cls,
        nlat: int,
        nlon: int,
        grid: str,
        channels: Sequence[str],
        *,
        conserve: Sequence[str] = (),
        zero_mean: Sequence[str] = (),
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        damping: float = 0.0,
        damping_order: int = 8,
        lmax: int | None = None,
    ) -> Stabiliser:
        """Build the constraints of a grid.

        Args:
            nlat: Number of latitudes.
            nlon: Number of longitudes.
            grid: One of :data:`sfno_jax.grids.GRIDS`.
            channels: Names of the channels, in order.
            conserve: Channels whose area mean is carried over from the input.
            zero_mean: Channels whose physical area mean is zero.
            mean: ``(channel,)`` normalisation means; zero when left out.
            std: ``(channel,)`` normalisation standard deviations; one when left out.
            damping: s, per step; with ``lmax=None`` too, no transform is done at all.
            damping_order: p.
            lmax: Degrees kept (all orders m < lmax that the grid resolves).

        Raises:
            ValueError: When a channel is not there or is named twice.
        """
        for name in (*conserve, *zero_mean):
            if name not in channels:
                raise ValueError(f"no channel {name!r}; there are {', '.join(channels)}")
        if set(conserve) & set(zero_mean):
            raise ValueError(f"conserve and zero_mean share {set(conserve) & set(zero_mean)}")
        zero, one = np.zeros(len(channels)), np.ones(len(channels))
        mean = zero if mean is None else np.asarray(mean, np.float64)
        std = one if std is None else np.asarray(std, np.float64)
        transforms: dict[str, Any] = {}
        if damping > 0 or lmax is not None:
            sht = RealSHT(nlat, nlon, lmax=lmax, grid=grid)
            degree = np.arange(sht.lmax) / max(sht.lmax - 1, 1)
            transforms = {
                "sht": sht,
                "inverse_sht": InverseRealSHT(nlat, nlon, lmax=sht.lmax, mmax=sht.mmax, grid=grid),
                "response": np.exp(-damping * degree**damping_order),
            }
        return cls(
            weights=loss_weights(nlat, nlon, grid)[:, :1],
            conserve=np.array([float(name in conserve) for name in channels]),
            fix=np.array([float(name in zero_mean) for name in channels]),
            mean=-mean / std,
            **transforms,
        )

    def __call__(self, previous: Array, prediction: Array) -> Array:
        """Constrain ``prediction``; both are ``(..., channel, nlat, nlon)`` in normalised units."""
        field = prediction
        dtype = field.dtype
        if self.sht is not None:
            response = jnp.asarray(self.response, dtype)[:, None]
            field = self.inverse_sht(self.sht(field) * response)
        now = sphere_mean(field, self.weights)
        before = sphere_mean(previous, self.weights)
        conserve, fix, mean = (jnp.asarray(a, dtype) for a in (self.conserve, self.fix, self.mean))
        shift = conserve * (before - now) + fix * (mean - now)
        return field + shift[..., None, None]

"""Spherical Fourier Neural Operator, and the Fourier Neural Operator it is compared with.

Bonev et al., Spherical Fourier Neural Operators: Learning Stable Dynamics on the Sphere (ICML 2023).
Li et al., Fourier Neural Operator for Parametric Partial Differential Equations (ICLR 2021).
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from sfno_jax.grids import colatitudes
from sfno_jax.models.config import FNOConfig, OperatorConfig, SFNOConfig
from sfno_jax.models.fft2 import InverseRealFFT2, RealFFT2
from sfno_jax.models.layers import parameter_count
from sfno_jax.models.operator import FourierNeuralOperator
from sfno_jax.models.sphere import sphere_transforms

__all__ = ["FNO", "SFNO", "build_model", "matched_fno_config"]


class SFNO(FourierNeuralOperator):
    """Spherical Fourier Neural Operator: (batch, channels, nlat, nlon) to the same grid.

    Example:
        >>> config = SFNOConfig(nlat=32, nlon=64, grid="legendre-gauss", embed_dim=32)
        >>> model = SFNO(config, rngs=nnx.Rngs(0))
        >>> y = model(x)  # x: (batch, 3, 32, 64)

    Args:
        config: Its options.
        rngs: Random streams ``params`` and, with dropout, ``dropout``.
    """

    config: SFNOConfig

    def __init__(self, config: SFNOConfig, *, rngs: nnx.Rngs) -> None:
        if not isinstance(config, SFNOConfig):
            raise TypeError(f"SFNO takes an SFNOConfig, got {type(config).__name__}")
        exact = config.analysis == "exact"
        outer = sphere_transforms(config.nlat, config.nlon, config.modes, config.grid, exact=exact)
        inner = sphere_transforms(*config.internal_shape, config.modes, config.grid_internal, exact=exact)
        grids = (config.grid, config.grid_internal)
        super().__init__(config, outer=outer, inner=inner, grids=grids, rngs=rngs)

    def on_grid(self, nlat: int, nlon: int, grid: str | None = None) -> SFNO:
        """The same network on another grid: weights act on modes and channels, not on points.

        What is learned per latitude (`learnable lat`) is interpolated.

        Args:
            nlat: Number of latitudes.
            nlon: Number of longitudes.
            grid: Kind of grid; None for the present one.

        Returns:
            A model with copies of this one's weights and the same modes.

        Raises:
            ValueError: the modes do not fit, or weights are tied to the grid.
        """
        config = dataclasses.replace(
            self.config,
            nlat=nlat,
            nlon=nlon,
            grid=self.config.grid if grid is None else grid,
            max_modes=self.config.modes,
            hard_thresholding_fraction=1.0,
        )
        return _with_weights(SFNO(config, rngs=nnx.Rngs(0)), self)


class FNO(FourierNeuralOperator):
    """Fourier Neural Operator on the latitude-longitude rectangle; see `SFNO`.

    With scale_factor s the unitary FFT multiplies amplitudes by s in the first block and divides
    them by s in the last one, residuals included.

    Args:
        config: Its options.
        rngs: Random streams ``params`` and, with dropout, ``dropout``.
    """

    config: FNOConfig

    def __init__(self, config: FNOConfig, *, rngs: nnx.Rngs) -> None:
        if not isinstance(config, FNOConfig):
            raise TypeError(f"FNO takes an FNOConfig, got {type(config).__name__}")
        (h, w), modes = config.internal_shape, config.modes
        outer = (config.nlat, config.nlon, *modes)
        super().__init__(
            config,
            outer=(RealFFT2(*outer), InverseRealFFT2(*outer)),
            inner=(RealFFT2(h, w, *modes), InverseRealFFT2(h, w, *modes)),
            grids=("equiangular", "equiangular"),
            rngs=rngs,
        )

    def on_grid(self, nlat: int, nlon: int) -> FNO:
        """The same network on another grid; see `SFNO.on_grid`."""
        config = dataclasses.replace(
            self.config,
            nlat=nlat,
            nlon=nlon,
            max_modes=self.config.modes,
            hard_thresholding_fraction=1.0,
        )
        return _with_weights(FNO(config, rngs=nnx.Rngs(0)), self)


Model = TypeVar("Model", bound=FourierNeuralOperator)


def _with_weights(target: Model, source: Model) -> Model:
    new, old = nnx.state(target, nnx.Param), nnx.state(nnx.clone(source), nnx.Param)
    for (path, there), (_, here) in zip(nnx.to_flat_state(new), nnx.to_flat_state(old), strict=True):
        if path == ("embedding", "fields") and here.get_value().shape[-1] == 1:
            here.set_value(_interpolated(here.get_value(), source.config, target.config))
        if there.get_value().shape != here.get_value().shape:
            raise ValueError(
                f"weight {'.'.join(map(str, path))} is tied to its grid: shape "
                f"{here.get_value().shape} here, {there.get_value().shape} on the new one "
                "(grid layer norm and position embeddings learned per point cannot change resolution)"
            )
    nnx.update(target, old)
    return target


def _rows(config: OperatorConfig) -> NDArray[np.float64]:
    """Colatitudes of the rows; an FNO knows of no grid, so its rows are taken to be equispaced between the poles."""
    if isinstance(config, SFNOConfig):
        return colatitudes(config.grid, config.nlat)
    return np.pi * (np.arange(config.nlat) + 0.5) / config.nlat


def _interpolated(fields: jax.Array, source: OperatorConfig, target: OperatorConfig) -> jax.Array:
    """What was learned per latitude, (channels, nlat, 1), linearly between the latitudes of another grid."""
    here, there = _rows(source), _rows(target)
    return jax.vmap(lambda column: jnp.interp(there, here, column))(fields[..., 0])[..., None].astype(fields.dtype)


def build_model(config: OperatorConfig, rngs: nnx.Rngs) -> SFNO | FNO:
    """The network of a configuration.

    Raises:
        TypeError: not an `SFNOConfig` or `FNOConfig`.
    """
    if isinstance(config, SFNOConfig):
        return SFNO(config, rngs=rngs)
    if isinstance(config, FNOConfig):
        return FNO(config, rngs=rngs)
    raise TypeError(f"config is {type(config).__name__}; expected SFNOConfig or FNOConfig")


def matched_fno_config(config: SFNOConfig, **changes: Any) -> FNOConfig:
    """The FNO whose number of parameters is nearest to an SFNO's, by its width `embed_dim`.

    An FNO has a matrix per wave number where the SFNO has one per degree, so at equal width it is
    about as many times larger as there are orders.

    Args:
        config: The SFNO to match.
        **changes: Options of the FNO that should differ from the SFNO's.

    Returns:
        A configuration of the same grid, depth and other options.
    """
    fields = {f.name for f in dataclasses.fields(FNOConfig)} - {"operator_type"}
    shared = {k: v for k, v in dataclasses.asdict(config).items() if k in fields}
    shared = {**shared, "max_modes": None, **changes}
    target = _abstract_count(config)

    def count(width: int) -> int:
        return _abstract_count(FNOConfig(**{**shared, "embed_dim": width}))

    low, high = 1, 2
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    width = min((low, high), key=lambda w: abs(count(w) - target))
    return FNOConfig(**{**shared, "embed_dim": width})


def _abstract_count(config: OperatorConfig) -> int:
    """Parameters of a configuration's network, without making them."""
    return parameter_count(nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0))))

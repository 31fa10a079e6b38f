"""Pointwise layers of the neural operators: 1x1 maps over channels, MLP, norms, dropout.

All of them take and return fields of shape (batch, channels, nlat, nlon). Channels stay second, as
the transforms want them; a pointwise map is then one matrix product per sample, without transposes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from sfno_jax.grids import quadrature
from sfno_jax.models import gelu_mlp
from sfno_jax.models.pointwise_product import pointwise_product

__all__ = [
    "AreaInstanceNorm",
    "Buffer",
    "ChannelLayerNorm",
    "ComplexParam",
    "GridLayerNorm",
    "InstanceNorm",
    "PointwiseLinear",
    "PointwiseMLP",
    "PointwiseStack",
    "activation_function",
    "make_norm",
    "parameter_count",
]

EPSILON = 1e-6


class ComplexParam(nnx.Param[jax.Array]):
    """A complex weight stored real, (real, imaginary) along a trailing axis of size 2.

    Gradient transformations then see real leaves: Adam's second moment of a complex parameter is
    easily wrong (optax#287), that of two real ones is not.
    """


class Buffer(nnx.Variable[jax.Array]):
    """A constant array that belongs to a model but is not trained."""


def parameter_count(model: nnx.Module, *, complex_as_one: bool = False) -> int:
    """Number of trained parameters.

    Args:
        model: Any module.
        complex_as_one: Count a complex number as one parameter (torch's ``numel``), not as two.
    """
    total = 0
    for _, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        size = math.prod(variable.get_value().shape)
        total += size // 2 if complex_as_one and isinstance(variable, ComplexParam) else size
    return total


def activation_function(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function of an `activation` option."""
    functions: dict[str, Callable[[jax.Array], jax.Array]] = {
        "gelu": gelu_mlp.gelu,
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "identity": lambda x: x,
    }
    return functions[name]


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], std: Any, dtype: Any) -> jax.Array:
    """Normal initial values of standard deviation `std`, a number or an array that broadcasts to `shape`."""
    # Compiling the generator takes a third of a second per size, so few sizes are compiled: powers of two.
    size = 1 << max(8, (math.prod(shape) - 1).bit_length())
    values: jax.Array = _shaped(jax.random.normal(rngs.params(), (size,), dtype), shape, std)
    return values


@functools.partial(jax.jit, static_argnums=1)
def _shaped(values: jax.Array, shape: tuple[int, ...], std: Any) -> jax.Array:
    return jnp.asarray(std, values.dtype) * values[: math.prod(shape)].reshape(shape)


class PointwiseLinear(nnx.Module):
    """The 1x1 convolution y_o = sum_c W_oc x_c + b_o at every grid point.

    Args:
        in_channels: Input channels.
        out_channels: Output channels.
        std: Standard deviation of the initial weights.
        bias: Add b, initially zero.
        dtype: Of the weights.
        rngs: Random streams.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        std: float,
        bias: bool,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        self.weight = nnx.Param(normal(rngs, (out_channels, in_channels), std, dtype))
        self.bias = nnx.Param(jnp.zeros((out_channels,), dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (batch, in_channels, nlat, nlon) to (batch, out_channels, nlat, nlon)."""
        weight = self.weight[...]
        batch, channels, nlat, nlon = x.shape
        y = pointwise_product(weight, x.reshape(batch, channels, nlat * nlon))
        if self.bias is not None:
            y = y + self.bias[...][:, None]
        return y.reshape(batch, weight.shape[0], nlat, nlon)


class PointwiseStack(nnx.Module):
    """Encoder or decoder: `hidden_layers` of (linear, activation), then a linear map.

    Initial weights have standard deviation sqrt(2 / in) in hidden layers, sqrt(gain / in) last.

    Args:
        in_channels: Input channels.
        out_channels: Output channels.
        hidden_layers: Number of hidden layers, which have biases; 0 is one linear map.
        width: Their channels.
        activation: Between layers.
        bias: The last map has one too.
        gain: Of the last map.
        dtype: Of the weights.
        rngs: Random streams.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_layers: int,
        width: int,
        activation: str,
        bias: bool,
        gain: float = 1.0,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        maps, current = [], in_channels
        for _ in range(hidden_layers):
            std = math.sqrt(2.0 / current)
            maps.append(PointwiseLinear(current, width, std=std, bias=True, dtype=dtype, rngs=rngs))
            current = width
        std = math.sqrt(gain / current)
        maps.append(PointwiseLinear(current, out_channels, std=std, bias=bias, dtype=dtype, rngs=rngs))
        self.layers = nnx.List(maps)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (batch, in_channels, nlat, nlon) to (batch, out_channels, nlat, nlon)."""
        act = activation_function(self.activation)
        for layer in list(self.layers)[:-1]:
            x = act(layer(x))
        return self.layers[-1](x)


class PointwiseMLP(nnx.Module):
    """Two linear maps with an activation between, and dropout of whole channels after each.

    Attributes:
        may_use_kernel: Use `gelu_mlp` where it applies; set to False, the network runs without this package's C++.

    Args:
        channels: Input and output channels.
        width: Hidden channels.
        activation: Between the maps.
        output_bias: The second map has a bias (the first always does).
        drop_rate: Probability of dropping a channel.
        gain: The second map's initial standard deviation is sqrt(gain / width).
        dtype: Of the weights.
        rngs: Random streams.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        activation: str,
        output_bias: bool,
        drop_rate: float,
        gain: float,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        self.expand = PointwiseLinear(channels, width, std=math.sqrt(2.0 / channels), bias=True, dtype=dtype, rngs=rngs)
        self.contract = PointwiseLinear(
            width, channels, std=math.sqrt(gain / width), bias=output_bias, dtype=dtype, rngs=rngs
        )
        self.activation = activation
        self.dropout = channel_dropout(drop_rate, rngs)
        self.may_use_kernel = True

    def __call__(self, x: jax.Array, residual: jax.Array | None = None) -> jax.Array:
        """Map (batch, channels, nlat, nlon) to the same shape, and add `residual`."""
        if self._is_one_kernel(x):
            return self._in_one_kernel(x, residual)
        x = activation_function(self.activation)(self.expand(x))
        if self.dropout is not None:
            x = self.dropout(x)
        x = self.contract(x)
        x = x if self.dropout is None else self.dropout(x)
        return x if residual is None else x + residual

    def _is_one_kernel(self, x: jax.Array) -> bool:
        out, hidden = self.contract.weight[...].shape
        plain = self.activation == "gelu" and self.dropout is None and self.expand.weight[...].dtype == x.dtype
        return self.may_use_kernel and plain and gelu_mlp.supports(x, hidden, out)

    def _in_one_kernel(self, x: jax.Array, residual: jax.Array | None) -> jax.Array:
        assert self.expand.bias is not None
        first, bias, second = self.expand.weight[...], self.expand.bias[...], self.contract.weight[...]
        points = x.shape[2:]
        if residual is not None:
            residual = residual.reshape(*residual.shape[:2], -1)
        y = gelu_mlp.gelu_mlp(x.reshape(*x.shape[:2], -1), first, bias, second, residual)
        if self.contract.bias is not None:
            y = y + self.contract.bias[...][:, None]
        return y.reshape(len(x), -1, *points)


def channel_dropout(rate: float, rngs: nnx.Rngs) -> nnx.Dropout | None:
    """Dropout of whole channels of a sample."""
    return nnx.Dropout(rate, broadcast_dims=(-2, -1), rngs=rngs) if rate > 0.0 else None


def point_dropout(rate: float, rngs: nnx.Rngs) -> nnx.Dropout | None:
    """Dropout of single values."""
    return nnx.Dropout(rate, rngs=rngs) if rate > 0.0 else None


def drop_path(rate: float, rngs: nnx.Rngs) -> nnx.Dropout | None:
    """Stochastic depth (Huang et al. 2016): drops a sample's whole branch, rescales the kept."""
    return nnx.Dropout(rate, broadcast_dims=(-3, -2, -1), rngs=rngs) if rate > 0.0 else None


class _Affine(nnx.Module):
    """Learned scale and shift of the given shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.scale = nnx.Param(jnp.ones(shape, dtype))
        self.shift = nnx.Param(jnp.zeros(shape, dtype))

    def _apply(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        scale, shift = self.scale[...], self.shift[...]
        if scale.ndim == 1:
            scale, shift = scale[:, None, None], shift[:, None, None]
        return (x - mean) * (jax.lax.rsqrt(variance + EPSILON) * scale) + shift


class InstanceNorm(_Affine):
    """Zero mean and unit (biased) variance over the grid points of each channel, unweighted."""

    def __init__(self, channels: int, dtype: Any) -> None:
        super().__init__((channels,), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (batch, channels, nlat, nlon)."""
        mean = x.mean((-2, -1), keepdims=True)
        variance = jnp.square(x - mean).mean((-2, -1), keepdims=True)
        return self._apply(x, mean, variance)


class AreaInstanceNorm(_Affine):
    """Instance norm whose mean and variance are integrals over the sphere, divided by 4 pi."""

    def __init__(self, channels: int, grid: str, nlat: int, dtype: Any) -> None:
        super().__init__((channels,), dtype)
        self.grid = grid
        self.nlat = nlat

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (batch, channels, nlat, nlon)."""
        weights = jnp.asarray(quadrature(self.grid, self.nlat)[1] / 2.0, x.dtype)[:, None]
        mean = (x.mean(-1, keepdims=True) * weights).sum(-2, keepdims=True)
        square = jnp.square(x - mean).mean(-1, keepdims=True)
        return self._apply(x, mean, (square * weights).sum(-2, keepdims=True))


class GridLayerNorm(_Affine):
    """Layer norm over (nlat, nlon) with a scale and shift per grid point (torch-harmonics)."""

    def __init__(self, nlat: int, nlon: int, dtype: Any) -> None:
        super().__init__((nlat, nlon), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (batch, channels, nlat, nlon)."""
        mean = x.mean((-2, -1), keepdims=True)
        return self._apply(x, mean, jnp.square(x - mean).mean((-2, -1), keepdims=True))


class ChannelLayerNorm(_Affine):
    """Layer norm over the channels at every grid point (makani)."""

    def __init__(self, channels: int, dtype: Any) -> None:
        super().__init__((channels,), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (batch, channels, nlat, nlon)."""
        mean = x.mean(-3, keepdims=True)
        return self._apply(x, mean, jnp.square(x - mean).mean(-3, keepdims=True))


Norm = InstanceNorm | AreaInstanceNorm | GridLayerNorm | ChannelLayerNorm


def make_norm(name: str, variant: str, channels: int, grid: str, nlat: int, nlon: int, dtype: Any) -> Norm | None:
    """The norm of a `norm` option for fields on an nlat x nlon grid; None for ``"none"``."""
    if name == "instance_norm":
        return InstanceNorm(channels, dtype)
    if name == "instance_norm_s2":
        return AreaInstanceNorm(channels, grid, nlat, dtype)
    if name == "layer_norm" and variant == "makani":
        return ChannelLayerNorm(channels, dtype)
    return GridLayerNorm(nlat, nlon, dtype) if name == "layer_norm" else None

r"""Spectral filters: what a block does to the coefficients of its input.

A convolution on the sphere with a zonal kernel multiplies every order m of a degree l by one number
(Driscoll & Healy 1994), (k * u)_lm = 2 pi sqrt(4 pi / (2l+1)) k_l0 u_lm. A matrix over channels per
degree is therefore the most general linear, rotation-equivariant map:

    v_o,lm = sum_i W_oil u_i,lm                                          ("driscoll-healy")

W must be real for that: a complex W acts on m < 0 as its conjugate, since the fields are real, and so turns the
phase of eastward and westward waves in opposite senses. That commutes with rotations about the poles only, yet both
public SFNOs have complex weights, so real ones are an option (`real_weights`).

Weights per (l, m) are richer and break the equivariance ("diagonal"). The non-linear filter is an
MLP in the coefficients with complex weights (makani's SpectralAttention).

Complex products are done as real ones of twice the size,

    [Re v]   [Re W  -Im W] [Re u]
    [Im v] = [Im W   Re W] [Im u],

one batched matrix product, several times faster than XLA's complex einsum on a CPU.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from sfno_jax.models.layers import ComplexParam, normal
from sfno_jax.models.pointwise_product import HIGHEST

__all__ = ["LinearFilter", "SpectralMLP", "complex_relu"]


def complex_normal(rngs: nnx.Rngs, shape: tuple[int, ...], std: Any, dtype: Any) -> jax.Array:
    """Complex normal values with E|z|^2 = std^2, shape (*shape, 2)."""
    return normal(rngs, (*shape, 2), std * math.sqrt(0.5), dtype)


def as_complex(pair: jax.Array) -> jax.Array:
    """The complex array of (..., 2)."""
    return jax.lax.complex(pair[..., 0], pair[..., 1])


def real_block(weight: jax.Array) -> jax.Array:
    """The real matrix (..., 2o, 2i) that acts on (Re, Im) like a complex one (..., o, i, 2)."""
    re, im = weight[..., 0], weight[..., 1]
    top, bottom = jnp.concatenate([re, -im], -1), jnp.concatenate([im, re], -1)
    return jnp.concatenate([top, bottom], -2)


def split(z: jax.Array, axis: int) -> jax.Array:
    """Real parts followed by imaginary parts along an axis."""
    return jnp.concatenate([z.real, z.imag], axis)


def merge(z: jax.Array, axis: int) -> jax.Array:
    """The inverse of `split`."""
    re, im = jnp.split(z, 2, axis)
    return jax.lax.complex(re, im)


def mix_per_degree(weight: jax.Array, u: jax.Array) -> jax.Array:
    """v_olm = sum_i W_oil u_ilm for W (o, i, l, 2) and u (batch, i, l, m)."""
    batch, channels, lmax, mmax = u.shape
    matrices = real_block(weight.transpose(2, 0, 1, 3))
    columns = u.transpose(2, 1, 0, 3).reshape(lmax, channels, batch * mmax)
    v = merge(jnp.matmul(matrices, split(columns, 1), precision=HIGHEST), 1)
    return v.reshape(lmax, -1, batch, mmax).transpose(2, 1, 0, 3)


def mix_per_degree_real(weight: jax.Array, u: jax.Array) -> jax.Array:
    """`mix_per_degree` for a real W (o, i, l): real and imaginary parts are columns alike."""
    batch, channels, lmax, mmax = u.shape
    columns = split(u.transpose(2, 1, 0, 3).reshape(lmax, channels, batch * mmax), 2)
    v = merge(jnp.matmul(weight.transpose(2, 0, 1), columns, precision=HIGHEST), 2)
    return v.reshape(lmax, -1, batch, mmax).transpose(2, 1, 0, 3)


class LinearFilter(nnx.Module):
    """Linear map of the coefficients.

    Args:
        channels: Input and output channels.
        modes: (lmax, mmax).
        operator_type: ``"driscoll-healy"``: weight (out, in, l); ``"diagonal"``: (out, in, l, m);
            ``"block-diagonal"``: (out, in, l, m, m'), mixing m' into m; when separable without the
            axis `in`. Stored real with a trailing axis 2.
        separable: No mixing of channels.
        gain: Initial weights are complex normal with variance gain / in.
        real: Real weights (out, in, l), the exactly equivariant filter; only for ``"driscoll-healy"``.
        boost_mean: Multiply the initial l = 0 weights by sqrt(2), whose imaginary parts have no
            effect (makani).
        dtype: Of the weights.
        rngs: Random streams.
    """

    def __init__(
        self,
        channels: int,
        modes: tuple[int, int],
        *,
        operator_type: str,
        separable: bool,
        gain: float,
        boost_mean: bool,
        real: bool = False,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        lmax, mmax = modes
        mixing = (channels,) if separable else (channels, channels)
        per_mode = {
            "driscoll-healy": (lmax,),
            "diagonal": (lmax, mmax),
            "block-diagonal": (lmax, mmax, mmax),
        }[operator_type]
        std = np.full((*(1 for _ in mixing), *per_mode, 1), math.sqrt(gain / (1 if separable else channels)))
        if boost_mean:
            std.swapaxes(0, len(mixing))[0] *= math.sqrt(2.0)
        self.weight: nnx.Param[jax.Array]
        if real:
            self.weight = nnx.Param(normal(rngs, (*mixing, lmax), std[..., 0], dtype))
        else:
            self.weight = ComplexParam(complex_normal(rngs, (*mixing, *per_mode), std, dtype))
        self.real = real
        self.operator_type = operator_type
        self.separable = separable

    def __call__(self, u: jax.Array) -> jax.Array:
        """Map coefficients (batch, channels, lmax, mmax) to the same shape."""
        weight = self.weight[...]
        if self.real:
            return u * weight[..., None] if self.separable else mix_per_degree_real(weight, u)
        if self.separable:
            w = as_complex(weight)
            return u * (w[..., None] if self.operator_type == "driscoll-healy" else w)
        if self.operator_type == "driscoll-healy":
            return mix_per_degree(weight, u)
        if self.operator_type == "diagonal":
            return jnp.einsum("oilm,bilm->bolm", as_complex(weight), u, precision=HIGHEST)
        return jnp.einsum("oilnm,bilm->boln", as_complex(weight), u, precision=HIGHEST)


def complex_relu(re: jax.Array, im: jax.Array, mode: str, bias: jax.Array | float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Rectifiers of complex numbers z = re + i im.

    Args:
        re: Real parts.
        im: Imaginary parts.
        mode: ``"real"``: max(0, Re z) + i Im z. ``"cartesian"``: both parts rectified.
            ``"modulus"``: max(0, |z| + b) z / |z| (modReLU, Arjovsky et al. 2016).
            ``"halfplane"``: z where 0 <= arg z - b < pi/2, else 0 (zReLU, Guberman 2016).
        bias: b, broadcast against the parts, of the last two.

    Returns:
        (re, im) of the result.
    """
    if mode == "real":
        return jax.nn.relu(re), im
    if mode == "cartesian":
        return jax.nn.relu(re), jax.nn.relu(im)
    if mode == "modulus":
        square = re * re + im * im
        positive = square > 0.0
        modulus = jnp.sqrt(jnp.where(positive, square, 1.0))  # safe: no NaN gradient at z = 0
        factor = jnp.where(positive, jax.nn.relu(modulus + bias) / modulus, 0.0)
        return factor * re, factor * im
    inside = jnp.mod(jnp.arctan2(im, re) - bias, 2.0 * math.pi) < 0.5 * math.pi
    return jnp.where(inside, re, 0.0), jnp.where(inside, im, 0.0)


class SpectralMLP(nnx.Module):
    """Non-linear filter: an MLP over channels, with complex weights, on every mode.

    Args:
        channels: Input and output channels.
        modes: (lmax, mmax).
        operator_type: ``"diagonal"``: one MLP for all modes, weights (out, in);
            ``"l-dependant"``: one per degree, weights (l, out, in). Stored real, trailing axis 2.
        width: Hidden channels.
        hidden_layers: Number of hidden layers.
        activation: Mode of `complex_relu`.
        bias: Complex biases on the hidden layers.
        gain: Of the output map; hidden ones have gain 2.
        dtype: Of the weights.
        rngs: Random streams.
    """

    def __init__(
        self,
        channels: int,
        modes: tuple[int, int],
        *,
        operator_type: str,
        width: int,
        hidden_layers: int,
        activation: str,
        bias: bool,
        gain: float,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        degrees = (modes[0],) if operator_type == "l-dependant" else ()
        hidden, current = [], channels
        for _ in range(hidden_layers):
            std = math.sqrt(2.0 / current)
            hidden.append(ComplexParam(complex_normal(rngs, (*degrees, width, current), std, dtype)))
            current = width
        self.hidden = nnx.List(hidden)
        self.biases = nnx.List([ComplexParam(jnp.zeros((width, 2), dtype)) for _ in hidden]) if bias else None
        self.thresholds = (
            nnx.List([nnx.Param(jnp.zeros((width,), dtype)) for _ in hidden])
            if activation in ("modulus", "halfplane")
            else None
        )
        self.output = ComplexParam(complex_normal(rngs, (*degrees, channels, width), math.sqrt(gain / width), dtype))
        self.activation = activation
        self.operator_type = operator_type

    def __call__(self, u: jax.Array) -> jax.Array:
        """Map coefficients (batch, channels, lmax, mmax) to the same shape."""
        batch, channels, lmax, mmax = u.shape
        if self.operator_type == "l-dependant":
            columns = u.transpose(2, 1, 0, 3).reshape(lmax, channels, batch * mmax)
        else:
            columns = u.reshape(batch, channels, lmax * mmax)
        z = split(columns, 1)
        for i, weight in enumerate(self.hidden):
            z = _complex_matmul(weight[...], z)
            if self.biases is not None:
                z = z + jnp.concatenate(jnp.unstack(self.biases[i][...], axis=-1))[:, None]
            threshold = 0.0 if self.thresholds is None else self.thresholds[i][...][:, None]
            re, im = jnp.split(z, 2, 1)
            z = jnp.concatenate(complex_relu(re, im, self.activation, threshold), 1)
        v = merge(_complex_matmul(self.output[...], z), 1)
        if self.operator_type == "l-dependant":
            return v.reshape(lmax, channels, batch, mmax).transpose(2, 1, 0, 3)
        return v.reshape(batch, channels, lmax, mmax)


def _complex_matmul(weight: jax.Array, z: jax.Array) -> jax.Array:
    matrix = real_block(weight)
    return jnp.matmul(jnp.broadcast_to(matrix, (len(z), *matrix.shape[-2:])), z, precision=HIGHEST)

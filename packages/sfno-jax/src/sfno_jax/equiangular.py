r"""Exact analysis on equiangular grids up to degree nlat - 2.

Clenshaw-Curtis weights integrate polynomials up to degree nlat - 1, but an analysis integrates products F_m(theta)
Pbar_lm(theta) of twice the degree, so they are exact only for lmax <= (nlat+1)//2. Yet nlat samples determine F_m
completely: continued over the poles,

    F_m(2 pi - theta) = (-1)^m F_m(theta)        (scalar; one more sign for vector components)

it is a trigonometric polynomial of 2 (nlat-1) samples, and so is Pbar_lm. The integral of their product against
|sin(theta)| over the circle is a convolution in Fourier space with the coefficients of |sin(theta)|, (2/pi)/(1-k^2)
for even k. Multiplying F_m by |sin(theta)| on a grid twice as fine and truncating again gives values whose plain sum
against Pbar_lm is the exact integral:

    int_0^pi F_m Pbar_lm sin(theta) dtheta = sum_k exact_weighting(F)_m(theta_k) Pbar_lm(theta_k),    l <= nlat - 2

(the idea of McEwen & Wiaux, IEEE TSP 59 (2011) 5876, for grids with both poles).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["exact_weighting"]


def exact_weighting(fourier: jax.Array, *, vector: bool = False) -> jax.Array:
    """Multiply longitude spectra by the exact quadrature operator of an equiangular grid.

    Args:
        fourier: Fourier coefficients along longitude, complex, shape (..., nlat, nfreq); rows
            theta_k = pi k / (nlat - 1).
        vector: The spectra are those of a vector's components, whose continuation over the poles has the opposite sign.

    Returns:
        Array of the same shape whose sum over rows against Pbar_lm (or, for a vector, its derivatives) is the exact
        integral.
    """
    nlat, nfreq = fourier.shape[-2:]
    period = 2 * (nlat - 1)
    sign = _pole_sign(nfreq, vector).astype(fourier.real.dtype)
    f = jnp.swapaxes(fourier, -1, -2)  # (..., m, theta): FFTs run along the last axis
    circle = jnp.concatenate([f, sign[:, None] * f[..., -2:0:-1]], axis=-1)
    spectrum = jnp.fft.fft(circle)
    # Zero-pad to twice the resolution; the Nyquist coefficient belongs half to each end.
    half = spectrum[..., nlat - 1 : nlat] / 2
    zeros = jnp.zeros((*spectrum.shape[:-1], period - 1), spectrum.dtype)
    fine = jnp.concatenate([spectrum[..., : nlat - 1], half, zeros, half, spectrum[..., nlat:]], axis=-1)
    fine = jnp.fft.fft(jnp.fft.ifft(fine) * _absolute_sine(nlat).astype(fourier.real.dtype))
    kept = jnp.concatenate([fine[..., : nlat - 1], jnp.zeros_like(half), fine[..., 2 * period - (nlat - 2) :]], axis=-1)
    weighted = jnp.fft.ifft(kept)[..., :nlat] * _fold(nlat).astype(fourier.real.dtype)
    return jnp.swapaxes(weighted, -1, -2)


def _pole_sign(nfreq: int, vector: bool) -> np.ndarray:
    return np.where((np.arange(nfreq) + vector) % 2, -1.0, 1.0)


def _absolute_sine(nlat: int) -> np.ndarray:
    """|sin(theta)| band-limited to |k| <= 2 nlat - 3, on 4 (nlat-1) points.

    What lies beyond cannot reach the coefficients that are kept.
    """
    points = 4 * (nlat - 1)
    k = np.arange(0, 2 * nlat - 2, 2)
    coefficients = np.zeros(points // 2 + 1)
    coefficients[k] = (2 / np.pi) / (1 - k.astype(float) ** 2)
    return np.fft.irfft(coefficients, points) * points


def _fold(nlat: int) -> np.ndarray:
    """From the circle to the meridian: interior points are met twice; pi / period is the step of the half circle."""
    weight = np.full(nlat, 2.0)
    weight[[0, -1]] = 1.0
    # Upsampling by zero padding keeps the unnormalised FFT sum, so values on the fine grid come out halved by ifft's
    # 1/(2 period); truncating back doubles them: the two cancel against this factor of the step only.
    return weight * np.pi / (2 * (nlat - 1))

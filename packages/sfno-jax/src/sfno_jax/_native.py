"""Legendre stages by the C++ kernel in ``csrc``, called from XLA through its foreign function interface.

    analysis    F (..., nlat, nfreq)  ->  a (..., lmax, mmax):   a_lm = d_l s_m sum_k w_k Pbar_lm(x_k) F_m(k)
    synthesis   a (..., lmax, mmax)   ->  G (..., nlat, nfreq):  G_m(k) = w_k sum_l d_l s_m Pbar_lm(x_k) a_lm

with weights w, degree scale d, and s_m = (-1)^m under the Condon-Shortley phase, all from the plan. Each is the exact
transpose of the other, so both differentiate to any order in both modes. The vector stages do the same with
D = dPbar/dtheta and E = m Pbar / sin(theta) on (..., 2, nlat, nfreq) = (V_theta, V_lambda) and (..., 2, lmax, mmax) =
(s, t):

    analysis    s = sum w (D V_theta - i E V_lambda),   t = sum w (-D V_lambda - i E V_theta)
    synthesis   V_theta = sum (s D + i t E),            V_lambda = sum (i s E - t D)

``conjugate`` turns i into -i: the transpose of one is the conjugate of the other.

The recurrence runs in float64 whatever the data's dtype, on the fly, so there is no table of O(L^3) and no limit by
underflow. Importing this module loads nothing; the extension is loaded and its handlers are registered at first use.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ._linear import transpose_pair
from ._plan import LegendrePlan

__all__ = [
    "available",
    "isa",
    "legendre_analysis",
    "legendre_synthesis",
    "register",
    "vector_analysis",
    "vector_synthesis",
    "why_unavailable",
]

_SYMMETRIC = 1e-12


@functools.cache
def _extension() -> tuple[Any, str | None]:
    try:
        from . import _sfno_native  # type: ignore[attr-defined, unused-ignore]
    except ImportError as error:
        return None, (
            f"the compiled module sfno_jax._sfno_native cannot be loaded ({error}). It is built when a C++17 compiler "
            "is there at install time; install one and reinstall sfno-jax"
        )
    return _sfno_native, None


def available() -> bool:
    """Whether the C++ kernel is built and loads here."""
    return _extension()[0] is not None


def why_unavailable() -> str | None:
    """Why `available` is false, or None."""
    return _extension()[1]


def isa() -> str:
    """Instruction set of the kernel in use: ``v4`` (AVX-512), ``v3`` (AVX2), ``v2`` (SSE4.2) or ``generic``.

    The environment variable SFNO_JAX_ISA, read at first use, asks for a narrower one than the processor offers.

    Raises:
        RuntimeError: The kernel is not available.
    """
    return str(_loaded().isa())


def _loaded() -> Any:
    module, reason = _extension()
    if module is None:
        raise RuntimeError(f"The native kernel is not available: {reason}.")
    return module


@functools.cache
def register() -> None:
    """Register the handlers with XLA, once; the stages call it themselves.

    Raises:
        RuntimeError: The kernel is not available.
    """
    for name, handler in _loaded().handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


@functools.lru_cache(maxsize=256)
def _check_symmetric(plan: LegendrePlan) -> None:
    x = plan.cos_colatitude
    if not (np.isfinite(x).all() and (np.diff(x) < 0).all() and np.abs(x + x[::-1]).max(initial=0) <= _SYMMETRIC):
        raise ValueError(
            "The native kernel needs rows from north to south, symmetric about the equator to 1e-12; "
            "cos_colatitude is not. Use backend='einsum'."
        )


def _call(kind: str, x: jax.Array, plan: LegendrePlan, *, vector: bool, conjugate: bool = False) -> jax.Array:
    register()
    _check_symmetric(plan)
    components = (2,) if vector else ()
    grid, spectral = (*components, plan.nlat, plan.nfreq), (*components, plan.lmax, plan.mmax)
    core, result = (grid, spectral) if kind == "analysis" else (spectral, grid)
    if x.shape[-len(core) :] != core or x.dtype not in (np.complex64, np.complex128):
        raise ValueError(f"The {kind} got {x.dtype} of shape {x.shape}; expected complex (..., {str(core)[1:-1]}).")
    out = jax.ShapeDtypeStruct(x.shape[: -len(core)] + result, x.dtype)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(f"sfno_jax_{'vector' if vector else 'legendre'}_{kind}", out, vmap_method="broadcast_all")
    y: jax.Array = call(
        x,
        cos_colatitude=plan.cos_colatitude,
        sin_colatitude=plan.sin_colatitude,
        weights=plan.weights,
        degree_scale=plan.degree_scale,
        lmax=np.int64(plan.lmax),
        mmax=np.int64(plan.mmax),
        nfreq=np.int64(plan.nfreq),
        csphase=np.int64(plan.csphase),
        conjugate=np.int64(conjugate),
    )
    return y


def _analysis(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("analysis", x, plan, vector=False)


def _synthesis(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("synthesis", x, plan, vector=False)


def _vector_analysis(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("analysis", x, plan, vector=True)


def _vector_synthesis(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("synthesis", x, plan, vector=True)


def _vector_analysis_conjugate(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("analysis", x, plan, vector=True, conjugate=True)


def _vector_synthesis_conjugate(x: jax.Array, plan: LegendrePlan) -> jax.Array:
    return _call("synthesis", x, plan, vector=True, conjugate=True)


_ANALYSIS, _SYNTHESIS = transpose_pair("native_legendre_analysis", _analysis, "native_legendre_synthesis", _synthesis)
_VECTOR_ANALYSIS, _VECTOR_SYNTHESIS_CONJUGATE = transpose_pair(
    "native_vector_analysis", _vector_analysis, "native_vector_synthesis_conj", _vector_synthesis_conjugate
)
_VECTOR_SYNTHESIS, _VECTOR_ANALYSIS_CONJUGATE = transpose_pair(
    "native_vector_synthesis", _vector_synthesis, "native_vector_analysis_conj", _vector_analysis_conjugate
)


def legendre_analysis(fourier: jax.Array, plan: LegendrePlan) -> jax.Array:
    """Scalar analysis.

    Args:
        fourier: (..., nlat, nfreq) complex, unnormalised real FFT of each row.
        plan: Rows, weights and truncation.

    Returns:
        (..., lmax, mmax) of the same dtype; entries with m > l or m >= nfreq are zero.

    Raises:
        RuntimeError: The kernel is not available.
        ValueError: Wrong shape or dtype, or rows that are not symmetric about the equator.
    """
    return _ANALYSIS(fourier, plan)


def legendre_synthesis(coefficients: jax.Array, plan: LegendrePlan) -> jax.Array:
    """Scalar synthesis, (..., lmax, mmax) to (..., nlat, nfreq); the transpose of `legendre_analysis`.

    Columns m >= mmax are zero; entries with m > l are ignored. Raises like `legendre_analysis`.
    """
    return _SYNTHESIS(coefficients, plan)


def vector_analysis(fourier: jax.Array, plan: LegendrePlan, conjugate: bool = False) -> jax.Array:
    """Vector analysis, (..., 2, nlat, nfreq) to (..., 2, lmax, mmax); raises like `legendre_analysis`."""
    return (_VECTOR_ANALYSIS_CONJUGATE if conjugate else _VECTOR_ANALYSIS)(fourier, plan)


def vector_synthesis(coefficients: jax.Array, plan: LegendrePlan, conjugate: bool = False) -> jax.Array:
    """Vector synthesis, (..., 2, lmax, mmax) to (..., 2, nlat, nfreq); raises like `legendre_analysis`."""
    return (_VECTOR_SYNTHESIS_CONJUGATE if conjugate else _VECTOR_SYNTHESIS)(coefficients, plan)

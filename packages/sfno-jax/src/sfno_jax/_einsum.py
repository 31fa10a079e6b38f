r"""Legendre stages in plain JAX, folded about the equator, for every platform without the C++ kernel.

Pbar_lm is even or odd in x = cos(theta) as l - m is even or odd, so a row of the northern half and its mirror image
share their table. With F+- = F(north) +- F(south), degrees of parity p = l mod 2 meet F+ where m has the same parity
and F- where it has not:

    a_{2k+p, m} = sum_theta T_p[m, k, theta] G_p[m, theta],    G_p = F+ if (m - p) even else F-

one batched matrix product over (p, m) with half the flops and memory of the plain table. The derivative dPbar/dtheta
has the opposite parity. Products run at `precision="highest"`: TF32 in this sum is what made other libraries' results
wrong on GPUs.

The table T costs O(L^3) memory. `analysis_recurrence` and `synthesis_recurrence` build it block by block instead, in
float64 whatever the data's dtype, inside a `lax.scan`, so that their memory is O(L^2) and no constant of that size is
captured by a trace.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from ._linear import transpose_pair
from ._plan import LegendrePlan
from .legendre import associated_legendre, associated_legendre_derivatives

__all__ = [
    "analysis_recurrence",
    "analysis_table",
    "folded_table",
    "synthesis_recurrence",
    "synthesis_table",
    "table_bytes",
    "vector_analysis_recurrence",
    "vector_analysis_table",
    "vector_synthesis_recurrence",
    "vector_synthesis_table",
]

_BLOCK = 8  # degrees per scan step: an even number, so that a block starts with an even degree
_BIG = 2.0**400


def _half(nlat: int) -> int:
    return (nlat + 1) // 2


def table_bytes(plan: LegendrePlan, vector: bool, itemsize: int) -> int:
    """Memory [bytes] of the folded table of ``plan``."""
    return 2 * plan.mmax * ((plan.lmax + 1) // 2) * _half(plan.nlat) * itemsize * (2 if vector else 1)


def folded_table(plan: LegendrePlan, vector: bool, dtype: np.dtype) -> NDArray[np.floating]:
    """Table of shape (2, mmax, ceil(lmax/2), ceil(nlat/2)), scaled per degree.

    For vectors (2, 2, ...): [0] dPbar/dtheta, [1] m Pbar/sin(theta).
    """
    x = plan.cos_colatitude[: _half(plan.nlat)]
    build = associated_legendre_derivatives if vector else associated_legendre
    full = build(plan.lmax, plan.mmax, x, csphase=plan.csphase) * plan.degree_scale[:, None]
    if plan.lmax % 2:
        full = np.concatenate([full, np.zeros_like(full[..., :1, :])], axis=-2)
    split = full.reshape(*full.shape[:-2], -1, 2, full.shape[-1])  # (..., m, k, p, theta)
    return np.ascontiguousarray(np.moveaxis(split, -2, -4), dtype=dtype)


# --- folding: from (..., nlat, nfreq) to real columns (2, m, theta, c) and back ---


def _fold(fourier: jax.Array, plan: LegendrePlan, flip: bool = False) -> jax.Array:
    """Weighted G_p of the docstring as (p, m, theta, columns); ``flip`` exchanges the parities (for dPbar/dtheta)."""
    dtype = fourier.real.dtype
    nlat, half = plan.nlat, _half(plan.nlat)
    orders = min(plan.mmax, plan.nfreq)
    f = fourier[..., :orders] * jnp.asarray(plan.weights, dtype)[:, None]
    f = jnp.pad(f, [(0, 0)] * (f.ndim - 1) + [(0, plan.mmax - orders)])
    f = f.reshape(-1, nlat, plan.mmax)
    f = jnp.concatenate([f.real, f.imag]).transpose(2, 1, 0)  # (m, theta, columns)
    north, south = f[:, :half], f[:, ::-1][:, :half]
    if nlat % 2:  # the equator is its own mirror image: count it once
        south = south.at[:, -1].set(0)
    plus, minus = north + south, north - south
    even = (np.arange(plan.mmax) % 2 == 0)[:, None, None] ^ flip
    return jnp.stack([jnp.where(even, plus, minus), jnp.where(even, minus, plus)])


def _unfold(columns: jax.Array, plan: LegendrePlan, batch: tuple[int, ...], flip: bool = False) -> jax.Array:
    """Transpose of `_fold`: from (p, m, theta, columns) to (*batch, nlat, nfreq)."""
    half = _half(plan.nlat)
    even = (np.arange(plan.mmax) % 2 == 0)[:, None, None] ^ flip
    plus, minus = jnp.where(even, columns[0], columns[1]), jnp.where(even, columns[1], columns[0])
    south = (plus - minus)[:, : plan.nlat - half][:, ::-1]
    f = jnp.concatenate([plus + minus, south], axis=1).transpose(2, 1, 0)
    n = f.shape[0] // 2
    f = lax.complex(f[:n], f[n:]) * jnp.asarray(plan.weights, columns.dtype)[:, None]
    orders = min(plan.mmax, plan.nfreq)
    f = jnp.pad(f[..., :orders], [(0, 0), (0, 0), (0, plan.nfreq - orders)])
    return f.reshape(*batch, plan.nlat, plan.nfreq)


def _pack(products: jax.Array, plan: LegendrePlan, batch: tuple[int, ...]) -> jax.Array:
    """From (p, m, k, columns) to complex (*batch, lmax, mmax)."""
    a = products.transpose(3, 2, 0, 1).reshape(products.shape[3], -1, plan.mmax)[:, : plan.lmax]
    n = a.shape[0] // 2
    return lax.complex(a[:n], a[n:]).reshape(*batch, plan.lmax, plan.mmax)


def _unpack(coeffs: jax.Array, plan: LegendrePlan) -> jax.Array:
    """From complex (..., lmax, mmax) to real columns (p, m, k, columns)."""
    a = coeffs.reshape(-1, plan.lmax, plan.mmax)
    a = jnp.concatenate([a.real, a.imag])
    a = jnp.pad(a, [(0, 0), (0, plan.lmax % 2), (0, 0)])
    return a.reshape(a.shape[0], -1, 2, plan.mmax).transpose(2, 3, 1, 0)


def _sum_latitudes(table: jax.Array, g: jax.Array) -> jax.Array:
    return jnp.einsum("pmkt,pmtc->pmkc", table, g, precision="highest")


def _sum_degrees(table: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.einsum("pmkt,pmkc->pmtc", table, a, precision="highest")


# --- with a table ---


def analysis_table(fourier: jax.Array, table: jax.Array, plan: LegendrePlan) -> jax.Array:
    """a_lm = sum_k w_k Pbar_lm(x_k) F_m(x_k): (..., nlat, nfreq) to (..., lmax, mmax)."""
    return _pack(_sum_latitudes(table, _fold(fourier, plan)), plan, fourier.shape[:-2])


def synthesis_table(coeffs: jax.Array, table: jax.Array, plan: LegendrePlan) -> jax.Array:
    """G_m(x_k) = w_k sum_l Pbar_lm(x_k) a_lm: (..., lmax, mmax) to (..., nlat, nfreq)."""
    return _unfold(_sum_degrees(table, _unpack(coeffs, plan)), plan, coeffs.shape[:-2])


def _as_vector(
    d_theta: jax.Array, d_lambda: jax.Array, e_theta: jax.Array, e_lambda: jax.Array, i: complex
) -> jax.Array:
    """(s, t) = (D V_theta - i E V_lambda, -D V_lambda - i E V_theta); with i -> -i, (V_theta, V_lambda) from (s, t)."""
    return jnp.stack([d_theta - i * e_lambda, -d_lambda - i * e_theta], axis=-3)


def vector_analysis_table(vector: jax.Array, table: jax.Array, plan: LegendrePlan) -> jax.Array:
    """Spectra (V_theta, V_lambda) (..., 2, nlat, nfreq) to unnormalised (s, t) (..., 2, lmax, mmax)."""
    batch = vector.shape[:-2]
    d = _pack(_sum_latitudes(table[0], _fold(vector, plan, flip=True)), plan, batch)
    e = _pack(_sum_latitudes(table[1], _fold(vector, plan)), plan, batch)
    return _as_vector(d[..., 0, :, :], d[..., 1, :, :], e[..., 0, :, :], e[..., 1, :, :], 1j)


def vector_synthesis_table(coeffs: jax.Array, table: jax.Array, plan: LegendrePlan) -> jax.Array:
    """(spheroidal, toroidal) coefficients (..., 2, lmax, mmax) to (V_theta, V_lambda) spectra (..., 2, nlat, nfreq)."""
    batch = coeffs.shape[:-2]
    a = _unpack(coeffs, plan)
    d = _unfold(_sum_degrees(table[0], a), plan, batch, flip=True)
    e = _unfold(_sum_degrees(table[1], a), plan, batch)
    return _as_vector(d[..., 0, :, :], d[..., 1, :, :], e[..., 0, :, :], e[..., 1, :, :], -1j)


# --- by recurrence ---

_State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _start(plan: LegendrePlan, orders: int) -> _State:
    half = _half(plan.nlat)
    zeros = jnp.zeros((orders, half), jnp.float64)
    seed = jnp.full(half, 1 / np.sqrt(4 * np.pi), jnp.float64)
    return zeros, zeros, jnp.zeros((orders, half), jnp.int32), seed, jnp.zeros(half, jnp.int32)


def _next_degree(state: _State, degree: jax.Array, x: jax.Array, sine: jax.Array) -> _State:
    """Advance all orders from degree - 1 to ``degree`` (recurrence of `sfno_jax.legendre`)."""
    previous, current, exponent, seed, seed_exponent = state
    m = jnp.arange(current.shape[0], dtype=jnp.float64)[:, None]
    l = degree.astype(jnp.float64)
    below = m < l
    a = jnp.where(below, jnp.sqrt((4 * l**2 - 1) / jnp.where(below, l**2 - m**2, 1)), 0)
    b = jnp.sqrt(jnp.maximum((l - 1) ** 2 - m**2, 0) / jnp.abs(4 * (l - 1) ** 2 - 1))
    grown = a * (x * current - b * previous)
    ratio = jnp.where(l > 0, jnp.sqrt((2 * l + 1) / jnp.maximum(2 * l, 1)) * sine, 1.0)
    seed = seed * ratio
    small = (jnp.abs(seed) < _BIG**-0.5) & (seed != 0)
    seed, seed_exponent = jnp.where(small, seed * _BIG, seed), seed_exponent - small
    diagonal = m == l
    return current, jnp.where(diagonal, seed, grown), jnp.where(diagonal, seed_exponent, exponent), seed, seed_exponent


def _rescale(state: _State) -> _State:
    previous, current, exponent, seed, seed_exponent = state
    large = (jnp.abs(current) > _BIG**0.5) & (exponent < 0)
    scale = jnp.where(large, 1 / _BIG, 1.0)
    return previous * scale, current * scale, exponent + large, seed, seed_exponent


def _scalar_block(plan: LegendrePlan, state: _State, start: jax.Array) -> tuple[_State, jax.Array]:
    """The next `_BLOCK` degrees as a block of shape (block, mmax, half), without degree scale."""
    x = jnp.asarray(plan.cos_colatitude[: _half(plan.nlat)], jnp.float64)
    sine = jnp.sqrt((1 - x) * (1 + x))

    def advance(state: _State, degree: jax.Array) -> tuple[_State, jax.Array]:
        state = _next_degree(state, degree, x, sine)
        return state, jnp.where(state[2] == 0, state[1], 0.0)

    state, rows = lax.scan(advance, state, start + jnp.arange(_BLOCK, dtype=jnp.int32))
    return _rescale(state), rows


def _vector_block(plan: LegendrePlan, state: _State, start: jax.Array) -> tuple[_State, jax.Array]:
    """The next degrees of (dPbar/dtheta, m Pbar/sin theta), shape (2, block, mmax, half).

    The state carries one order more than mmax, and no degree ahead is needed, since also

    m Pbar_lm/sin = 1/2 sqrt((2l+1)/(2l-1)) [sqrt((l+m)(l+m-1)) Pbar_{l-1,m-1} + sqrt((l-m)(l-m-1)) Pbar_{l-1,m+1}].
    """
    before = jnp.where(state[2] == 0, state[1], 0.0)  # degree start - 1
    state, p = _scalar_block(plan, state, start)
    lower_degree = jnp.concatenate([before[None], p[:-1]])
    m = jnp.arange(plan.mmax, dtype=jnp.float64)[:, None]
    l = (start + jnp.arange(_BLOCK)).astype(jnp.float64)[:, None, None]
    inside = (m <= l) & (l > 0)

    def root(z: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.maximum(z, 0))

    def neighbours(q: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.pad(q, [(0, 0), (1, 0), (0, 0)])[:, : plan.mmax], q[:, 1 : plan.mmax + 1]

    below, above = neighbours(p)
    zonal = m == 0
    d = jnp.where(
        zonal,
        -root(l * (l + 1)) * above,
        0.5 * (root((l + m) * (l - m + 1)) * below - root((l - m) * (l + m + 1)) * above),
    )
    below, above = neighbours(lower_degree)
    e = (
        0.5
        * root((2 * l + 1) / jnp.maximum(2 * l - 1, 1))
        * (root((l + m) * (l + m - 1)) * below + root((l - m) * (l - m - 1)) * above)
    )
    return state, jnp.stack([jnp.where(inside, d, 0), jnp.where(inside & ~zonal, e, 0)])


def _scale_block(plan: LegendrePlan, block: jax.Array, start: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Apply degree scale and phase; from (..., block, m, theta) to (..., p, m, k, theta) in the data's dtype."""
    padded = np.zeros(-(-plan.lmax // _BLOCK) * _BLOCK)
    padded[: plan.lmax] = plan.degree_scale
    scale = lax.dynamic_slice_in_dim(jnp.asarray(padded, jnp.float64), start, _BLOCK)
    phase = np.where(np.arange(plan.mmax) % 2, -1.0, 1.0) if plan.csphase else np.ones(plan.mmax)
    block = block[..., : plan.mmax, :] * scale[:, None, None] * phase[:, None]
    block = block.reshape(*block.shape[:-3], _BLOCK // 2, 2, plan.mmax, block.shape[-1])
    return jnp.moveaxis(block, -4, -2).astype(dtype)


def _starts(plan: LegendrePlan) -> jax.Array:
    return jnp.arange(0, plan.lmax, _BLOCK, dtype=jnp.int32)


def _join_blocks(stacked: jax.Array, plan: LegendrePlan) -> jax.Array:
    """(blocks, p, m, k, c) to (p, m, K, c) with K = ceil(lmax/2)."""
    joined = jnp.moveaxis(stacked, 0, 2)
    joined = joined.reshape(*joined.shape[:2], -1, joined.shape[-1])
    return joined[:, :, : (plan.lmax + 1) // 2]


def _split_blocks(a: jax.Array, plan: LegendrePlan) -> jax.Array:
    """(p, m, K, c) to (blocks, p, m, k, c)."""
    blocks = len(_starts(plan))
    a = jnp.pad(a, [(0, 0), (0, 0), (0, blocks * _BLOCK // 2 - a.shape[2]), (0, 0)])
    return jnp.moveaxis(a.reshape(2, plan.mmax, blocks, _BLOCK // 2, -1), 2, 0)


def _analysis(fourier: jax.Array, plan: LegendrePlan) -> jax.Array:
    with jax.enable_x64(True):
        g = _fold(fourier, plan)

        def step(state: _State, start: jax.Array) -> tuple[_State, jax.Array]:
            state, block = _scalar_block(plan, state, start)
            return state, _sum_latitudes(_scale_block(plan, block, start, g.dtype), g)

        _, products = lax.scan(step, _start(plan, plan.mmax), _starts(plan))
        return _pack(_join_blocks(products, plan), plan, fourier.shape[:-2])


def _synthesis(coeffs: jax.Array, plan: LegendrePlan) -> jax.Array:
    with jax.enable_x64(True):
        a = _split_blocks(_unpack(coeffs, plan), plan)

        def step(
            carry: tuple[_State, jax.Array], inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[_State, jax.Array], None]:
            (state, total), (start, part) = carry, inputs
            state, block = _scalar_block(plan, state, start)
            return (state, total + _sum_degrees(_scale_block(plan, block, start, part.dtype), part)), None

        total = jnp.zeros((2, plan.mmax, _half(plan.nlat), a.shape[-1]), a.dtype)
        (_, total), _ = lax.scan(step, (_start(plan, plan.mmax), total), (_starts(plan), a))
        return _unfold(total, plan, coeffs.shape[:-2])


def _vector_analysis(vector: jax.Array, plan: LegendrePlan, sign: float) -> jax.Array:
    with jax.enable_x64(True):
        g = jnp.stack([_fold(vector, plan, flip=True), _fold(vector, plan)])

        def step(state: _State, start: jax.Array) -> tuple[_State, jax.Array]:
            state, block = _vector_block(plan, state, start)
            return state, jax.vmap(_sum_latitudes)(_scale_block(plan, block, start, g.dtype), g)

        _, products = lax.scan(step, _start(plan, plan.mmax + 1), _starts(plan))
        d, e = (_pack(_join_blocks(products[:, i], plan), plan, vector.shape[:-2]) for i in range(2))
        return _as_vector(d[..., 0, :, :], d[..., 1, :, :], e[..., 0, :, :], e[..., 1, :, :], sign * 1j)


def _vector_synthesis(coeffs: jax.Array, plan: LegendrePlan, sign: float) -> jax.Array:
    with jax.enable_x64(True):
        a = _split_blocks(_unpack(coeffs, plan), plan)

        def step(
            carry: tuple[_State, jax.Array], inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[_State, jax.Array], None]:
            (state, total), (start, part) = carry, inputs
            state, block = _vector_block(plan, state, start)
            tables = _scale_block(plan, block, start, part.dtype)
            return (state, total + jax.vmap(_sum_degrees, (0, None))(tables, part)), None

        total = jnp.zeros((2, 2, plan.mmax, _half(plan.nlat), a.shape[-1]), a.dtype)
        (_, total), _ = lax.scan(step, (_start(plan, plan.mmax + 1), total), (_starts(plan), a))
        d, e = _unfold(total[0], plan, coeffs.shape[:-2], flip=True), _unfold(total[1], plan, coeffs.shape[:-2])
        return _as_vector(d[..., 0, :, :], d[..., 1, :, :], e[..., 0, :, :], e[..., 1, :, :], -sign * 1j)


# The unconjugated transpose of the vector analysis is a synthesis with i -> -i, and the other way round.
analysis_recurrence, synthesis_recurrence = transpose_pair(
    "legendre_analysis_recurrence", _analysis, "legendre_synthesis_recurrence", _synthesis
)
vector_analysis_recurrence, _vector_synthesis_conjugate = transpose_pair(
    "legendre_vector_analysis_recurrence",
    lambda x, plan: _vector_analysis(x, plan, 1.0),
    "legendre_vector_synthesis_recurrence_conjugate",
    lambda x, plan: _vector_synthesis(x, plan, -1.0),
)
vector_synthesis_recurrence, _vector_analysis_conjugate = transpose_pair(
    "legendre_vector_synthesis_recurrence",
    lambda x, plan: _vector_synthesis(x, plan, 1.0),
    "legendre_vector_analysis_recurrence_conjugate",
    lambda x, plan: _vector_analysis(x, plan, -1.0),
)

r"""Transforms of many channels to packed coefficients and back, by C++ kernels.

What a spherical convolution needs between two fields: the FFT, the Legendre sums and the mixing of channels work on
one layout, in which channels are innermost, so that nothing is transposed and the half m > l of the rectangle is
never touched. A field is (batch, channels, nlat, nlon); packed coefficients are real,

    U (modes, batch, 2, channels),    modes (l, m), m <= min(l, mmax - 1), by l, then m; 2 = (Re, Im).

    analysis     a_lm = d_l s_m o_m sum_k w_k Pbar_lm(x_k) sum_j f(k, j) exp(-2 pi i j m / nlon)
    synthesis    f(k, j) = w_k Re sum_lm d_l s_m o_m Pbar_lm(x_k) a_lm exp(2 pi i j m / nlon)

with weights w, degree scale d and phase s_m of a `LegendrePlan`, and a factor o_m per order. As real maps each is the
transpose of the other, whence both differentiate to any order in both modes.

A residual network needs A x beside x, and the transpose of that map adds a field to a synthesis:

    x -> (A x, x),    (u, r) -> A^T u + r,

again a pair of transposes. The sum is written over r where nothing else needs it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from . import _native
from ._linear import transpose_pair
from ._plan import LegendrePlan
from ._residual import residual_pair

__all__ = [
    "CHANNEL_BLOCK",
    "PackedPlan",
    "mode_count",
    "packed_analysis",
    "packed_analysis_beside",
    "packed_synthesis",
    "packed_synthesis_onto",
    "supports",
]

CHANNEL_BLOCK = 16  # channels come in whole registers of any instruction set
_RADICES = (2, 3, 5, 7)


def supports(nlon: int, channels: int) -> bool:
    """Whether the kernels do this number of longitudes (no prime factor above 7) and of channels (a multiple of 16)."""
    for radix in _RADICES:
        while nlon % radix == 0:
            nlon //= radix
    return nlon == 1 and channels % CHANNEL_BLOCK == 0 and _native.available()


def mode_count(lmax: int, mmax: int) -> int:
    """Number of modes (l, m) with l < lmax and m <= min(l, mmax - 1)."""
    return sum(min(l + 1, mmax) for l in range(lmax))


@dataclasses.dataclass(frozen=True)
class PackedPlan:
    """What the packed transforms need: `legendre`, with sines of its rows, and a factor per order.

    Attributes:
        legendre: Rows, weights and truncation.
        nlon: Number of longitudes, even.
        others: Factor of the orders but 0 and nlon / 2, which a real field holds once: 2 in a synthesis, for -m, and
            1 in an analysis.
    """

    legendre: LegendrePlan
    nlon: int
    others: float

    @property
    def order_scale(self) -> NDArray[np.float64]:
        """Factor per order, shape (mmax,)."""
        order = np.arange(self.legendre.mmax)
        return np.where((order == 0) | (2 * order == self.nlon), 1.0, self.others)


def _transform(kind: str, x: jax.Array, plan: PackedPlan, shape: tuple[int, ...], onto: jax.Array) -> jax.Array:
    _native.register()
    legendre = plan.legendre
    out = jax.ShapeDtypeStruct(shape, x.dtype)  # type: ignore[no-untyped-call]
    reused = {1: 0} if onto.size else None
    y: jax.Array = jax.ffi.ffi_call(f"sfno_jax_packed_{kind}", out, input_output_aliases=reused)(
        x,
        onto,
        cos_colatitude=legendre.cos_colatitude,
        sin_colatitude=legendre.sin_colatitude,
        weights=legendre.weights,
        degree_scale=legendre.degree_scale,
        order_scale=plan.order_scale,
        lmax=np.int64(legendre.lmax),
        mmax=np.int64(legendre.mmax),
        nlon=np.int64(plan.nlon),
        csphase=np.int64(legendre.csphase),
    )
    return y


# The kernels take fields as (batch, channels, points), like every other kernel of a block: reshapes between them then
# cancel, whereas XLA would copy a reshaped array rather than let a kernel write over it.
def _analysis(x: jax.Array, plan: PackedPlan) -> jax.Array:
    shape = (mode_count(plan.legendre.lmax, plan.legendre.mmax), x.shape[0], 2, x.shape[1])
    return _transform("analysis", x.reshape(*x.shape[:2], -1), plan, shape, jnp.zeros((0,), x.dtype))


def _synthesis(u: jax.Array, plan: PackedPlan) -> jax.Array:
    return _synthesis_onto(u, jnp.zeros((0,), u.dtype), plan)


def _synthesis_onto(u: jax.Array, field: jax.Array, plan: PackedPlan) -> jax.Array:
    (_, batch, _, channels), nlat = u.shape, plan.legendre.nlat
    flat = field.reshape(batch, channels, -1) if field.size else field
    y = _transform("synthesis", u, plan, (batch, channels, nlat * plan.nlon), flat)
    return y.reshape(batch, channels, nlat, plan.nlon)


_ANALYSIS, _SYNTHESIS = transpose_pair("packed_analysis", _analysis, "packed_synthesis", _synthesis, batch_axes=(0, 1))


_ANALYSIS_BESIDE, _SYNTHESIS_ONTO = residual_pair(
    "packed_analysis_beside", _ANALYSIS, "packed_synthesis_onto", _SYNTHESIS, _synthesis_onto
)


def packed_analysis(x: jax.Array, plan: PackedPlan) -> jax.Array:
    """(batch, channels, nlat, nlon) real to packed (modes, batch, 2, channels)."""
    return _ANALYSIS(x, plan)


def packed_analysis_beside(x: jax.Array, plan: PackedPlan) -> tuple[jax.Array, jax.Array]:
    """`packed_analysis` and the fields themselves."""
    return _ANALYSIS_BESIDE(x, plan)


def packed_synthesis(u: jax.Array, plan: PackedPlan) -> jax.Array:
    """Packed (modes, batch, 2, channels) to (batch, channels, nlat, nlon); the transpose of `packed_analysis`."""
    return _SYNTHESIS(u, plan)


def packed_synthesis_onto(u: jax.Array, field: jax.Array, plan: PackedPlan) -> jax.Array:
    """A field plus `packed_synthesis`; the transpose of `packed_analysis_beside`."""
    return _SYNTHESIS_ONTO(u, field, plan)

r"""Spherical convolution without unpacking the coefficients: the path of the plain SFNO on CPUs.

    y = S (W_l (A x)_lm),    A analysis, S synthesis, W_l a complex matrix over channels per degree,

by the kernels of `sfno_jax._packed`. It is the same map as transform, `mix_per_degree`, transform.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sfno_jax._packed import PackedPlan, packed_analysis_beside, packed_synthesis, supports
from sfno_jax._packed_product import mix
from sfno_jax.models.filters import LinearFilter, SpectralMLP
from sfno_jax.models.sphere import Analysis, Synthesis
from sfno_jax.transforms import InverseRealSHT, RealSHT, packed_plan

__all__ = ["packed_convolution", "packed_plans"]


def packed_plans(
    x: jax.Array, layer: LinearFilter | SpectralMLP, analysis: Analysis, synthesis: Synthesis
) -> tuple[PackedPlan, PackedPlan] | None:
    """Plans of analysis and synthesis where `packed_convolution` can do a filter, else None."""
    if not (isinstance(analysis, RealSHT) and isinstance(synthesis, InverseRealSHT) and x.ndim == 4):
        return None
    if not isinstance(layer, LinearFilter) or layer.separable or layer.operator_type != "driscoll-healy":
        return None
    if x.dtype != layer.weight[...].dtype or not all(supports(t.nlon, x.shape[1]) for t in (analysis, synthesis)):
        return None
    forward, inverse = packed_plan(analysis), packed_plan(synthesis)
    return None if forward is None or inverse is None else (forward, inverse)


def packed_convolution(
    x: jax.Array, layer: LinearFilter, plans: tuple[PackedPlan, PackedPlan], *, resample: bool
) -> tuple[jax.Array, jax.Array]:
    """Filter fields (batch, channels, nlat, nlon).

    Returns:
        Filtered fields and residual: x, or with `resample` x carried through both transforms.
    """
    forward, inverse = plans
    lmax, mmax = forward.legendre.lmax, forward.legendre.mmax
    weight = layer.weight[...]
    if layer.real:
        weight = jnp.stack([weight, jnp.zeros_like(weight)], -1)
    u, x = packed_analysis_beside(x, forward)
    v = mix(u, weight, lmax, mmax)
    if not resample:
        return packed_synthesis(v, inverse), x
    y, residual = jnp.split(packed_synthesis(jnp.concatenate([v, u], 1), inverse), 2)
    return y, residual

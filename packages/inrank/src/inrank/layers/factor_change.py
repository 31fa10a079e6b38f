"""Changes of basis of two factors, and what they mean for gradients and moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inrank.spectrum import product_svd

__all__ = ["FactorChange", "balanced"]

# Singular values below this part of the largest are zero: their directions keep V and get U = 0.
_NEGLIGIBLE = 1e-7


@dataclass(frozen=True)
class FactorChange:
    """How the factors of a layer were changed, for whatever is stored beside them (moments of an optimizer).

    With V' = G V and U' = U G^-1 the gradients become g_U' = g_U G^T and g_V' = G^-T g_V; so do first moments.

    Attributes:
        old_active: Directions before.
        new_active: Directions after.
        kept: Leading directions of the new factors that come from old ones; the others are fresh.
        u_map: (groups, kept, old_active): g_U' = g_U u_map^T; None: the first `kept` columns as they are.
        v_map: (groups, kept, old_active): g_V' = v_map g_V; None: the first `kept` rows as they are.
    """

    old_active: int
    new_active: int
    kept: int
    u_map: Tensor | None = None
    v_map: Tensor | None = None

    @property
    def added(self) -> int:
        """Fresh directions, the last ones."""
        return self.new_active - self.kept


def balanced(u: Tensor, v: Tensor, kept: int, new: int) -> tuple[Tensor, Tensor, FactorChange]:
    """The leading singular directions of U V with balanced factors U' = P sqrt(S), V' = sqrt(S) Q^T.

    Args:
        u: (groups, m, k).
        v: (groups, k, n).
        kept: Directions to keep.
        new: Directions there will be when fresh ones have been appended.

    Returns:
        U', V' and the change of basis.
    """
    svd = product_svd(u.double(), v.double())
    s = svd.s[..., :kept]
    alive = s > _NEGLIGIBLE * svd.s[..., :1]
    root = torch.where(alive, s, 1.0).sqrt()
    scale = torch.where(alive, root, 0.0)
    # G = S^(-1/2) P^T U on the kept directions: V' = G V, U' = U G^-1
    inverse = torch.where(alive, 1.0 / root, 0.0)
    u_map = inverse.unsqueeze(-1) * svd.core_left[..., :kept, :]
    v_map = inverse.unsqueeze(-1) * svd.core_right[..., :kept].mT
    # a direction without singular value keeps its row, or both factors would be zero and stay it
    length = torch.where(alive, root, torch.where(alive.any(-1, keepdim=True), root.mean(-1, keepdim=True), 1.0))
    left = svd.left[..., :kept] * scale.unsqueeze(-2)
    right = length.unsqueeze(-1) * svd.right[..., :kept, :]
    change = FactorChange(u.shape[-1], new, kept, u_map, v_map)
    return left.to(u.dtype), right.to(v.dtype), change

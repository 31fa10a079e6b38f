r"""A small factor L with L L^T = X X^T, from matrix products: what QR of X^T gives, in less time.

X X^T has the squares of X's singular values: in float32 values below 2e-4 of the largest would be noise. But errors
of a Cholesky factorization do not see the lengths of the rows of X (Demmel 1989; Higham, Accuracy and Stability of
Numerical Algorithms, theorem 10.6), only how near to dependent their directions are: with C = X X^T scaled to a
diagonal of ones and an error delta in it, L is off by a factor 1 + O(delta / lambda_min(C)), and its singular values
by O(delta / sqrt(lambda_min(C))) of the largest. So float32 will do where lambda_min(C) is above a bound, which a
second Cholesky factorization, of C minus the bound, says; where it is not, all is done in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gram_factor", "lower_gram"]

# The error delta of scaled Gram matrices in float32, measured over kinds of matrices (tests/test_gram_factor.py).
_DELTA = 7e-8

# Squared lengths of the longest row between which squares of float32 neither overflow nor, where it counts, underflow.
_RANGE = (1e-20, 1e30)

# X X^T is symmetric, so that blocks of its rows right of the diagonal can be left out.
_BLOCKS = 4
_SMALLEST_BLOCK = 32


def lower_gram(rows: Tensor) -> Tensor:
    """X X^T of X (..., k, n), right at and below the diagonal only; above it may be zero."""
    k = rows.shape[-2]
    block = max(_SMALLEST_BLOCK, -(-k // _BLOCKS))
    if k <= block:
        return rows @ rows.mT
    gram = rows.new_zeros(*rows.shape[:-1], k)
    for start in range(0, k, block):
        stop = min(start + block, k)
        gram[..., start:stop, :stop] = rows[..., start:stop, :] @ rows[..., :stop, :].mT
    return gram


def gram_factor(rows: Tensor, tolerance: float = 1e-6) -> Tensor:
    """L (..., k, k) with L L^T = X X^T.

    Args:
        rows: X (..., k, n) in float32 or float64, finite.
        tolerance: Error of singular values, in parts of the largest, up to which float32 will do.

    Returns:
        In float32, or in float64, where values below 2e-8 of the largest are noise; lower triangular unless X has
        dependent rows.
    """
    if rows.dtype == torch.float32:
        rounding = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]  # made at import
        if rows.device.type == "cpu" and rounding in ("none", "ieee"):
            factor = _single(rows, (_DELTA / tolerance) ** 2)
            if factor is not None:
                return factor
        rows = rows.double()
    scaled, lengths = _scaled(lower_gram(rows))
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if bool(failed.any()):
        eigenvalues, vectors = torch.linalg.eigh(scaled)
        factor = vectors * eigenvalues.clamp(min=0).sqrt().unsqueeze(-2)
    root: Tensor = factor * lengths
    return root


def _single(rows: Tensor, least: float) -> Tensor | None:
    """The factor in float32; None if the scaled Gram matrix has an eigenvalue below the bound."""
    gram = lower_gram(rows)
    longest = float(gram.diagonal(dim1=-2, dim2=-1).amax())
    if not _RANGE[0] < longest < _RANGE[1]:
        return None
    scaled, lengths = _scaled(gram)
    shifted = scaled.clone()
    shifted.diagonal(dim1=-2, dim2=-1).sub_(least)
    if bool(torch.linalg.cholesky_ex(shifted)[1].any()):
        return None
    factor: Tensor = torch.linalg.cholesky(scaled) * lengths
    return factor


def _scaled(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The Gram matrix of rows of length one, and the lengths (..., k, 1); a row of zeros is as good as any."""
    lengths = gram.diagonal(dim1=-2, dim2=-1).sqrt().unsqueeze(-1)
    divisors = torch.where(lengths > 0, lengths, 1.0)
    scaled = gram / divisors / divisors.mT
    scaled.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return scaled, lengths

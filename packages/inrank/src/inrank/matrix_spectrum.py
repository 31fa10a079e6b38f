"""All or the leading singular values of one dense weight."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["MatrixSpectrum", "as_matrices", "matrix_spectrum"]

METHODS = ("gram", "svd")


class MatrixSpectrum(NamedTuple):
    """Singular values of a matrix.

    Attributes:
        s: Descending, float32 on the CPU; the leading ones if fewer were asked for.
        full_rank: How many there are.
        norm: Frobenius norm of the whole matrix.
    """

    s: Tensor
    full_rank: int
    norm: float


def as_matrices(weight: Tensor, module: nn.Module | None = None) -> Tensor:
    """A weight as (groups, m, n): a convolution as (groups, out / groups, in / groups * kernel), others as (1, m, n).

    Args:
        weight: At least two-dimensional; the first axis is m.
        module: Whose it is, for its groups.
    """
    groups = module.groups if isinstance(module, nn.modules.conv._ConvNd) else 1
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def matrix_spectrum(
    matrices: Tensor, *, method: str = "gram", top: int | None = None, generator: torch.Generator | None = None
) -> MatrixSpectrum:
    """Singular values of a matrix, or of a block-diagonal one.

    Args:
        matrices: (groups, m, n): the blocks.
        method: ``"gram"``: eigenvalues of the smaller Gram matrix in float64, several times faster; values below
            1e-8 of the largest are noise. ``"svd"``: exact to float64.
        top: Only so many leading values, by a random range finder with two power iterations (Halko et al. 2011), for
            matrices that have more than twice as many.
        generator: Of the random test matrix, on the CPU.

    Raises:
        ValueError: An unknown method, or `top` below 1.
        FloatingPointError: A value is not finite.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    if top is not None and top < 1:
        raise ValueError(f"top is {top}; it must be at least 1, or None for all")
    a = matrices.detach().to(torch.float64)
    norm = float(torch.linalg.vector_norm(a))
    if not math.isfinite(norm):
        raise FloatingPointError("the weight holds values that are not finite")
    groups, m, n = a.shape
    full_rank = groups * min(m, n)
    if top is not None and groups == 1 and min(m, n) > 2 * top:
        s = _leading(a[0], top, generator)
    elif method == "svd":
        s = torch.linalg.svdvals(a).flatten()
    else:
        gram = a @ a.mT if m <= n else a.mT @ a
        s = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flatten()
    s = s.sort(descending=True).values
    return MatrixSpectrum((s if top is None else s[:top]).float().cpu(), full_rank, norm)


def _leading(a: Tensor, top: int, generator: torch.Generator | None) -> Tensor:
    test = torch.randn(a.shape[1], top + 8, generator=generator, dtype=torch.float64).to(a.device)
    q = torch.linalg.qr(a @ test)[0]
    for _ in range(2):
        q = torch.linalg.qr(a.mT @ q)[0]
        q = torch.linalg.qr(a @ q)[0]
    values: Tensor = torch.linalg.svdvals(q.mT @ a)
    return values[:top]

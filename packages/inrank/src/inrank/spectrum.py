r"""Singular values of a product of factors, without the product.

For U (m, k) and V (k, n) with k << m, n: thin QR of both, U = Q_u R_u, V^T = Q_v R_v, gives

    U V = Q_u (R_u R_v^T) Q_v^T,

so the singular values are those of the k x k matrix R_u R_v^T: O((m + n) k^2) operations and O((m + n) k) memory,
against O(m n min(m, n)) and O(m n) for the dense product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["METHODS", "ProductSVD", "product_singular_values", "product_svd"]

METHODS = ("qr", "gram", "randomized")


class ProductSVD(NamedTuple):
    """U V = left diag(s) right, with what connects the new factors to the old ones.

    Attributes:
        left: (..., m, k) orthonormal columns.
        s: (..., k) descending.
        right: (..., k, n) orthonormal rows.
        core_left: (..., k, k): left^T U = core_left.
        core_right: (..., k, k): V right^T = core_right.
    """

    left: Tensor
    s: Tensor
    right: Tensor
    core_left: Tensor
    core_right: Tensor


def _checked(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if u.ndim < 2 or v.ndim < 2 or u.shape[-1] != v.shape[-2] or u.shape[:-2] != v.shape[:-2]:
        raise ValueError(
            f"factors have shapes (..., m, k) and (..., k, n); given {tuple(u.shape)} and {tuple(v.shape)}"
        )
    if not (u.is_floating_point() and v.is_floating_point()):
        raise TypeError(f"factors must be of a real floating type; given {u.dtype} and {v.dtype}")
    dtype = torch.promote_types(torch.promote_types(u.dtype, v.dtype), torch.float32)  # half types become float32
    u, v = u.detach().to(dtype), v.detach().to(dtype)
    for name, factor in (("U", u), ("V", v)):
        if not bool(torch.isfinite(factor).all()):
            raise FloatingPointError(f"factor {name} holds values that are not finite")
    return u, v


def product_singular_values(
    u: Tensor,
    v: Tensor,
    *,
    method: str = "qr",
    leading: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """All min(m, n) singular values of U V, descending; beyond the k-th they are structural zeros.

    Args:
        u: (..., m, k).
        v: (..., k, n).
        method: ``"qr"``: as the module says; errors of the size of the factors' own precision times |U| |V|, for any
            k. ``"gram"``: square roots of the eigenvalues of L^T (U^T U) L, L L^T = V V^T, in float64 whatever the
            factors: matrix products and little else, for devices on which QR is slow; values below 1e-8 |U| |V| are
            noise, those well above have all digits. ``"randomized"``: the leading ones by a range finder with one
            power iteration (Halko et al. 2011), the others zero; for large k of which few count.
        leading: Number of values that ``"randomized"`` finds; default k / 2.
        generator: Of the random test matrix.

    Returns:
        (..., min(m, n)) in float32 or float64, as the factors are.

    Raises:
        ValueError: If shapes do not fit or the method is unknown.
        FloatingPointError: If a factor is not finite.
    """
    u, v = _checked(u, v)
    m, k, n = u.shape[-2], u.shape[-1], v.shape[-1]
    total = min(m, n)
    if k == 0:
        return u.new_zeros(*u.shape[:-2], total)
    with torch.autocast(u.device.type, enabled=False):  # which would round products to half precision
        if method == "qr":
            s = torch.linalg.svdvals(_core(u, v))
        elif method == "gram":
            s = _gram_values(u, v)
        elif method == "randomized":
            s = _randomized_values(u, v, min(leading or -(-k // 2), k, total), generator)
        else:
            raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    s = s[..., :total].to(u.dtype)
    return torch.nn.functional.pad(s, (0, total - s.shape[-1]))


def _core(u: Tensor, v: Tensor) -> Tensor:
    """A small float64 matrix with the singular values of U V.

    The QR factorizations stay in the type of the factors, for speed; the small matrix costs nothing and would lose
    another digit in float32.
    """
    left: Tensor = torch.linalg.qr(u, mode="r")[1] if u.shape[-2] > u.shape[-1] else u
    right: Tensor = torch.linalg.qr(v.mT, mode="r")[1] if v.shape[-1] > v.shape[-2] else v.mT
    return left.double() @ right.double().mT


def _gram_values(u: Tensor, v: Tensor) -> Tensor:
    u, v = u.double(), v.double()
    gram_v = v @ v.mT
    root, failed = torch.linalg.cholesky_ex(gram_v)
    if bool(failed.any()):  # V has dependent rows
        eigenvalues, vectors = torch.linalg.eigh(gram_v)
        root = vectors * eigenvalues.clamp(min=0).sqrt().unsqueeze(-2)
    values: Tensor = torch.linalg.eigvalsh(root.mT @ (u.mT @ u) @ root)
    return values.flip(-1).clamp(min=0).sqrt()


def _randomized_values(u: Tensor, v: Tensor, rank: int, generator: torch.Generator | None) -> Tensor:
    samples = min(rank + 8, u.shape[-1], v.shape[-1])
    test = torch.randn(*v.shape[:-2], v.shape[-1], samples, generator=generator, dtype=v.dtype, device=v.device)
    q = torch.linalg.qr(u @ (v @ test))[0]
    q = torch.linalg.qr(v.mT @ (u.mT @ q))[0]
    q = torch.linalg.qr(u @ (v @ q))[0]
    values: Tensor = torch.linalg.svdvals((q.mT @ u) @ v)
    return values[..., :rank]


def product_svd(u: Tensor, v: Tensor) -> ProductSVD:
    """The thin SVD of U V by two QR factorizations and a k x k SVD.

    Args:
        u: (..., m, k) with k <= m.
        v: (..., k, n) with k <= n.

    Returns:
        See `ProductSVD`.

    Raises:
        ValueError: If shapes do not fit.
        FloatingPointError: If a factor is not finite.
    """
    u, v = _checked(u, v)
    k = u.shape[-1]
    if k > min(u.shape[-2], v.shape[-1]):
        raise ValueError(f"k is {k}; it must not exceed min(m, n) = {min(u.shape[-2], v.shape[-1])}")
    with torch.autocast(u.device.type, enabled=False):  # which would round products to half precision
        q_u, r_u = torch.linalg.qr(u)
        q_v, r_v = torch.linalg.qr(v.mT)
        p, s, t = torch.linalg.svd(r_u @ r_v.mT)
        return ProductSVD(q_u @ p, s, t @ q_v.mT, p.mT @ r_u, r_v.mT @ t.mT)

r"""Singular values of a product of factors, without the product.

For U (m, k) and V (k, n) with k << m, n: with Q_u, Q_v of orthonormal columns and U = Q_u L_u^T, V^T = Q_v L_v^T,

    U V = Q_u (L_u^T L_v) Q_v^T,

so the singular values are those of the k x k matrix L_u^T L_v: O((m + n) k^2) operations and O((m + n) k) memory,
against O(m n min(m, n)) and O(m n) for the dense product. L comes from QR or from Gram matrices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from inrank.gram_factor import gram_factor, lower_gram

__all__ = ["METHODS", "ProductSVD", "difference_factors", "product_singular_values", "product_svd"]

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
        if factor.numel() and not all(math.isfinite(float(extreme)) for extreme in torch.aminmax(factor)):
            raise FloatingPointError(f"factor {name} holds values that are not finite")
    return u, v


def product_singular_values(
    u: Tensor,
    v: Tensor,
    *,
    method: str = "qr",
    leading: int | None = None,
    generator: torch.Generator | None = None,
    tolerance: float = 1e-6,
    floor: bool = False,
) -> Tensor:
    """All min(m, n) singular values of U V, descending; beyond the k-th they are structural zeros.

    Errors are in parts of |U| |V| = (sum_i |u_i|^2 |v_i|^2)^(1/2), u_i and v_i being columns of U and rows of V.

    Args:
        u: (..., m, k).
        v: (..., k, n).
        method: ``"qr"``: QR of both factors in their own type, whose precision is that of the values. ``"gram"``:
            matrix products instead (`inrank.gram_factor`), two to four times faster: float32 factors give values to
            `tolerance`; of float64 factors values below 2e-8 are noise, those well above have all digits.
            ``"randomized"``: the leading ones by a range finder with one power iteration (Halko et al. 2011), the
            others zero; for large k of which few count.
        leading: Number of values that ``"randomized"`` finds; default k / 2.
        generator: Of the random test matrix.
        tolerance: Of ``"gram"``: how far values may be off where float32 saves time.
        floor: Set values that are not above rounding errors to zero: the rules of rank are blind to scale.

    Returns:
        (..., min(m, n)) in float32 or float64, as the factors are.

    Raises:
        ValueError: If shapes do not fit or the method is unknown.
        FloatingPointError: If a factor is not finite.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    u, v = _checked(u, v)
    m, k, n = u.shape[-2], u.shape[-1], v.shape[-1]
    total = min(m, n)
    if k == 0:
        return u.new_zeros(*u.shape[:-2], total)
    with torch.autocast(u.device.type, enabled=False):  # which would round products to half precision
        noise = 4 * torch.finfo(u.dtype).eps
        if method == "randomized":
            left, right = u, v
            s = _randomized_values(u, v, min(leading or -(-k // 2), k, total), generator)
        elif method == "qr":
            left = torch.linalg.qr(u, mode="r")[1] if m > k else u
            right = torch.linalg.qr(v.mT, mode="r")[1].mT if n > k else v
            s = torch.linalg.svdvals(left.double() @ right.double())  # costs nothing; float32 would lose a digit
        else:
            left = gram_factor(u.mT, tolerance).mT if m > k else u
            right = gram_factor(v, tolerance) if n > k else v
            s = _root_values(left, right)
            noise = max(noise, 2e-8)
        s = s[..., :total].to(u.dtype)
        if floor:
            squares = left.double().square().sum(-2) * right.double().square().sum(-1)
            s = torch.where(s > noise * squares.sum(-1, keepdim=True).sqrt(), s, 0.0)
    return torch.nn.functional.pad(s, (0, total - s.shape[-1]))


def _root_values(left: Tensor, right: Tensor) -> Tensor:
    """Singular values of a small product as roots of eigenvalues, in float64."""
    core = left.double() @ right.double()
    gram = lower_gram(core if core.shape[-2] <= core.shape[-1] else core.mT)
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.flip(-1).clamp(min=0).sqrt()


def difference_factors(u: Tensor, v: Tensor, u0: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of U V - U_0 V_0 in which nothing large cancels: [U - U_0, U_0] and [V; V - V_0].

    Args:
        u: (..., m, k).
        v: (..., k, n).
        u0: (..., m, k_0); where k and k_0 differ, the narrower factors are filled up with zeros.
        v0: (..., k_0, n).

    Returns:
        (..., m, max(k, k_0) + k_0) and (..., max(k, k_0) + k_0, n), in at least float32.
    """
    dtype = torch.promote_types(u.dtype, torch.float32)  # half types would round differences
    u, v, u0, v0 = u.to(dtype), v.to(dtype), u0.to(u.device, dtype), v0.to(v.device, dtype)
    k, k0 = u.shape[-1], u0.shape[-1]
    pad = torch.nn.functional.pad
    if k < k0:
        u, v = pad(u, (0, k0 - k)), pad(v, (0, 0, 0, k0 - k))
    return torch.cat([u - pad(u0, (0, max(0, k - k0))), u0], -1), torch.cat([v, v[..., :k0, :] - v0], -2)


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

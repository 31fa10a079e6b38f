r"""Initial factors U (m, k), V (k, n).

| name | U, V | product |
|---|---|---|
| official | U ~ uniform(+-1/sqrt(R)), V ~ uniform(+-1/sqrt(n)), R allocated directions | std 1/(3 sqrt n) sqrt(k / R) |
| orthogonal | orthonormal columns and rows, all singular values sigma | Frobenius norm of the dense weight |
| spectral | leading singular triplets of the dense weight, balanced (Khodak et al. 2021), scaled | the same norm |
| zero | U = 0, V with orthonormal rows | 0: the layer starts as W_0 does |

"official" is nn.Linear's Kaiming-uniform bound for each factor. Its product is far smaller than a dense layer's, and
that is most of what makes the official layer lag behind full rank on small models (see the README).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

__all__ = ["derived_generator", "fresh_directions", "initial_factors", "orthonormal_rows"]

# Singular values of a weight below this part of the largest are zero.
_NEGLIGIBLE = 1e-7


def derived_generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator for one use of a seed: the same whatever else is drawn, in whatever order.

    Args:
        seed: Of the whole run.
        path: What it is for, as the name of a layer.
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def orthonormal_rows(
    shape: tuple[int, ...], *, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Random (..., k, n) with orthonormal rows, k <= n, Haar-distributed."""
    # drawn in float64 on the CPU: the same directions whatever the device and type of the layer
    gaussian = torch.randn(*shape[:-2], shape[-1], shape[-2], generator=generator, dtype=torch.float64)
    q: Tensor
    q, r = torch.linalg.qr(gaussian)
    q = q * torch.where(torch.diagonal(r, dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)
    return q.mT.to(dtype=dtype, device=device)


def initial_factors(
    init: str,
    dense: Tensor,
    rank: int,
    *,
    allocated: int | None = None,
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The factors that training starts from.

    Args:
        init: One of the module's table.
        dense: The weight that is replaced, (groups, m, n); its shape, type, device, and for "orthogonal" and
            "spectral" its norm and singular vectors count.
        rank: k.
        allocated: R of "official"; default k.
        scale: Multiplies the product U V; each factor gets its square root.
        generator: Source of randomness, on the CPU.

    Returns:
        U (groups, m, k), V (groups, k, n).

    Raises:
        ValueError: If the name is unknown or rank exceeds min(m, n).
    """
    groups, m, n = dense.shape
    if rank > min(m, n):
        raise ValueError(f"rank is {rank}; a {m} x {n} weight has at most {min(m, n)} directions")
    dtype, device = dense.dtype, dense.device
    root = math.sqrt(scale)
    if init == "official":
        wide = max(allocated or rank, 1)
        u = torch.empty(groups, m, rank, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        v = torch.empty(groups, rank, n, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        return (u * root / math.sqrt(wide)).to(device, dtype), (v * root / math.sqrt(n)).to(device, dtype)
    if init == "zero":
        v = orthonormal_rows((groups, rank, n), generator=generator, dtype=dtype, device=device)
        return dense.new_zeros(groups, m, rank), v
    if init not in ("orthogonal", "spectral"):
        raise ValueError(f"unknown initialization {init!r}; known: official, orthogonal, spectral, zero")
    exact = dense.detach().double()
    norm = torch.linalg.matrix_norm(exact, keepdim=True)
    if init == "orthogonal":
        left = orthonormal_rows((groups, rank, m), generator=generator, dtype=torch.float64, device=device).mT
        right = orthonormal_rows((groups, rank, n), generator=generator, dtype=torch.float64, device=device)
        s = torch.ones(groups, rank, dtype=torch.float64, device=device)
    else:
        left, s, right = _leading_triplets(exact, rank)
    alive = (s > _NEGLIGIBLE * s[..., :1]) & (norm[..., 0] > 0)
    kept = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    s = (s * norm[..., 0] / torch.where(kept == 0, 1.0, kept)).sqrt() * root
    left, right = left * torch.where(alive, s, 0.0).unsqueeze(-2), right * s.unsqueeze(-1)
    if not bool(alive.all()):
        # both factors of a missing direction would be zero and stay it: V gets one to learn along
        spare = orthonormal_rows((groups, rank, n), generator=generator, dtype=torch.float64, device=device)
        mean = (s * alive).sum(-1, keepdim=True) / alive.sum(-1, keepdim=True).clamp(min=1)
        length = torch.where(mean > 0, mean, 1.0)
        right = torch.where(alive.unsqueeze(-1), right, spare * length.unsqueeze(-1))
    return left.to(device, dtype), right.to(device, dtype)


def _leading_triplets(a: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets of (..., m, n) from the eigenvectors of the smaller Gram matrix.

    Of the kind of a full SVD for values above 1e-7 s_1, and an order of magnitude cheaper: a GPT-2 is wrapped in
    seconds.
    """
    if a.shape[-2] < a.shape[-1]:
        right, s, left = _leading_triplets(a.mT, rank)
        return left.mT, s, right.mT
    vectors = torch.linalg.eigh(a.mT @ a)[1].flip(-1)[..., :rank]
    scaled = a @ vectors
    s = torch.linalg.vector_norm(scaled, dim=-2)
    return scaled / torch.where(s == 0, 1.0, s).unsqueeze(-2), s, vectors.mT


def fresh_directions(v: Tensor, added: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Rows to append to V: orthonormal to its rows and to each other, as long as its rows are on average.

    Args:
        v: (groups, k, n).
        added: How many, at most n - k.
        generator: Source of randomness, on the CPU.

    Returns:
        (groups, added, n).

    Raises:
        ValueError: If there is no room for so many.
    """
    groups, k, n = v.shape
    if added > n - k:
        raise ValueError(
            f"{added} fresh directions were asked for; beside {k} rows of length {n} there is room for {n - k}"
        )
    exact = v.detach().double()
    drawn = torch.randn(groups, n, added, generator=generator, dtype=torch.float64).to(v.device)
    length = 1.0
    if k:
        basis = torch.linalg.qr(exact.mT)[0]
        for _ in range(2):  # twice is enough (Kahan): once leaves rounding errors of the size of the projection
            drawn = drawn - basis @ (basis.mT @ drawn)
        mean = torch.linalg.vector_norm(exact, dim=-1).mean()
        length = float(mean) if float(mean) > 0 else 1.0
    fresh: Tensor = torch.linalg.qr(drawn)[0].mT
    return (fresh * length).to(v.dtype)

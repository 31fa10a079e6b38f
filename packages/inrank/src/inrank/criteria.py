r"""What a spectrum says about rank.

The paper's rule compares sample variances (official release; Zhao et al. 2023, section 4). With all
N = min(m, n) singular values s of D = U V, those that are zero included,

    g(s, k) = 1 - Var(s with its first k entries set to 0) / Var(s),

and the rank grows to the first k with g(s, k) > alpha. It is no energy ratio: where most of N values are alike,
taking some away makes the rest vary more, and g is negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "RULES",
    "energy_ratio",
    "entropy_rank",
    "explained_variance_ratio",
    "needed_rank",
    "numerical_rank",
    "official_rank",
    "stable_rank",
]


def explained_variance_ratio(s: Tensor, k: int | None = None) -> Tensor:
    """The paper's explained ratio g(s, k) = 1 - Var(s_tail) / Var(s).

    Where the official function is undefined: a spectrum of zeros is explained by any k (1); one of equal values,
    which has no variance, by all of it (1), not at all by none (0), and else the limit -inf.

    Args:
        s: Singular values (..., N), descending, structural zeros included.
        k: Values that are kept; None for all of 0..N.

    Returns:
        Ratios (...), or (..., N + 1) for all k; float64.

    Raises:
        ValueError: If k is not in 0..N.
    """
    s = _spectrum(s, k)
    n = s.shape[-1]
    s = s / torch.where(s[..., :1] == 0, 1.0, s[..., :1])
    # N Var of k zeros and the tail, about the mean of the whole spectrum: no cancellation where values are alike
    kept = torch.arange(n + 1, device=s.device)
    mean = s.mean(-1, keepdim=True)
    shifted = torch.cat([s - mean, torch.zeros_like(mean)], -1).flip(-1)
    tail_sum, tail_square = shifted.cumsum(-1).flip(-1), shifted.square().cumsum(-1).flip(-1)
    variance = kept * mean.square() + tail_square - (tail_sum - kept * mean).square() / n
    variance[..., -1] = 0.0
    flat = (s == s[..., :1]).all(-1, keepdim=True)
    limit = torch.where(kept == n, 1.0, torch.where(kept == 0, 0.0, -math.inf)).to(s).expand_as(variance)
    limit = torch.where(s[..., :1] == 0, torch.ones_like(limit), limit)
    total = variance[..., :1]
    ratio = 1.0 - variance / torch.where(flat, torch.ones_like(total), total)
    ratio = torch.where(flat, limit, ratio)
    return ratio if k is None else ratio[..., k]


def energy_ratio(s: Tensor, k: int | None = None) -> Tensor:
    """Energy of the first k values, sum_{i <= k} s_i^2 / sum_i s_i^2; 1 for a spectrum of zeros.

    Args:
        s: Singular values (..., N), descending.
        k: Values that are kept; None for all of 0..N.

    Returns:
        Ratios (...), or (..., N + 1) for all k; float64.

    Raises:
        ValueError: If k is not in 0..N.
    """
    s = _spectrum(s, k)
    scaled = s / torch.where(s[..., :1] == 0, 1.0, s[..., :1])
    head = torch.cat([torch.zeros_like(s[..., :1]), scaled.square().cumsum(-1)], -1)
    total = head[..., -1:]
    ratio = torch.where(total == 0, 1.0, head / torch.where(total == 0, 1.0, total))
    return ratio if k is None else ratio[..., k]


def stable_rank(s: Tensor) -> Tensor:
    """Stable rank sum_i s_i^2 / s_1^2 of (..., N) singular values (Rudelson & Vershynin 2007); 0 for zeros."""
    s = _spectrum(s)
    largest = s.amax(-1, keepdim=True)
    return (s / torch.where(largest == 0, 1.0, largest)).square().sum(-1)


def entropy_rank(s: Tensor) -> Tensor:
    """Effective rank exp(-sum_i p_i log p_i), p = s / sum s, of (..., N) values (Roy & Vetterli 2007); 0 for zeros."""
    s = _spectrum(s)
    total = s.sum(-1, keepdim=True)
    p = s / torch.where(total == 0, 1.0, total)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    return torch.where(total[..., 0] == 0, 0.0, entropy.exp())


def numerical_rank(s: Tensor, tolerance: float | None = None) -> Tensor:
    """Number of values above tolerance * s_1; default N * eps of the values' own type, as LAPACK's users have it."""
    relative = s.shape[-1] * torch.finfo(s.dtype).eps if tolerance is None else tolerance
    return (s > relative * s.amax(-1, keepdim=True)).sum(-1)


def _first_above(ratios: Tensor, threshold: float, *, strictly: bool) -> int:
    passed = ratios > threshold if strictly else ratios >= threshold
    return int(passed.to(torch.int64).argmax()) if bool(passed.any()) else len(ratios) - 1


RULES: dict[str, Callable[[Tensor, float], int]] = {
    "variance": lambda s, alpha: _first_above(explained_variance_ratio(s), alpha, strictly=True),
    "energy": lambda s, alpha: _first_above(energy_ratio(s), alpha, strictly=False),
    "stable": lambda s, alpha: math.ceil(float(stable_rank(s)) - 1e-9),
    "entropy": lambda s, alpha: math.ceil(float(entropy_rank(s)) - 1e-9),
}


def needed_rank(s: Tensor, criterion: str, threshold: float) -> int:
    """The rank that a criterion asks for.

    Args:
        s: Singular values (N,) or (groups, N), descending; of several groups the largest need counts.
        criterion: ``"variance"``: smallest k with g(s, k) > threshold (the paper's rule). ``"energy"``: smallest k
            with energy_ratio >= threshold. ``"stable"`` and ``"entropy"``: those ranks, rounded up; the threshold
            plays no part.
        threshold: In (0, 1].

    Returns:
        The rank, 0 for a spectrum of zeros.

    Raises:
        ValueError: If the criterion is unknown.
        FloatingPointError: If a value is not finite.
    """
    if criterion not in RULES:
        raise ValueError(f"unknown criterion {criterion!r}; known: {', '.join(RULES)}")
    rows = _spectrum(s).reshape(-1, s.shape[-1])
    return max(RULES[criterion](row, threshold) if float(row[0]) > 0 else 0 for row in rows)


def official_rank(s: Tensor, rank: int, buffer: int, largest: int, threshold: float) -> int:
    """The official release's choice, its cap included.

    For k = r, r + 1, ..., min(r + b, R - b) - 1 it stops at the first k with g(s, k) > alpha; if none passes, the last
    k is taken. So the rank never exceeds R - b - 1, whatever the spectrum says.

    Args:
        s: Singular values (N,).
        rank: r.
        buffer: b.
        largest: R, the number of directions that are allocated.
        threshold: alpha.

    Returns:
        The new rank.

    Raises:
        ValueError: If there is no candidate, where the official code fails with an unbound name.
    """
    candidates = range(rank, min(rank + buffer, largest - buffer))
    if not candidates:
        raise ValueError(
            f"the official rule has no candidate rank: rank {rank}, buffer {buffer}, max rank {largest} "
            "(it needs buffer >= 1 and rank < max rank - buffer)"
        )
    ratios = explained_variance_ratio(s)
    return next((k for k in candidates if float(ratios[k]) > threshold), candidates[-1])


def _spectrum(s: Tensor, k: int | None = None) -> Tensor:
    """Checked, as is a number of its values, and in float64: squares of small float32 values underflow."""
    if s.ndim == 0 or s.shape[-1] == 0:
        raise ValueError(f"a spectrum has shape (..., N) with N >= 1; given {tuple(s.shape)}")
    if k is not None and not 0 <= k <= s.shape[-1]:
        raise ValueError(f"k is {k}; the spectrum has {s.shape[-1]} values, so k must be in 0..{s.shape[-1]}")
    s = s.detach().to(torch.float64)
    if not bool(torch.isfinite(s).all()):
        raise FloatingPointError("the spectrum holds values that are not finite")
    return s

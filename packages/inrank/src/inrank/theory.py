r"""The three-layer linear network, where incremental low-rank learning is a theorem.

Zhao et al. 2023 (InRank, arXiv:2306.11250) train :math:`y = W_3 W_2 W_1 x` on whitened inputs with the loss

.. math:: L = \tfrac12 \lVert M - W_3 W_2 W_1 \rVert_F^2, \qquad M = U\,\mathrm{diag}(s)\,V^T

from orthogonal weights of gain :math:`a`. Where those are aligned with the target,

.. math:: W_1(0) = a R_1 V^T, \quad W_2(0) = a R_2 R_1^T, \quad W_3(0) = a U R_2^T \quad (R_1, R_2\ \text{orthogonal}),

gradient flow keeps the singular vectors, and every mode :math:`\alpha` has one strength :math:`w_\alpha`, the same in
all three layers, that obeys

.. math:: \dot w = w^2 (s_\alpha - w^3), \qquad w(0) = a .

The singular values of the cumulative update :math:`D_l(t) = W_l(t) - W_l(0)` of each layer are exactly
:math:`|w_\alpha(t) - a|`: for small gain, modes rise one after another, the larger :math:`s` first, at
:math:`t \approx 1/(s a)`.

**Where the claim ends.** "From any orthogonal initialization" needs a small gain. A direction that the target does not
use (:math:`s = 0`) shrinks as :math:`w = (a^{-4} + 4t)^{-1/4}`, on the timescale :math:`1/(4a^4)`: at gain 0.1 that is
2500 units of time and nothing is seen of it, at gain 1 it is a quarter of one. With 20 x 20 weights of gain 1 and a
target of rank 5, all 15 unused directions have moved together by 0.508 at t = 4, more than the target's own weakest
modes, so that :math:`D` has full rank although what is learned has rank 5. `check` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inrank.linear_network import ThreeLayerLinear

__all__ = ["GainCheck", "check", "half_rise_time", "mode_strength", "null_mode_strength"]

Float = NDArray[np.float64]

# Beyond this x the closed form of `_antiderivative` is a small difference of large terms; there its series in 1/x
# converges by a factor of 8 a term.
_SERIES_FROM = 2.0
_SERIES_TERMS = 20
# Below this s the mode cannot be told from s = 0 within any time that a float holds.
_NEGLIGIBLE = 1e-200


@dataclass(frozen=True)
class GainCheck:
    r"""Closed form against simulation at one gain.

    Attributes:
        gain: a.
        largest_difference: max over layers, modes and times of :math:`|\sigma(D_l) - |w - a||`.
        half_rise: s t_half a of the target's modes, (rank,); 1 in the limit of small gain.
        null_shift: How far the directions outside the target have moved at `end`.
        smallest_learned: The least :math:`|w - a|` of the target's own modes at `end`.
        numerical_rank: Singular values of D at `end` above a tenth of the largest.
        rank: That of the target.
        end: Time of the last three.
    """

    gain: float
    largest_difference: float
    half_rise: tuple[float, ...]
    null_shift: float
    smallest_learned: float
    numerical_rank: int
    rank: int
    end: float

    @property
    def is_low_rank(self) -> bool:
        """Whether D has the rank of what was learned, rather than that of the initialization."""
        return self.numerical_rank <= self.rank


def mode_strength(t: ArrayLike, s: ArrayLike, a: ArrayLike) -> Float:
    r"""Strength w(t) of a mode: the solution of :math:`\dot w = w^2(s - w^3)`, :math:`w(0) = a`.

    With :math:`c = s^{1/3}` and :math:`x = w/c`, partial fractions give :math:`c^4 t = F(x) - F(a/c)`,

    .. math:: F(x) = -\frac1x - \frac13\ln|1-x| + \frac16\ln(1+x+x^2) + \frac1{\sqrt3}\arctan\frac{\sqrt3}{2x+1},

    which Newton's method, kept inside a bracket by bisection, inverts to rounding. For s = 0 the solution is
    :math:`(a^{-4}+4t)^{-1/4}`. The strength falls when :math:`a > s^{1/3}`.

    Args:
        t: Times >= 0.
        s: Singular values of the target, >= 0.
        a: Gains of the initialization, > 0. The three arguments broadcast.

    Returns:
        w in the broadcast shape.

    Raises:
        ValueError: A negative time or singular value, a gain that is not positive, or a value that is not finite.
    """
    strength, gain, times = np.broadcast_arrays(*_valid(s=s, a=a, t=t))
    w = null_mode_strength(times, gain)
    resting = (times == 0) | (gain == np.cbrt(strength))
    w[resting] = gain[resting]
    moves = (strength > _NEGLIGIBLE) & ~resting
    limit = np.cbrt(strength[moves])
    start = gain[moves] / limit
    w[moves] = limit * _invert(_antiderivative(start) + limit**4 * times[moves], start)
    return w


def null_mode_strength(t: ArrayLike, a: ArrayLike) -> Float:
    r"""Strength :math:`(a^{-4} + 4t)^{-1/4}` of a direction that the target does not use (s = 0).

    Args:
        t: Times >= 0.
        a: Gains > 0; broadcast with `t`.

    Returns:
        w in the broadcast shape.

    Raises:
        ValueError: As in `mode_strength`.
    """
    _, gain, times = _valid(s=0.0, a=a, t=t)
    return np.asarray(gain * (1 + 4 * times * gain**4) ** -0.25)


def half_rise_time(s: ArrayLike, a: ArrayLike) -> Float:
    r"""Time at which a mode has gone half of its way from a to :math:`s^{1/3}`; about :math:`1/(s a)` for small a.

    Args:
        s: Singular values of the target, >= 0.
        a: Gains > 0; broadcast with `s`.

    Returns:
        Times in the broadcast shape; NaN where there is no way to go: s = 0, or :math:`a^3 = s`.

    Raises:
        ValueError: As in `mode_strength`.
    """
    strength, gain = np.broadcast_arrays(*_valid(s=s, a=a, t=0.0)[:2])
    times = np.full(strength.shape, np.nan)
    limit = np.cbrt(strength)
    moves = (strength > _NEGLIGIBLE) & (limit != gain)
    start = gain[moves] / limit[moves]
    times[moves] = (_antiderivative((1 + start) / 2) - _antiderivative(start)) / limit[moves] ** 4
    return times


def check(
    gains: Sequence[float] = (0.1, 0.3, 1.0),
    *,
    singular_values: Sequence[float] = (10.0, 7.0, 5.0, 3.0, 2.0),
    size: int = 20,
    end: float = 4.0,
    points: int = 41,
    seed: int = 0,
) -> list[GainCheck]:
    """Simulate aligned networks and compare every layer's spectrum of D with the closed form.

    Args:
        gains: Gains of the initialization.
        singular_values: Nonzero singular values of the target.
        size: Width n of the square layers; n - len(singular_values) directions are not used by the target.
        end: Last time, at which ranks are read.
        points: Times of comparison, equally spaced from 0 to `end`, and as many up to the last mode's rise.
        seed: Of the rotations.

    Returns:
        One `GainCheck` for each gain.

    Raises:
        ValueError: More singular values than `size`, none at all, or values that `mode_strength` refuses.
    """
    rank = len(singular_values)
    if not 0 < rank <= size:
        raise ValueError(f"singular_values has {rank} values; expected 1 to size = {size} of them")
    s = np.zeros(size)
    s[:rank] = singular_values
    results = []
    for gain in gains:
        risen = half_rise_time(s[:rank], gain)
        last = max(end, 1.5 * float(np.nanmax(risen, initial=0.0)))
        times = np.unique(np.concatenate([np.linspace(0, end, points), np.linspace(0, last, points)]))
        run = ThreeLayerLinear.aligned(s, gain=gain, seed=seed).flow(times)
        moved = np.abs(mode_strength(times[:, None], s[None, :], gain) - gain)
        expected = -np.sort(-moved, axis=1)
        at_end = moved[np.searchsorted(times, end)]
        spectrum = run.update_spectra[np.searchsorted(times, end)]
        results.append(
            GainCheck(
                gain=float(gain),
                largest_difference=float(np.abs(run.update_spectra - expected[:, None, :]).max()),
                half_rise=tuple(float(x) for x in risen * s[:rank] * gain),
                null_shift=float(at_end[rank:].max(initial=0.0)),
                smallest_learned=float(at_end[:rank].min()),
                numerical_rank=int((spectrum > 0.1 * spectrum[:, :1]).sum(axis=1).max()),
                rank=rank,
                end=float(end),
            )
        )
    return results


def _antiderivative(x: Float) -> Float:
    """F with dF/dx = 1/(x^2 (1 - x^3)) on either side of 1, and F(infinity) = 0; infinite at 1."""
    with np.errstate(divide="ignore"):
        near = (
            -1 / x
            - np.log(np.abs(1 - x)) / 3
            + np.log1p(x + x * x) / 6
            + np.arctan(np.sqrt(3) / (2 * x + 1)) / np.sqrt(3)
        )
    k = np.arange(_SERIES_TERMS)
    inverse = 1 / np.maximum(x, _SERIES_FROM)
    far = inverse**4 * (inverse[..., None] ** (3 * k) / (3 * k + 4)).sum(axis=-1)
    return np.asarray(np.where(x > _SERIES_FROM, far, near))


def _invert(target: Float, start: Float) -> Float:
    """The x between `start` and 1 with F(x) = target, where F(start) <= target and start is not 1."""
    rises = start < 1
    one: Float = np.where(rises, 1 - 2.0**-53, 1 + 2.0**-52)  # F is infinite at 1 itself
    target = np.minimum(target, _antiderivative(one))
    low, high = start, one  # F(low) <= target <= F(high); low > high where the mode falls
    guess = np.where(rises, (low + high) / 2, (4 * np.abs(target)) ** -0.25)  # F(x) -> 1/(4 x^4) for large x
    x = np.where((guess - low) * (guess - high) < 0, guess, (low + high) / 2)
    for _ in range(200):
        excess = _antiderivative(x) - target
        low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
        step = x - excess * x * x * (1 - x * x * x)
        inside = (step >= np.minimum(low, high)) & (step <= np.maximum(low, high))
        previous, x = x, np.where(inside, step, (low + high) / 2)
        if np.all(np.abs(x - previous) <= 2e-16 * x):
            break
    return x


def _valid(*, s: ArrayLike, a: ArrayLike, t: ArrayLike) -> tuple[Float, Float, Float]:
    arrays = []
    for name, values, least in (("s", s, "0 or more"), ("a", a, "more than 0"), ("t", t, "0 or more")):
        array = np.asarray(values, np.float64)
        wrong = ~np.isfinite(array) | (array < 0) | ((array == 0) if name == "a" else False)
        if wrong.any():
            raise ValueError(f"{name} has the value {array[wrong].flat[0]}; expected finite values, {least}")
        arrays.append(array)
    return arrays[0], arrays[1], arrays[2]

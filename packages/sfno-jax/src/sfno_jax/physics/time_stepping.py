"""Time-stepping schemes for du/dt = N(u) + L u, N evaluated explicitly, L stiff and linear.

`SCHEMES` lists three:

``"ab3"``
    Third-order Adams-Bashforth on N + L.  A multistep method needs two earlier tendencies; here
    they are computed once, by two *backward* fourth-order Runge-Kutta steps, so that the very
    first step is already third-order and every step is the same.  They are carried with the
    state: 24 steps equal 12 + 12 to the last bit.

``"reference"``
    The scheme of torch-harmonics 0.9, kept for comparison with its numbers: Adams-Bashforth
    started by an Euler step and by weights (28, -16)/12 (a true second-order start has
    (18, -6)/12), its history forgotten whenever the integration is called again.

``"semi-implicit"``
    The SIL3 implicit-explicit Runge-Kutta scheme of Whitaker and Kar (2013, Mon. Wea. Rev. 141,
    3426): three evaluations of N and three solves with L a step, second order (third for the
    linear explicit part).  Gravity waves no longer limit the step; on the oscillation equation
    it is neutral to 2e-3 a step for every fast frequency as long as the slow one has
    omega dt <= 1.7.  One-step, hence without history.

After every step the caller's ``damp`` is applied (hyperdiffusion, by operator splitting).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "ADAMS_BASHFORTH_LIMIT",
    "HISTORY",
    "SCHEMES",
    "SEMI_IMPLICIT_LIMIT",
    "SplitSystem",
    "backward_history",
    "step",
]

SCHEMES = ("ab3", "reference", "semi-implicit")

#: Tendencies carried from one call to the next by each scheme.
HISTORY = {"ab3": 2, "reference": 0, "semi-implicit": 0}

#: Largest omega dt of an oscillation that third-order Adams-Bashforth keeps bounded.
ADAMS_BASHFORTH_LIMIT = 0.7236

#: The same for the explicit (slow) part of SIL3, whatever the implicit frequency.
SEMI_IMPLICIT_LIMIT = 1.7

_ADAMS_BASHFORTH = (23 / 12, -16 / 12, 5 / 12)
_REFERENCE = ((1.0, 0.0, 0.0), (28 / 12, -16 / 12, 0.0), _ADAMS_BASHFORTH)

# Whitaker & Kar (2013): rows are the stages after the first; the last stage is the new state.
_SIL3_EXPLICIT = ((1 / 3,), (1 / 6, 1 / 2), (1 / 2, -1 / 2, 1.0))
_SIL3_IMPLICIT = ((1 / 6, 1 / 6), (1 / 3, 0.0, 1 / 3), (3 / 8, 0.0, 3 / 8, 1 / 4))

History = tuple[jax.Array, ...]


class SplitSystem(NamedTuple):
    """du/dt = explicit(u) + implicit(u), with what the schemes need to know of it.

    Attributes:
        explicit: N, the non-linear and slow terms.
        implicit: L, linear.
        solve: (r, a) -> the solution u of u - a L u = r.
        damp: applied to the state after every step.
    """

    explicit: Callable[[jax.Array], jax.Array]
    implicit: Callable[[jax.Array], jax.Array]
    solve: Callable[[jax.Array, float], jax.Array]
    damp: Callable[[jax.Array], jax.Array]

    def tendency(self, u: jax.Array) -> jax.Array:
        """N(u) + L u."""
        return self.explicit(u) + self.implicit(u)


def step(
    scheme: str, system: SplitSystem, dt: float, u: jax.Array, history: History, index: jax.Array
) -> tuple[jax.Array, History]:
    """Advance the state by one step.

    Args:
        scheme: One of `SCHEMES`.
        system: The equation.
        dt: Step [s].
        u: State.
        history: Earlier tendencies, most recent first: two for the Adams-Bashforth schemes, none
            for the semi-implicit one.
        index: Number of this step within the call, from 0 (only "reference" looks at it).

    Returns:
        The new state and the new history.
    """
    if scheme == "semi-implicit":
        return system.damp(_sil3(system, dt, u)), history
    now = system.tendency(u)
    if scheme == "ab3":
        a, b, c = _ADAMS_BASHFORTH
    else:
        table = jnp.asarray(_REFERENCE, u.real.dtype)
        a, b, c = table[jnp.minimum(index, 2)]
    increment = a * now + b * history[0] + c * history[1]
    return system.damp(u + dt * increment), (now, history[0])


def backward_history(system: SplitSystem, dt: float, u: jax.Array) -> History:
    """Tendencies at t - dt and t - 2 dt, by backward Runge-Kutta steps of order four.

    The undamped equation is reversible, so that its past is as well defined as its future; the
    error, of order dt^4 in each tendency, is below that of the scheme they start.

    Args:
        system: The equation.
        dt: Step [s].
        u: State (..., at time t).

    Returns:
        Two tendencies, the more recent first.
    """
    # Nine evaluations: four of each step and one at its end, which is the next step's first. As
    # one loop over evaluations the tendency is compiled once. Columns: the weight in the mean
    # slope; what of this slope leads to the next stage; whether the step ends here.
    stages = ((1 / 6, 1 / 2, False), (1 / 3, 1 / 2, False), (1 / 3, 1.0, False), (1 / 6, 0.0, True))
    weight, reach, ends = (np.asarray(column) for column in zip(*(stages * 2 + stages[:1]), strict=True))

    def evaluate(carry: Any, row: Any) -> tuple[Any, jax.Array]:
        start, mean, stage = carry
        weight, reach, ends = row
        slope = system.tendency(stage)
        mean = mean + weight * slope
        arrived = start - dt * mean
        start, stage = (
            jnp.where(ends, arrived, start),
            jnp.where(ends, arrived, start - dt * reach * slope),
        )
        return (start, jnp.where(ends, 0.0, mean), stage), slope

    rows = (weight.astype(u.real.dtype), reach.astype(u.real.dtype), ends)
    slopes = jax.lax.scan(evaluate, (u, jnp.zeros_like(u), u), rows)[1]
    return slopes[4], slopes[8]


def _sil3(system: SplitSystem, dt: float, u: jax.Array) -> jax.Array:
    slow, fast = [], []
    stage = u
    for explicit, implicit in zip(_SIL3_EXPLICIT, _SIL3_IMPLICIT, strict=True):
        slow.append(system.explicit(stage))
        fast.append(system.implicit(stage))
        right = u
        for weight, term in (
            *zip(explicit, slow, strict=True),
            *zip(implicit[:-1], fast, strict=True),
        ):
            if weight != 0.0:
                right = right + dt * weight * term
        stage = system.solve(right, dt * implicit[-1])
    return stage

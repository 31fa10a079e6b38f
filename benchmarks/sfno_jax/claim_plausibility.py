"""What a long shallow-water rollout looks like hour by hour, and whether the solver's would look so too.

Every number is compared with the solver's own run from the same initial state at the same hours. The flow is not
forced: the solver's hyperdiffusion takes the small scales away, so its own variance, spectrum and tendencies decay
over the months, and a rollout that kept them constant would be wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sfno_jax.losses import loss_weights, sphere_mean
from sfno_jax.physics import ShallowWaterSolver
from sfno_jax.spectral import power_spectrum
from sfno_jax.training.rollout import PlausibilityLimits
from sfno_jax.transforms import RealSHT

__all__ = ["Describer", "History", "Verdict", "judge"]

Floats = NDArray[np.float64]

#: A degree enters the spectral comparison while it holds this share of the solver's power.
SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class History:
    """Hour by hour; axis 0 is the hour (1, 2, ...), axis 1 the rollout.

    Attributes:
        maximum: Largest absolute value in the state, normalised units.
        mean: ``(hour, rollout, channel)`` area means, normalised units.
        power: ``(hour, rollout, channel, degree)`` power per degree, normalised units.
        change: ``(hour, rollout, channel)`` area mean of the squared change since the hour before.
    """

    maximum: Floats
    mean: Floats
    power: Floats
    change: Floats

    @property
    def variance(self) -> Floats:
        """Variance about the area mean ``(hour, rollout, channel)``, by Parseval."""
        return np.asarray(self.power[..., 1:].sum(-1) / (4 * math.pi))

    def select(self, rollouts: Any) -> History:
        """Some of the rollouts, in the order given."""
        return History(*(getattr(self, field.name)[:, rollouts] for field in dataclasses.fields(self)))


@jax.jit
def _describe(previous: jax.Array, states: jax.Array, weights: Any, sht: RealSHT) -> tuple[jax.Array, ...]:
    before = jnp.concatenate([previous[None], states[:-1]])
    return (
        jnp.abs(states).max((2, 3, 4)),
        sphere_mean(states, weights),
        power_spectrum(sht(states)),
        sphere_mean((states - before) ** 2, weights),
    )


class Describer:
    """Turns chunks of states into a `History`.

    Args:
        solver: Grid, constants of the energy.
        std: ``(channel,)`` standard deviations of the normalisation.
    """

    def __init__(self, solver: ShallowWaterSolver, std: Floats) -> None:
        p = solver.parameters
        self.sht = RealSHT(p.nlat, p.nlon, grid=p.grid)
        self.weights = loss_weights(p.nlat, p.nlon, p.grid)[:, :1] * p.nlon
        degree = np.arange(self.sht.lmax, dtype=np.float64)
        wind = p.gravity * p.havg * p.radius**2 / np.maximum(degree * (degree + 1), 1)
        factor = np.stack([np.ones_like(degree), wind, wind]) * (degree > 0) / (8 * math.pi)
        self._energy = factor * np.asarray(std)[:, None] ** 2

    def history(self, initial: Any, chunks: Iterable[Any]) -> History:
        """Describe a run.

        Args:
            initial: ``(rollout, channel, nlat, nlon)``, the state at hour 0.
            chunks: Arrays ``(hours, rollout, channel, nlat, nlon)`` that follow one another.
        """
        rows: list[list[Any]] = [[], [], [], []]
        previous = jnp.asarray(initial)
        for chunk in chunks:
            states = jnp.asarray(chunk)
            for row, value in zip(rows, _describe(previous, states, self.weights, self.sht), strict=True):
                row.append(np.asarray(value, np.float64))
            previous = states[-1]
        return History(*(np.concatenate(row) for row in rows))

    def energy(self, history: History) -> Floats:
        """Energy that can be had ``(hour, rollout)`` [m4 s-4]: mean of gh |V|^2 / 2 + (phi - mean)^2 / 2.

        The total energy is 10^5 times larger, constant, and says nothing about the flow.
        """
        return np.asarray((history.power * self._energy).sum((-2, -1)))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Rollouts beside the solver's runs; ``mark`` runs over `marks`, ratios are of means over a window that ends there.

    Attributes:
        marks: Hours.
        maximum: ``(rollout,)`` largest absolute value in the whole run.
        variance: ``(mark, rollout, channel)`` ratio.
        tendency: ``(mark, rollout, channel)`` ratio of the RMS change per step.
        energy: ``(mark, rollout)`` ratio.
        spectrum: ``(mark, rollout)`` exp of the mean |log ratio| over the degrees that count.
        mean_spectrum: ``(mark,)`` worst factor of any degree that counts, after averaging over rollouts.
        drift: ``(rollout,)`` largest drift of an area mean.
        bounded: ``(rollout,)``.
        plausible: ``(rollout,)``: bounded and within all limits at all marks.
        failures: What failed, with how many rollouts.
    """

    marks: tuple[int, ...]
    maximum: Floats
    variance: Floats
    tendency: Floats
    energy: Floats
    spectrum: Floats
    mean_spectrum: Floats
    drift: Floats
    bounded: NDArray[np.bool_]
    plausible: NDArray[np.bool_]
    failures: dict[str, int]


def judge(
    history: History,
    reference: History,
    describer: Describer,
    marks: tuple[int, ...],
    *,
    window: int = 48,
    limits: PlausibilityLimits | None = None,
) -> Verdict:
    """Compare rollouts with the solver's runs from the same states at the same hours.

    Args:
        history: The rollouts.
        reference: The solver's.
        describer: Knows the energy.
        marks: Hours at which to compare.
        window: Hours that are averaged up to each mark: waves beat, single hours tell little.
        limits: The bands; the library's defaults when left out.
    """
    limits = limits or PlausibilityLimits()
    windows = [slice(max(mark - window, 0), mark) for mark in marks]

    def ratio(ours: Floats, theirs: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.array([np.nan_to_num(ours[w].mean(0) / theirs[w].mean(0), nan=np.inf) for w in windows])

    variance = ratio(history.variance, reference.variance)
    tendency = np.sqrt(ratio(history.change, reference.change))
    energy = ratio(describer.energy(history), describer.energy(reference))
    spectrum, mean_spectrum = _spectra(history.power, reference.power, windows)
    with np.errstate(invalid="ignore"):
        drift = np.nan_to_num(np.abs(history.mean - history.mean[:1]).max((0, 2)), nan=np.inf)
        maximum = np.nan_to_num(history.maximum, nan=np.inf).max(0)
    low, high = limits.variance
    passed = {
        "bounded": maximum <= limits.bound,
        "variance": ((variance >= low) & (variance <= high)).all((0, 2)),
        "energy": ((energy >= low) & (energy <= high)).all(0),
        "spectrum": (spectrum <= limits.spectrum).all(0),
        "not frozen": (tendency >= limits.tendency).all((0, 2)),
        "area means": drift <= limits.mean_drift,
    }
    return Verdict(
        marks=marks,
        maximum=maximum,
        variance=variance,
        tendency=tendency,
        energy=energy,
        spectrum=spectrum,
        mean_spectrum=mean_spectrum,
        drift=drift,
        bounded=passed["bounded"],
        plausible=np.logical_and.reduce(list(passed.values())),
        failures={name: int((~good).sum()) for name, good in passed.items() if not good.all()},
    )


def _spectra(power: Floats, reference: Floats, windows: list[slice]) -> tuple[Floats, Floats]:
    """Factor between spectra per (mark, rollout), and the worst one of a degree of the mean over rollouts (mark,)."""
    single, pooled = [], []
    for window in windows:
        with np.errstate(all="ignore"):
            ours, theirs = power[window, ..., 1:].mean(0), reference[window, ..., 1:].mean(0)
        single.append(np.exp(_log_ratio(ours, theirs).mean))
        pooled.append(np.exp(_log_ratio(ours.mean(0), theirs.mean(0)).worst))
    return np.array(single), np.array(pooled)


@dataclasses.dataclass(frozen=True)
class _LogRatio:
    mean: Floats
    worst: Floats


def _log_ratio(ours: Floats, theirs: Floats) -> _LogRatio:
    """|log(ours / theirs)| over (channel, degree) where the solver has power."""
    used = theirs >= SHARE * theirs.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        distance = np.abs(np.log(ours / theirs))
    distance = np.where(used, np.where(np.isfinite(distance), distance, np.inf), 0.0)
    return _LogRatio(distance.sum((-2, -1)) / used.sum((-2, -1)), distance.max((-2, -1)))

"""Rollouts: the model applied to its own output, and what is to be said about them.

Thousands of steps are cheap: they run in chunks of one compiled ``lax.scan``. An evaluation says how
good a rollout is at short leads (relative L2, RMSE, anomaly correlation, beside persistence) and
whether it stays a planet at long ones: bounds, variance and spectrum beside the truth's, drift of
the means, and tendencies, since a frozen state is bounded too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax._area_mean import sphere_mean
from sfno_jax._dtypes import real_array
from sfno_jax.losses import loss_weights
from sfno_jax.metrics import anomaly_correlation, rmse
from sfno_jax.spectral import power_spectrum
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.training.step import ModelParts
from sfno_jax.transforms import RealSHT

__all__ = [
    "LeadScores",
    "PlausibilityLimits",
    "StabilityReport",
    "Stepper",
    "evaluate_leads",
    "evaluate_stability",
    "rollout",
    "rollout_chunks",
]

Floats = NDArray[np.float64]


@partial(jax.tree_util.register_dataclass, data_fields=["parts", "stabiliser"], meta_fields=[])
@dataclass(frozen=True)
class Stepper:
    """One model step in evaluation mode, ``x -> stabilise(x, model(x))``; a pytree.

    Its tables travel as arguments of a jitted function, never as constants.
    """

    parts: ModelParts
    stabiliser: Stabiliser | None = None

    @classmethod
    def of(cls, model: nnx.Module, stabiliser: Stabiliser | None = None) -> Stepper:
        """The step of a model (which is put into evaluation mode)."""
        return cls(ModelParts.split(model, training=False), stabiliser)

    def __call__(self, x: Array) -> Array:
        """Next state of ``(batch, channel, nlat, nlon)`` in normalised units."""
        y, _ = self.parts(x)
        return y if self.stabiliser is None else self.stabiliser(x, y)


@partial(jax.jit, static_argnames=("length",))
def _advance(step: Any, x: Array, length: int) -> tuple[Array, Array]:
    def one(state: Array, _: None) -> tuple[Array, Array]:
        state = step(state)
        return state, state

    return jax.lax.scan(one, x, None, length=length)


def rollout_chunks(
    step: Callable[[Array], Array], initial: ArrayLike, steps: int, *, chunk: int = 48
) -> Iterator[NDArray[Any]]:
    """States after 1, 2, …, ``steps`` model steps, in chunks.

    Args:
        step: A :class:`Stepper`, or any pytree that is callable (wrap a plain function in
            :class:`jax.tree_util.Partial`).
        initial: ``(batch, channel, nlat, nlon)`` in normalised units.
        steps: Number of steps.
        chunk: Steps per compiled scan.

    Yields:
        Arrays ``(at most chunk, batch, channel, nlat, nlon)``. A state that is not finite stays so;
        no error is raised, blow-up being a result here.
    """
    if steps < 1 or chunk < 1:
        raise ValueError(f"steps and chunk must be at least 1, got {steps} and {chunk}")
    x = real_array("initial", initial)
    if x.ndim != 4:
        raise ValueError(f"initial must be (batch, channel, nlat, nlon), got shape {x.shape}")
    chunk = min(chunk, steps)
    for done in range(0, steps, chunk):
        # the last chunk runs over: a shorter one would compile again
        x, states = _advance(step, x, chunk)
        yield np.asarray(states[: steps - done])


def rollout(step: Callable[[Array], Array], initial: ArrayLike, steps: int, *, every: int = 1) -> NDArray[Any]:
    """States after ``every``, ``2 every``, … steps: ``(steps // every, batch, channel, nlat, nlon)``.

    Arguments as :func:`rollout_chunks`.
    """
    kept, number = [], 0
    for states in rollout_chunks(step, initial, steps):
        numbers = number + 1 + np.arange(len(states))
        kept.append(states[numbers % every == 0])
        number += len(states)
    return np.concatenate(kept)


@dataclass(frozen=True)
class LeadScores:
    """Scores at chosen leads; arrays are float64.

    Attributes:
        leads: Model steps ``(lead,)``.
        relative_l2: ``(lead, sample)``: root of the squared error over that of the truth, both
            summed over channels and averaged over the sphere.
        persistence_l2: The same for the initial state kept.
        rmse: ``(lead, channel)``, pooled over samples, normalised units.
        acc: ``(lead, channel)``, mean over samples, with the given climatology.
    """

    leads: tuple[int, ...]
    relative_l2: Floats
    persistence_l2: Floats
    rmse: Floats
    acc: Floats

    def rows(self) -> list[dict[str, float]]:
        """One plain row per lead: lead, mean L2 of the model and of persistence, mean ACC."""
        return [
            {
                "lead": lead,
                "l2": float(self.relative_l2[i].mean()),
                "persistence_l2": float(self.persistence_l2[i].mean()),
                "acc": float(self.acc[i].mean()),
            }
            for i, lead in enumerate(self.leads)
        ]


def _relative_l2(x: Array, truth: Array, weights: ArrayLike) -> Array:
    error = jnp.sum(sphere_mean((x - truth) ** 2, weights), -1)
    return jnp.sqrt(error / jnp.sum(sphere_mean(truth**2, weights), -1))


def evaluate_leads(
    step: Callable[[Array], Array],
    truth: ArrayLike,
    leads: Sequence[int],
    grid: str,
    *,
    climatology: ArrayLike = 0.0,
) -> LeadScores:
    """Compare a rollout with the true trajectories at some leads.

    Args:
        step: See :func:`rollout_chunks`.
        truth: ``(sample, time, channel, nlat, nlon)`` in normalised units; the rollout starts from
            time 0, and lead n is compared with time n.
        leads: Numbers of model steps, increasing.
        grid: One of :data:`sfno_jax.grids.GRIDS`.
        climatology: Subtracted for the anomaly correlation; broadcasts to ``(sample, channel, nlat,
            nlon)``.

    Returns:
        The scores.

    Raises:
        ValueError: When leads do not increase or run beyond the truth.
    """
    exact = np.asarray(truth)
    leads = tuple(int(lead) for lead in leads)
    if exact.ndim != 5:
        raise ValueError(f"truth must be (sample, time, channel, nlat, nlon), got {exact.shape}")
    if not leads or leads[0] < 1 or list(leads) != sorted(set(leads)):
        raise ValueError(f"leads must increase and start at 1 or later, got {leads}")
    if leads[-1] >= exact.shape[1]:
        raise ValueError(f"lead {leads[-1]} needs {leads[-1] + 1} true states, there are {exact.shape[1]}")
    nlat, nlon = exact.shape[-2:]
    weights = loss_weights(nlat, nlon, grid)
    states = rollout(step, exact[:, 0], leads[-1])
    scores: dict[str, list[Any]] = {"l2": [], "persistence": [], "rmse": [], "acc": []}
    for lead in leads:
        x, y = jnp.asarray(states[lead - 1]), jnp.asarray(exact[:, lead])
        scores["l2"].append(_relative_l2(x, y, weights))
        scores["persistence"].append(_relative_l2(jnp.asarray(exact[:, 0]), y, weights))
        scores["rmse"].append(jnp.sqrt(jnp.mean(rmse(x, y, weights) ** 2, 0)))
        scores["acc"].append(anomaly_correlation(x, y, weights, climatology=climatology))
    return LeadScores(leads, *(np.asarray(value, np.float64) for value in scores.values()))


@dataclass(frozen=True)
class PlausibilityLimits:
    """What a long rollout must keep to be called plausible. Ratios are to the truth.

    Attributes:
        bound: Largest absolute value [std].
        variance: Lowest and highest ratio of the variance of a channel about its area mean.
        spectrum: Largest factor, up or down, between spectra, on average over degrees
            (the mean of |log ratio|, exponentiated).
        tendency: Lowest ratio of the RMS change per step: below it a state is frozen.
        mean_drift: Largest drift of a channel's area mean [std].
    """

    bound: float = 8.0
    variance: tuple[float, float] = (0.25, 4.0)
    spectrum: float = 4.0
    tendency: float = 0.2
    mean_drift: float = 0.1


@dataclass(frozen=True)
class StabilityReport:
    """A long rollout, per sample; ``mark`` runs over ``marks``.

    Attributes:
        steps: Length.
        marks: Steps at which the state is described.
        maximum: ``(mark, sample)``: largest absolute value up to there since the mark before [std].
        variance_ratio: ``(mark, sample, channel)``: variance about the area mean over that of the
            reference.
        tendency_ratio: ``(mark, sample, channel)``: RMS change in the step to the mark over that of
            the reference.
        mean_drift: ``(mark, sample, channel)``: area mean minus that of the initial state [std].
        spectrum_ratio: ``(mark, sample)``: exp of the mean |log| of the ratio of the power per
            degree to the reference's, over channels and degrees 1 … lmax-1.
        spectrum: ``(mark, sample, channel, lmax)``: power per degree.
        reference_spectrum: ``(channel, lmax)``.
        bounded_for: ``(sample,)``: steps before a value exceeds the bound, or ``steps``.
        diagnostics: Further values ``(mark, sample)`` by name, such as mass and energy.
        plausible: ``(sample,)``: within all limits at every mark.
        reasons: One sentence per sample that is not.
    """

    steps: int
    marks: tuple[int, ...]
    maximum: Floats
    variance_ratio: Floats
    tendency_ratio: Floats
    mean_drift: Floats
    spectrum_ratio: Floats
    spectrum: Floats
    reference_spectrum: Floats
    bounded_for: NDArray[np.int64]
    diagnostics: Mapping[str, Floats]
    plausible: NDArray[np.bool_]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the spectra."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if "spectrum" not in field.name or field.name == "spectrum_ratio"
        }
        values["diagnostics"] = {name: a.tolist() for name, a in self.diagnostics.items()}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


@dataclass(frozen=True)
class _Reference:
    """What the truth's states look like: per channel, averaged over time and samples."""

    variance: Floats
    tendency: Floats
    spectrum: Floats


def _describe(x: Array, sht: RealSHT, weights: ArrayLike) -> tuple[Array, Array, Array]:
    mean = sphere_mean(x, weights)
    variance = sphere_mean((x - mean[..., None, None]) ** 2, weights)
    return mean, variance, power_spectrum(sht(x))


def _reference(truth: NDArray[Any], sht: RealSHT, weights: ArrayLike) -> _Reference:
    variance, tendency, spectrum = [], [], []
    for sample in truth:
        x = jnp.asarray(sample)
        _, var, power = _describe(x, sht, weights)
        change = sphere_mean(jnp.diff(x, axis=0) ** 2, weights)
        variance.append(var.mean(0))
        tendency.append(change.mean(0))
        spectrum.append(power.mean(0))
    return _Reference(
        np.mean(np.asarray(variance, np.float64), 0),
        np.sqrt(np.mean(np.asarray(tendency, np.float64), 0)),
        np.mean(np.asarray(spectrum, np.float64), 0),
    )


def evaluate_stability(
    step: Callable[[Array], Array],
    initial: ArrayLike,
    reference: ArrayLike,
    grid: str,
    *,
    steps: int = 1460,
    marks: Sequence[int] = (100, 200, 400, 800, 1460),
    lmax: int | None = None,
    limits: PlausibilityLimits | None = None,
    diagnostics: Mapping[str, Callable[[Array], ArrayLike]] | None = None,
    chunk: int = 20,
) -> StabilityReport:
    """Run a long rollout and say whether it stays bounded and physically plausible.

    Args:
        step: See :func:`rollout_chunks`.
        initial: ``(sample, channel, nlat, nlon)`` in normalised units.
        reference: True trajectories ``(sample, time, channel, nlat, nlon)``, best at the lead times
            of the rollout, whose variance, spectrum and tendencies set the scale.
        grid: One of :data:`sfno_jax.grids.GRIDS`.
        steps: Length of the rollout.
        marks: Steps at which it is described; those beyond ``steps`` are left out.
        lmax: Degrees that the spectra compare; the truncation of the true data is a good choice.
        limits: What counts as plausible.
        diagnostics: Functions of ``(sample, channel, nlat, nlon)`` that return ``(sample,)``.
        chunk: Steps per compiled scan.

    Returns:
        The report. A rollout that is not finite is reported as such, never as an error.
    """
    start, exact = np.asarray(initial), np.asarray(reference)
    if exact.ndim != 5 or exact.shape[1] < 2:
        raise ValueError(f"reference must be (sample, time >= 2, channel, nlat, nlon), got {exact.shape}")
    limits = limits or PlausibilityLimits()
    chosen = tuple(sorted({int(m) for m in marks if 1 <= m <= steps} | {steps}))
    nlat, nlon = start.shape[-2:]
    weights = loss_weights(nlat, nlon, grid)
    sht = RealSHT(nlat, nlon, lmax=lmax, grid=grid)
    known = _reference(exact, sht, weights)
    first_mean = np.asarray(sphere_mean(jnp.asarray(start), weights), np.float64)
    rows: dict[str, list[Any]] = {k: [] for k in ("maximum", "variance", "tendency", "drift", "spectrum")}
    extra: dict[str, list[Any]] = {name: [] for name in diagnostics or {}}
    bounded = np.full(len(start), steps)
    running = np.zeros(len(start))
    number, previous = 0, start
    for states in rollout_chunks(step, start, steps, chunk=chunk):
        for state in states:
            number += 1
            with np.errstate(invalid="ignore"):
                peak = np.abs(state).max((1, 2, 3)).astype(np.float64)
            peak[~np.isfinite(peak)] = np.inf
            running = np.maximum(running, peak)
            fresh = (peak > limits.bound) & (bounded == steps)
            bounded[fresh] = number - 1
            if number in chosen:
                x = jnp.asarray(state)
                mean, variance, power = _describe(x, sht, weights)
                change = jnp.sqrt(sphere_mean((x - jnp.asarray(previous)) ** 2, weights))
                rows["maximum"].append(running)
                rows["variance"].append(np.asarray(variance, np.float64) / known.variance)
                rows["tendency"].append(np.asarray(change, np.float64) / known.tendency)
                rows["drift"].append(np.asarray(mean, np.float64) - first_mean)
                rows["spectrum"].append(np.asarray(power, np.float64))
                for name, function in (diagnostics or {}).items():
                    extra[name].append(np.asarray(function(x), np.float64))
                running = np.zeros(len(start))
            previous = state
    spectrum = np.array(rows["spectrum"])
    report = StabilityReport(
        steps=steps,
        marks=chosen,
        maximum=np.array(rows["maximum"]),
        variance_ratio=np.array(rows["variance"]),
        tendency_ratio=np.array(rows["tendency"]),
        mean_drift=np.array(rows["drift"]),
        spectrum_ratio=_spectrum_distance(spectrum, known.spectrum),
        spectrum=spectrum,
        reference_spectrum=known.spectrum,
        bounded_for=bounded,
        diagnostics={name: np.array(values) for name, values in extra.items()},
        plausible=np.zeros(len(start), bool),
        reasons=(),
    )
    return _judge(report, limits)


def _spectrum_distance(spectrum: Floats, reference: Floats) -> Floats:
    """Exp of the mean |log ratio| over channels and degrees with power; ``(mark, sample)``."""
    used = reference[:, 1:] > 1e-10 * reference[:, 1:].max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        distance = np.abs(np.log(spectrum[..., 1:] / np.where(used, reference[:, 1:], 1)))
    distance = np.where(used, np.where(np.isfinite(distance), distance, np.inf), 0)
    return np.asarray(np.exp(distance.sum((-2, -1)) / used.sum()))


def _judge(report: StabilityReport, limits: PlausibilityLimits) -> StabilityReport:
    reasons = []
    plausible = np.zeros(len(report.bounded_for), bool)
    low, high = limits.variance
    for i, bounded in enumerate(report.bounded_for):
        variance, drift = report.variance_ratio[:, i], np.abs(report.mean_drift[:, i])
        checks = [
            (bounded >= report.steps, f"exceeds {limits.bound:g} std after {bounded} steps"),
            (np.all(variance <= high), f"variance grows to {variance.max():.3g} of the truth's"),
            (np.all(variance >= low), f"variance falls to {variance.min():.3g} of the truth's"),
            (
                np.all(report.tendency_ratio[:, i] >= limits.tendency),
                f"is frozen: tendencies fall to {report.tendency_ratio[:, i].min():.3g}",
            ),
            (
                np.all(report.spectrum_ratio[:, i] <= limits.spectrum),
                f"spectrum is off by a factor of {report.spectrum_ratio[:, i].max():.3g}",
            ),
            (np.all(drift <= limits.mean_drift), f"means drift by {drift.max():.3g} std"),
        ]
        failed = [text for passed, text in checks if not passed]
        plausible[i] = not failed
        if failed:
            reasons.append(f"sample {i} {'; '.join(failed)}")
    return dataclasses.replace(report, plausible=plausible, reasons=tuple(reasons))

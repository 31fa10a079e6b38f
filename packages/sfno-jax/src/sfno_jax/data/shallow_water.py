"""Shallow-water data, integrated when they are asked for.

What a network learns from matters more than how much of it there is.  Pairs drawn from random initial
states alone (the data set of torch-harmonics 0.9) teach how noise relaxes in its first hour; a rollout then
leaves what was seen after one step.  So trajectories are the unit here: random initial states are
integrated for days, and pairs or longer windows are drawn along them.

Fields have three channels: geopotential [m2 s-2], vorticity [s-1], divergence [s-1], float32.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from sfno_jax._files import write_atomically
from sfno_jax.data.normalization import Normalizer
from sfno_jax.grids import area_weights, choose
from sfno_jax.physics.initial_conditions import scale_noise
from sfno_jax.physics.shallow_water import ShallowWaterSolver

__all__ = [
    "CHANNELS",
    "UNITS",
    "ShallowWaterPairs",
    "TrajectoryData",
    "cached_trajectories",
    "fit_normalizer",
    "generate_trajectories",
]

CHANNELS = ("geopotential", "vorticity", "divergence")
UNITS = ("m2 s-2", "s-1", "s-1")

Fields = NDArray[np.float32]

_FORMAT = 1


def generate_trajectories(
    solver: ShallowWaterSolver,
    n: int,
    hours: float,
    dt_hours: float,
    key: int | tuple[int, ...] | jax.Array,
    *,
    mach: float = 0.2,
    spin_up_hours: float = 0.0,
    batch_size: int = 40,
    progress: Callable[[int, int], None] | None = None,
) -> Fields:
    """Integrate random initial states and keep what the grid sees at regular times.

    Trajectory number i depends on the key and i alone, not on how many others there are.

    Args:
        solver: Equations, grid and time step.
        n: Number of trajectories.
        hours: Length of each [h].
        dt_hours: Time between the states that are kept [h], a multiple of the solver's step.
        key: Seed, words of one, or a JAX random key.
        mach: Size of the initial winds over the wave speed, see `random_state`.
        spin_up_hours: Time integrated before the first state that is kept [h].
        batch_size: Trajectories integrated together.
        progress: Called with (trajectories done, n) after each batch.

    Returns:
        (n, time, 3, nlat, nlon) float32, ``time = hours / dt_hours + 1`` with the initial state.

    Raises:
        ValueError: Times that are not multiples of one another, or counts below one.
        InstabilityError: A trajectory blew up.
    """
    if n < 1 or batch_size < 1:
        raise ValueError(f"n={n} and batch_size={batch_size}; expected numbers >= 1")
    every = _multiple("dt_hours", dt_hours * 3600, "the solver's dt", solver.parameters.dt)
    count = _multiple("hours", hours, "dt_hours", dt_hours)
    spin_up = 0
    if spin_up_hours:
        spin_up = _multiple("spin_up_hours", spin_up_hours * 3600, "the solver's dt", solver.parameters.dt)
    p = solver.parameters
    out = np.empty((n, count + 1, 3, p.nlat, p.nlon), np.float32)
    for first in range(0, n, batch_size):
        # The last batch is filled up with trajectories that are thrown away, so that every batch
        # has one shape and is compiled once.
        chosen = np.minimum(first + np.arange(min(batch_size, n)), n - 1)
        normal = np.stack([_noise(key, i, (2, 3, p.lmax, p.mmax)) for i in chosen], axis=1)
        state = solver.initial_state(scale_noise(solver, normal, mach))
        if spin_up:
            state = solver.integrate(state, spin_up)
        _, later = solver.trajectory(state, count, every)
        part = out[first : first + batch_size]
        for time, spec in enumerate([state.spec, *np.asarray(later)]):  # a JAX array compiles its own unpacking
            part[:, time] = solver.to_grid(spec)[: len(part)]
        if progress is not None:
            progress(min(first + batch_size, n), n)
    return out


def fit_normalizer(solver: ShallowWaterSolver, trajectories: Fields, method: str = "area") -> Normalizer:
    """Mean and standard deviation of each channel.

    Args:
        solver: Gives the grid.
        trajectories: (n, time, 3, nlat, nlon).
        method: "area": weighted by area, over all states.  "one-sample": of the first state of the
            first trajectory, unweighted (torch-harmonics 0.9; its statistics change with the seed).

    Raises:
        ValueError: Unknown method or wrong shape.
    """
    p = solver.parameters
    if trajectories.ndim != 5 or trajectories.shape[2:] != (3, p.nlat, p.nlon):
        raise ValueError(f"trajectories have shape {trajectories.shape}; expected (n, time, 3, {p.nlat}, {p.nlon})")
    if choose("method", method, ("area", "one-sample")) == "area":
        return Normalizer.fit(trajectories, area_weights(p.grid, p.nlat, p.nlon), CHANNELS, units=UNITS)
    sample = trajectories[0, 0].astype(np.float64)
    return Normalizer(CHANNELS, sample.mean((1, 2)), sample.std((1, 2), ddof=1), UNITS)


@dataclasses.dataclass(frozen=True)
class TrajectoryData:
    """Trajectories with their statistics and where they come from.

    Attributes:
        states: (n, time, 3, nlat, nlon) float32, in the channels' units.
        normalizer: Area-weighted statistics of them.
        description: Everything they were made from, JSON-able.
    """

    states: Fields
    normalizer: Normalizer
    description: dict[str, Any]

    @property
    def normalized(self) -> Fields:
        """States in units of standard deviations from the mean."""
        return np.asarray(self.normalizer.normalize(self.states))

    def save(self, folder: str | Path) -> None:
        """Write states (safetensors), statistics and description (JSON).

        The description is written last: a folder without it is not a data set.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "states.safetensors", safetensors.numpy.save({"states": self.states}))
        self.normalizer.save(folder / "normalizer.json")
        text = json.dumps(self.description, indent=1, sort_keys=True) + "\n"
        write_atomically(folder / "description.json", text.encode())

    @classmethod
    def load(cls, folder: str | Path) -> TrajectoryData:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: There is no complete data set in the folder.
        """
        folder = Path(folder)
        if not (folder / "description.json").is_file():
            raise FileNotFoundError(f"no trajectories in {folder}: description.json is missing")
        states = safetensors.numpy.load_file(folder / "states.safetensors")["states"]
        description = json.loads((folder / "description.json").read_text())
        return cls(states, Normalizer.load(folder / "normalizer.json"), description)


def cached_trajectories(
    cache: str | Path,
    solver: ShallowWaterSolver,
    n: int,
    hours: float,
    dt_hours: float,
    seed: int,
    *,
    mach: float = 0.2,
    spin_up_hours: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> TrajectoryData:
    """`generate_trajectories`, kept in a folder named by a hash of all that they depend on.

    Args:
        cache: Folder that holds the data sets.
        solver: As in `generate_trajectories`.
        n: Likewise.
        hours: Likewise [h].
        dt_hours: Likewise [h].
        seed: Likewise.
        mach: Likewise.
        spin_up_hours: Likewise [h].
        progress: Likewise.

    Raises:
        ValueError: As `generate_trajectories`.
    """
    description = {
        "format": _FORMAT,
        "solver": dataclasses.asdict(solver.parameters),
        "n": n,
        "hours": hours,
        "dt_hours": dt_hours,
        "seed": seed,
        "mach": mach,
        "spin_up_hours": spin_up_hours,
    }
    name = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:20]
    folder = Path(cache) / f"shallow-water-{name}"
    if (folder / "description.json").is_file():
        return TrajectoryData.load(folder)
    states = generate_trajectories(
        solver, n, hours, dt_hours, seed, mach=mach, spin_up_hours=spin_up_hours, progress=progress
    )
    data = TrajectoryData(states, fit_normalizer(solver, states), description)
    data.save(folder)
    return data


class ShallowWaterPairs:
    """Batches of pairs (state now, state `dt_hours` later), integrated when they are asked for.

    Batch number k is a function of the arguments and k alone: an iteration can start anywhere, and two
    of them give the same.  Iterating is endless unless `length` says otherwise.

    Args:
        solver: Equations, grid and time step.
        dt_hours: Time from input to target [h].
        batch_size: Pairs in a batch.
        length: Batches in one iteration; None for no end.
        draw: "trajectories": `batch_size` random initial states at a time are integrated for
            `trajectory_hours`, and their pairs come in random order.  "independent": every input is
            a new random initial state (torch-harmonics 0.9).
        trajectory_hours: Length of the trajectories [h].
        spin_up_hours: Integrated before the first input [h].
        mach: Size of the initial winds, see `random_state`.
        seed: Seed of the initial states and of the order.
        normalizer: "area" or "one-sample": z-scores with statistics of batch 0's trajectories (see
            `fit_normalizer`); a `Normalizer`: with these; None: fields in their units.

    Raises:
        ValueError: Unknown draw or normalizer, counts below one, times that do not fit.
    """

    def __init__(
        self,
        solver: ShallowWaterSolver,
        *,
        dt_hours: float = 1.0,
        batch_size: int = 4,
        length: int | None = None,
        draw: str = "trajectories",
        trajectory_hours: float = 24.0,
        spin_up_hours: float = 0.0,
        mach: float = 0.2,
        seed: int = 0,
        normalizer: Normalizer | str | None = "area",
    ) -> None:
        choose("draw", draw, ("trajectories", "independent"))
        if isinstance(normalizer, str):
            choose("normalizer", normalizer, ("area", "one-sample"))
        if batch_size < 1 or (length is not None and length < 0):
            raise ValueError(f"batch_size={batch_size} and length={length}; expected numbers >= 1 and >= 0")
        self.solver, self.dt_hours, self.batch_size = solver, dt_hours, batch_size
        self.length, self.draw, self.seed = length, draw, seed
        self.hours = dt_hours if draw == "independent" else trajectory_hours
        self.mach, self.spin_up_hours = mach, spin_up_hours
        self._batches = _multiple("trajectory_hours", self.hours, "dt_hours", dt_hours)
        self._block: tuple[int, Fields] | None = None
        if isinstance(normalizer, str):
            normalizer = fit_normalizer(solver, self._trajectories(0), normalizer)
        self.normalizer = normalizer

    def __len__(self) -> int:
        """Batches in one iteration.

        Raises:
            TypeError: It has no end.
        """
        if self.length is None:
            raise TypeError("these pairs have no end; give length= for a finite number of batches")
        return self.length

    def __iter__(self) -> Iterator[tuple[Fields, Fields]]:
        """Batches 0, 1, ... as `batch` returns them."""
        number = 0
        while self.length is None or number < self.length:
            yield self.batch(number)
            number += 1

    def batch(self, number: int) -> tuple[Fields, Fields]:
        """Inputs and targets of batch `number`, (batch, 3, nlat, nlon) float32 each.

        Raises:
            IndexError: number is negative, or not below `length`.
        """
        if number < 0 or (self.length is not None and number >= self.length):
            raise IndexError(f"batch {number} of {self.length if self.length is not None else 'an endless'} iteration")
        block, place = divmod(number, self._batches)
        states = self._trajectories(block)
        order = np.random.default_rng((self.seed, block)).permutation(self.batch_size * self._batches)
        chosen = order[place * self.batch_size :][: self.batch_size]
        trajectory, time = np.divmod(chosen, self._batches)
        pair = states[trajectory, time], states[trajectory, time + 1]
        if self.normalizer is None:
            return pair
        return self.normalizer.normalize(pair[0]), self.normalizer.normalize(pair[1])

    def _trajectories(self, block: int) -> Fields:
        """The trajectories of a block; the latest block is kept, as its batches come in a row."""
        if self._block is None or self._block[0] != block:
            states = generate_trajectories(
                self.solver,
                self.batch_size,
                self.hours,
                self.dt_hours,
                (self.seed, block),
                mach=self.mach,
                spin_up_hours=self.spin_up_hours,
            )
            self._block = block, states
        return self._block[1]


def _noise(key: int | tuple[int, ...] | jax.Array, number: int, shape: tuple[int, ...]) -> Fields:
    """Normal numbers for trajectory `number`, by NumPy: JAX's generator takes a second to compile."""
    if isinstance(key, jax.Array):
        key = tuple(int(word) for word in np.asarray(jax.random.key_data(key)).ravel())
    words = (key,) if isinstance(key, int) else key
    return np.random.default_rng((*words, int(number))).standard_normal(shape, np.float32)


def _multiple(name: str, value: float, unit_name: str, unit: float) -> int:
    """Return value / unit, which must be a whole number of at least one."""
    count = value / unit if unit > 0 and math.isfinite(value) else 0.0
    if count < 1 - 1e-9 or abs(count - round(count)) > 1e-6:
        raise ValueError(f"{name} ({value:g}) must be a positive multiple of {unit_name} ({unit:g})")
    return round(count)

"""Windows along trajectories, drawn without replacement by one seeded generator.

A training sample is ``n_future + 1`` consecutive states of one trajectory. Which ones form batch
number k of a stage is a pure function of (seed, stage, k), so that a run resumes exactly.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayTrajectories", "TrajectorySource", "WindowSampler"]


class TrajectorySource(Protocol):
    """What a trainer reads: trajectories in normalised units, in memory or not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(trajectory, time, channel, nlat, nlon)``."""

    def windows(self, trajectory: NDArray[np.int64], start: NDArray[np.int64], length: int) -> NDArray[Any]:
        """States ``(batch, length, channel, nlat, nlon)`` from the given starts."""


class ArrayTrajectories:
    """Trajectories in memory.

    Args:
        states: ``(trajectory, time, channel, nlat, nlon)``, float32 or float64, finite.

    Raises:
        ValueError: On another shape or dtype, or on a NaN, with its first index.
    """

    def __init__(self, states: Any) -> None:
        self.states: NDArray[Any] = np.asarray(states)
        if self.states.ndim != 5:
            raise ValueError(f"states must be (trajectory, time, channel, nlat, nlon), got {self.states.shape}")
        if self.states.dtype not in (np.float32, np.float64):
            raise ValueError(f"states must be float32 or float64, got {self.states.dtype}")
        finite = np.isfinite(self.states)
        if not finite.all():
            first = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(
                f"states hold {np.count_nonzero(~finite)} NaN or infinite values, the first at "
                f"(trajectory, time, channel, row, column) = {first}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """``(trajectory, time, channel, nlat, nlon)``."""
        return self.states.shape

    def windows(self, trajectory: NDArray[np.int64], start: NDArray[np.int64], length: int) -> NDArray[Any]:
        """States ``(batch, length, channel, nlat, nlon)`` from the given starts."""
        times = start[:, None] + np.arange(length)
        return np.asarray(self.states[trajectory[:, None], times])


class WindowSampler:
    """Batches of windows, each epoch a new permutation of all of them.

    Args:
        source: The trajectories.
        n_future: States after the first one in a window.
        batch_size: Windows per batch; what is left of an epoch is dropped.
        seed: Words of the seed, such as ``(seed, stage)``.

    Raises:
        ValueError: When the trajectories are too short or too few for one batch.
    """

    def __init__(
        self,
        source: TrajectorySource,
        n_future: int,
        batch_size: int,
        seed: tuple[int, ...],
    ) -> None:
        count, times = source.shape[:2]
        if times <= n_future:
            raise ValueError(
                f"n_future = {n_future} needs trajectories of at least {n_future + 1} states, these have {times}"
            )
        self.source, self.n_future, self.batch_size = source, n_future, batch_size
        self.starts = times - n_future
        self.count = count * self.starts
        if self.count < batch_size:
            raise ValueError(
                f"batch_size = {batch_size} is more than the {self.count} windows of "
                f"{n_future + 1} states in {count} trajectories of {times}"
            )
        self.batches_per_epoch = self.count // batch_size
        self._seed = seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:  # batches come in sequence: one permutation is kept
            generator = np.random.default_rng((*self._seed, epoch))
            self._epoch, self._order = epoch, generator.permutation(self.count)
        return self._order

    def batch(self, number: int) -> NDArray[Any]:
        """Batch ``number`` (0, 1, …): ``(n_future + 1, batch, channel, nlat, nlon)``."""
        epoch, place = divmod(number, self.batches_per_epoch)
        chosen = self._permutation(epoch)[place * self.batch_size :][: self.batch_size]
        trajectory, start = np.divmod(chosen, self.starts)
        windows = self.source.windows(trajectory, start, self.n_future + 1)
        return np.swapaxes(windows, 0, 1)

    def batches(self, first: int, count: int) -> NDArray[Any]:
        """``count`` batches in a row, stacked on a new axis 0."""
        return np.stack([self.batch(first + i) for i in range(count)])

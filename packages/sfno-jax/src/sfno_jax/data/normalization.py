"""Normalisation of channels by statistics over time and the sphere.

``z = (x - mean) / std`` per channel, with area-weighted, streaming statistics; a second set of
scales, the standard deviation of the change over one time step, makes losses comparable between
fast and slow channels (makani's time-difference normalisation).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp
from numpy.typing import ArrayLike, NDArray

from sfno_jax._files import write_atomically
from sfno_jax.metrics import StreamingMoments

__all__ = ["Normalizer"]


@dataclass(frozen=True)
class Normalizer:
    """Mean and standard deviation per channel, with names and units.

    Attributes:
        channels: Names, in the order of axis -3 of the fields.
        mean: Float64 ``(channel,)``, in the channel's unit.
        std: Float64 ``(channel,)``, positive.
        units: One unit per channel, e.g. ``"m2 s-2"``; empty strings where unknown.
        tendency_std: Standard deviation of the change over one time step, or None.

    Raises:
        ValueError: When lengths differ, or a standard deviation is zero, negative or not finite.
    """

    channels: tuple[str, ...]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    units: tuple[str, ...] = ()
    tendency_std: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        count = len(self.channels)
        object.__setattr__(self, "channels", tuple(self.channels))
        object.__setattr__(self, "units", tuple(self.units) or ("",) * count)
        for name in ("mean", "std", "tendency_std"):
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value, np.float64)
            object.__setattr__(self, name, array)
            if array.shape != (count,):
                raise ValueError(
                    f"{name} must have one value for each of the {count} channels "
                    f"{self.channels}, got shape {array.shape}"
                )
            bad = ~np.isfinite(array) if name == "mean" else ~(np.isfinite(array) & (array > 0))
            if bad.any():
                channel = self.channels[int(np.argmax(bad))]
                raise ValueError(
                    f"{name} of channel {channel!r} is {array[bad][0]}; a channel that is constant "
                    f"or has missing values cannot be normalised: leave it out or fill it"
                )
        if len(self.units) != count:
            raise ValueError(f"units must have {count} entries, got {len(self.units)}")

    @classmethod
    def fit(
        cls,
        chunks: Iterable[ArrayLike],
        weights: ArrayLike,
        channels: Sequence[str],
        *,
        units: Sequence[str] = (),
        tendencies: bool = True,
    ) -> Normalizer:
        """Statistics of data that need not fit into memory.

        Args:
            chunks: Arrays ``(time, channel, nlat, nlon)``; consecutive times within a chunk. A
                change over a time step is only taken within a chunk.
            weights: Quadrature weights ``(nlat, nlon)``.
            channels: Names.
            units: Units.
            tendencies: Also measure the changes over one step.

        Returns:
            The normaliser. NaN points are left out of the statistics.

        Raises:
            ValueError: When there are no data, or a channel is constant.
        """
        moments, changes = StreamingMoments(), StreamingMoments()
        area = np.asarray(weights, np.float64)
        for chunk in chunks:
            x = np.asarray(chunk, np.float64)
            if x.ndim != 4 or x.shape[1] != len(channels):
                raise ValueError(f"a chunk must be (time, channel={len(channels)}, nlat, nlon), got {x.shape}")
            moments.update(x, area * np.isfinite(x), axis=(0, 2, 3))
            if tendencies and len(x) > 1:
                change = np.diff(x, axis=0)
                changes.update(change, area * np.isfinite(change), axis=(0, 2, 3))
        if moments.weight.shape != (len(channels),):
            raise ValueError("there are no data to take statistics of")
        return cls(
            tuple(channels),
            moments.mean,
            moments.std,
            tuple(units),
            changes.std if changes.weight.shape == (len(channels),) else None,
        )

    def _columns(self, x: Any, name: str) -> tuple[Any, Any, Any]:
        """Field, mean and std that broadcast over ``(..., channel, nlat, nlon)`` in its dtype."""
        if not hasattr(x, "dtype"):
            x = np.asarray(x)
        if x.ndim < 3 or x.shape[-3] != len(self.channels):
            raise ValueError(
                f"{name} must be (..., channel={len(self.channels)}, nlat, nlon) with channels "
                f"{', '.join(self.channels)}, got shape {x.shape}"
            )
        library = jnp if isinstance(x, Array) else np
        return x, *(library.asarray(a, x.dtype)[:, None, None] for a in (self.mean, self.std))

    def normalize(self, x: Any) -> Any:
        """``(x - mean) / std``; NumPy in, NumPy out; JAX in, JAX out; dtype kept."""
        x, mean, std = self._columns(x, "x")
        return (x - mean) / std

    def denormalize(self, z: Any) -> Any:
        """``z * std + mean``, in the channels' units."""
        z, mean, std = self._columns(z, "z")
        return z * std + mean

    def tendency_weights(self) -> NDArray[np.float64]:
        """``(std / tendency_std)^2`` per channel: weights of a squared loss on normalised fields.

        With them the loss measures errors in units of a typical change over one step.

        Raises:
            ValueError: When the changes were not measured.
        """
        if self.tendency_std is None:
            raise ValueError("no time-difference statistics: fit with tendencies=True on series")
        return np.asarray((self.std / self.tendency_std) ** 2)

    def select(self, names: Sequence[str]) -> Normalizer:
        """The statistics of some channels, in the order given.

        Raises:
            ValueError: Listing every name that is missing.
        """
        missing = [name for name in names if name not in self.channels]
        if missing:
            raise ValueError(f"no normalisation for {', '.join(missing)}; there is one for {', '.join(self.channels)}")
        index = [self.channels.index(name) for name in names]
        return Normalizer(
            tuple(names),
            self.mean[index],
            self.std[index],
            tuple(self.units[i] for i in index),
            None if self.tendency_std is None else self.tendency_std[index],
        )

    def save(self, path: str | Path) -> None:
        """Write as JSON (float64 values survive exactly)."""
        values = {
            "channels": list(self.channels),
            "units": list(self.units),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "tendency_std": None if self.tendency_std is None else self.tendency_std.tolist(),
        }
        write_atomically(Path(path), (json.dumps(values, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Normalizer:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: When the file is missing.
            ValueError: When it is not a normalisation file.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no normalisation file {path}")
        try:
            values = json.loads(path.read_text())
            return cls(
                tuple(values["channels"]),
                np.asarray(values["mean"], np.float64),
                np.asarray(values["std"], np.float64),
                tuple(values["units"]),
                None if values["tendency_std"] is None else np.asarray(values["tendency_std"], np.float64),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a normalisation file: {error!r}") from error

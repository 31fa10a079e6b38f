"""What turns physical fields into a network's numbers: mean and deviation per channel, and names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChannelStatistics"]


@dataclass(frozen=True)
class ChannelStatistics:
    """z-scores (x - mean) / std of the input and the inverse of the output's.

    Attributes:
        mean: Per input channel, in its physical unit.
        std: Per input channel, in its physical unit, positive.
        output_mean: Per output channel.
        output_std: Per output channel.
        channels: Names of the input channels, or empty.
        output_channels: Names of the output channels, or empty.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    output_mean: tuple[float, ...]
    output_std: tuple[float, ...]
    channels: tuple[str, ...] = ()
    output_channels: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], in_channels: int, out_channels: int) -> ChannelStatistics:
        """Check and complete a mapping.

        Args:
            values: ``mean`` and ``std``; ``channels`` (names) if known; ``output_mean``,
                ``output_std`` and ``output_channels`` where they differ from the input's.
            in_channels: Number of input channels.
            out_channels: Number of output channels.

        Raises:
            ValueError: an unknown, missing, non-finite or non-positive entry, or a wrong length.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        missing = [name for name in ("mean", "std") if name not in values]
        if unknown or missing:
            raise ValueError(f"statistics: missing {missing}, unknown {unknown}; expected keys among {known}")
        filled = dict(values)
        for name, default in (("mean", None), ("std", None), ("channels", ())):
            other = f"output_{name}"
            if not len(filled.get(other, ())) and in_channels == out_channels:
                filled[other] = filled.get(name, default)
            elif other not in filled and name != "channels":
                raise ValueError(
                    f"statistics: {other} is needed since {in_channels} input channels "
                    f"become {out_channels} output channels"
                )
        entries: dict[str, Any] = {name: _numbers(name, filled[name]) for name in known[:4]}
        entries |= {name: tuple(map(str, filled.get(name, ()))) for name in known[4:]}
        result = cls(**entries)
        for name in known:
            length = len(getattr(result, name))
            want = out_channels if name.startswith("output_") else in_channels
            if length != want and not (length == 0 and name.endswith("channels")):
                raise ValueError(f"statistics: {name} has {length} entries; expected {want}")
        return result

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain lists, as `from_dict` takes them."""
        return {name: list(value) for name, value in dataclasses.asdict(self).items()}

    def normalise(self, x: NDArray[Any]) -> NDArray[Any]:
        """Physical fields (..., in_channels, nlat, nlon) to z-scores, in float64."""
        return (x.astype(np.float64) - _column(self.mean)) / _column(self.std)

    def denormalise(self, y: NDArray[Any]) -> NDArray[Any]:
        """Network output (..., out_channels, nlat, nlon) to physical units, in float64."""
        return y.astype(np.float64) * _column(self.output_std) + _column(self.output_mean)


def _column(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)[:, None, None]


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"statistics: {name}={values!r}; expected one finite number per channel")
    if name.endswith("std") and (array <= 0.0).any():
        raise ValueError(f"statistics: {name}={values!r}; standard deviations must be positive")
    return tuple(array.tolist())

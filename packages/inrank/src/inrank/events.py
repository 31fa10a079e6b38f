"""What happened to ranks: one record for each change, in memory and as lines of JSON."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inrank._files import write_atomically

__all__ = ["DEAD_CHECKS", "EventLog", "RankEvent", "warn_of"]

# Checks in a row with a spectrum of zeros after which a layer is called dead.
DEAD_CHECKS = 3


@dataclass(frozen=True)
class RankEvent:
    """A change of one layer's rank, or a reason why there was none.

    Attributes:
        step: Optimizer steps done.
        layer: Name of the layer.
        old_rank: Before.
        new_rank: After.
        active: Directions trained after, buffer included.
        ratio: Explained ratio g(s, k) of the new rank, or of the old one if it shrank; None for a spectrum of zeros.
        wanted: Rank that the criterion asked for.
        null_rank: Rank of the same rule without training; None if it was not asked for.
        kind: ``"grow"``, ``"shrink"``, ``"saturated"`` (max_rank reached, once for each layer) or ``"dead"`` (the
            spectrum stays zero, once).
    """

    step: int
    layer: str
    old_rank: int
    new_rank: int
    active: int
    ratio: float | None
    wanted: int
    null_rank: int | None = None
    kind: str = "grow"

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RankEvent:
        """From what `json.loads` gives for a line of a log."""
        return cls(**values)


class EventLog:
    """A file of one JSON object a line; it survives a kill, at worst with a torn last line, which is not read.

    Args:
        path: Of the file; its folder is made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, event: RankEvent) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(event.to_json() + "\n")

    def rewrite(self, events: list[RankEvent]) -> None:
        """Replace the content, as after going back to a checkpoint."""
        write_atomically(self.path, "".join(event.to_json() + "\n" for event in events).encode())

    def read(self) -> list[RankEvent]:
        """All whole lines.

        Raises:
            ValueError: If a line other than the last is not an event.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        events = []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                events.append(RankEvent.from_dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                if number == len(lines):  # torn: no newline came after it
                    break
                raise ValueError(f"{self.path}: line {number} is not a rank event: {error}") from error
        return events


def warn_of(events: list[RankEvent]) -> None:
    """Warn of layers that cannot grow though they should, and of dead ones, among the events of one check."""
    full = [event for event in events if event.kind == "saturated"]
    if full:
        listed = ", ".join(f"{event.layer} ({event.new_rank}, wants {event.wanted})" for event in full)
        warnings.warn(
            f"step {full[0].step}: the largest rank is reached and the criterion asks for more: {listed}; "
            "raise max_rank when the model is wrapped, or lower the threshold",
            stacklevel=4,
        )
    dead = [event for event in events if event.kind == "dead"]
    if dead:
        listed = ", ".join(event.layer for event in dead)
        warnings.warn(
            f"step {dead[0].step}: no update yet in {listed}: zero spectrum at {DEAD_CHECKS} checks: either nothing "
            "reaches the layer (frozen, unused), or factors that are both zero hold it at a saddle: choose another "
            'init, or mode="full"',
            stacklevel=4,
        )

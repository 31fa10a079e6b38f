"""Training a small network on digits while its spectra are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from inrank.experiments.digits import glyph_digits
from inrank.experiments.networks import make_network
from inrank.matrix_spectrum import matrix_spectrum
from inrank.spectrum_history import SpectrumHistory, rank_metrics
from inrank.spectrum_tracker import SpectrumTracker

__all__ = ["OPTIMIZERS", "DigitsRun", "LayerClaim", "track_digits"]

OPTIMIZERS: dict[str, Callable[[Iterator[Any]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: Adam(parameters, lr=2e-3),
}
"""By name."""

_BATCH = 64
_TEST = 1000


@dataclass(frozen=True)
class LayerClaim:
    """Fewest directions with 90% of the energy, in one layer at the end.

    Attributes:
        layer: Name.
        full_rank: min(m, n).
        first: Of D at the first record.
        update: Of D at the end.
        weight: Of W at the end.
        random: Of a Gaussian matrix of this shape: what D would have if it had no structure.
    """

    layer: str
    full_rank: int
    first: int
    update: int
    weight: int
    random: int


@dataclass(frozen=True)
class DigitsRun:
    """One network under one optimizer.

    Attributes:
        network: Name.
        optimizer: Name.
        steps: Optimizer steps.
        accuracy: On digits that were not trained on.
        loss: Of the last batches, mean [nats].
        seconds: CPU time of training and tracking.
        history: Spectra.
        layers: What they say.
    """

    network: str
    optimizer: str
    steps: int
    accuracy: float
    loss: float
    seconds: float
    history: SpectrumHistory
    layers: tuple[LayerClaim, ...]


def track_digits(
    network: str,
    optimizer: str,
    *,
    steps: int = 300,
    every: int = 10,
    seed: int = 0,
    digits: tuple[Tensor, Tensor] | None = None,
    progress: Callable[[float], None] | None = None,
) -> DigitsRun:
    """Train on digits and record D_t and W_t.

    Args:
        network: One of `inrank.experiments.NETWORKS`.
        optimizer: One of `OPTIMIZERS`.
        steps: Optimizer steps, of 64 digits each.
        every: Steps between records.
        seed: Of weights, digits and batches.
        digits: Images (count, 1, 16, 16) and labels (count,); the last 1000 are kept for the test, or a fifth if that
            is less. Default: 5000 generated ones.
        progress: Called with the steps done.

    Raises:
        ValueError: An unknown name, or steps that never reach a record.
        FloatingPointError: The loss is not finite.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    if not 1 <= every <= steps:
        raise ValueError(f"every is {every} and steps {steps}; expected 1 <= every <= steps")
    images, labels = glyph_digits(5000, seed=seed) if digits is None else digits
    split = len(labels) - min(_TEST, len(labels) // 5)
    model = make_network(network, seed=seed)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    tracker = SpectrumTracker(model, every=every)
    generator = torch.Generator().manual_seed(seed + 1)
    losses: list[float] = []
    start = time.process_time()
    for step in range(1, steps + 1):
        chosen = torch.randint(split, (_BATCH,), generator=generator)
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        losses.append(float(loss.detach()))
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss of {network} under {optimizer} is {losses[-1]} at step {step}")
        stepper.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        stepper.step()
        tracker.step()
        if progress:
            progress(step)
    seconds = time.process_time() - start
    with torch.no_grad():
        accuracy = float((model(images[split:]).argmax(1) == labels[split:]).double().mean())
    last = losses[-10:]
    return DigitsRun(
        network=network,
        optimizer=optimizer,
        steps=steps,
        accuracy=accuracy,
        loss=sum(last) / len(last),
        seconds=seconds,
        history=tracker.history,
        layers=tuple(_claim(tracker.history, layer, seed) for layer in tracker.layers),
    )


def _claim(history: SpectrumHistory, layer: str, seed: int) -> LayerClaim:
    records = history.of(layer)
    last = records[-1]
    noise = torch.randn(1, *last.shape, generator=torch.Generator().manual_seed(seed))
    weight = last.weight_ranks.energy if last.weight_ranks else None
    return LayerClaim(
        layer=layer,
        full_rank=last.full_rank,
        first=records[0].update_ranks.energy or 0,
        update=last.update_ranks.energy or 0,
        weight=weight or 0,
        random=rank_metrics(matrix_spectrum(noise).s.numpy()).energy or 0,
    )

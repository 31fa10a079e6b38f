"""Processor time of a training step, dense beside low-rank, taken in turns so that a busy machine hurts all alike."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from inrank.language.presets import load_config
from inrank.language.tokenizers import ByteTokenizer
from inrank.language.training import Texts, Trainer
from inrank.memory import count_states

__all__ = ["StepTime", "time_steps"]


@dataclass(frozen=True)
class StepTime:
    """Cost of a step.

    Attributes:
        name: Method and layers.
        rank: Of its layers; None for dense ones.
        seconds: Processor time of the fastest step [s].
        ratio: To the dense step.
        state_ratio: Weights, gradients and moments, to the dense model's.
    """

    name: str
    rank: int | None
    seconds: float
    ratio: float
    state_ratio: float


def time_steps(width: int, part: float = 1 / 3, layers: int = 2, steps: int = 4) -> list[StepTime]:
    """Time full rank, fixed rank in the mlp, fixed rank everywhere, and LoRA.

    Args:
        width: Of the model, a multiple of 32.
        part: Rank as a part of the width.
        layers: Blocks.
        steps: Of each; the fastest counts.

    Raises:
        ValueError: The width is no multiple of 32.
    """
    if width < 32 or width % 32:
        raise ValueError(f"width must be a multiple of 32, got {width}")
    rank = max(1, round(part * width))
    shape = [f"model.width={width}", f"model.layers={layers}", f"model.heads={width // 32}", "model.context=128"]
    batch = ["trainer.sequences=4", "trainer.batch_size=4", f"method.rank={rank}", "trainer.evaluation_sequences=1"]
    kinds = {
        "full rank": ["method.name=full-rank"],
        "low rank, mlp": ["method.name=fixed-rank"],
        "low rank, mlp and attention": ["method.name=fixed-rank", "method.layers=all"],
        "LoRA, mlp": ["method.name=lora"],
    }
    stream = torch.arange(5000) % 256
    texts = Texts(ByteTokenizer(), stream, stream)
    trainers = {
        name: Trainer(load_config("tiny", [*shape, *batch, *kind]), texts=texts) for name, kind in kinds.items()
    }
    best = dict.fromkeys(trainers, float("inf"))
    for _ in range(steps):
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.bare_step()
            best[name] = min(best[name], time.process_time() - began)
    states = {name: count_states(trainer.model, trainer.optimizer).total for name, trainer in trainers.items()}
    full = "full rank"
    return [
        StepTime(name, None if name == full else rank, best[name], best[name] / best[full], states[name] / states[full])
        for name in trainers
    ]

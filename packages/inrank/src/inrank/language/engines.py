"""How passes run: in plain torch on one process, or through `accelerate` on several and in mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inrank.language.presets import TrainerConfig

__all__ = ["AccelerateEngine", "Engine", "TorchEngine", "engine_for"]


class Engine(Protocol):
    """What the trainer needs of either.

    Attributes:
        device: Where batches go.
        processes: How many train together.
        process: Number of this one.
    """

    device: torch.device
    processes: int
    process: int

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """The model to call, for a model and the optimizer of its parameters."""

    @contextmanager
    def accumulating(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Around a forward and backward pass; processes exchange gradients in the last of a step."""

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradients."""

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring gradients to their true size."""

    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights; False if the step was left out because half precision had overflown."""

    def mean(self, value: Tensor) -> float:
        """The mean of a scalar over the processes."""


class TorchEngine:
    """This process, single precision, on a GPU if there is one."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.processes, self.process = 1, 0

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """The model itself, moved to the device."""
        return model.to(self.device)

    @contextmanager
    def accumulating(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Nothing to do."""
        yield

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        """Nothing to do."""

    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights."""
        optimizer.step()
        return True

    def mean(self, value: Tensor) -> float:
        """The scalar."""
        return float(value)


class AccelerateEngine:
    """As `accelerate launch` or the environment says.

    Args:
        precision: "no", "bf16" or "fp16".

    Raises:
        ImportError: The extra ``transformers`` is not installed.
    """

    def __init__(self, precision: str) -> None:
        try:
            from accelerate import Accelerator, DistributedDataParallelKwargs  # type: ignore[import-untyped,unused-ignore]
        except ModuleNotFoundError as error:
            raise ImportError("accelerate is not installed; `pip install 'inrank[transformers]'` has it") from error
        self._accelerator: Any = Accelerator(
            mixed_precision=precision,
            # W_0 and initial factors never change, and stage 2 drops them
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
        self._optimizer: Any = None
        self.device = self._accelerator.device
        self.processes, self.process = self._accelerator.num_processes, self._accelerator.process_index

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """The model as accelerate wraps it; parameters stay the same objects."""
        prepared, self._optimizer = self._accelerator.prepare(model, optimizer)
        result: nn.Module = prepared
        return result

    @contextmanager
    def accumulating(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Without exchange of gradients until the last pass."""
        if last:
            yield
            return
        with self._accelerator.no_sync(model):
            yield

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradients, scaled in half precision."""
        self._accelerator.backward(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring gradients to their true size."""
        self._accelerator.unscale_gradients(self._optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights."""
        self._optimizer.step()
        return not self._accelerator.optimizer_step_was_skipped

    def mean(self, value: Tensor) -> float:
        """The mean of a scalar over the processes."""
        return float(self._accelerator.reduce(value.detach(), reduction="mean"))


def engine_for(config: TrainerConfig) -> Engine:
    """The engine that a configuration asks for.

    Raises:
        ImportError: It needs the extra ``transformers``.
    """
    return AccelerateEngine(config.precision) if config.engine == "accelerate" else TorchEngine()

"""Where the memory of a training step goes: weights, gradients, moments, W_0, activations, workspace.

Parts are counted by following every storage that an operation of the step makes; the peak is measured beside it, from
the allocator's own record (CPU: the profiler's allocation events; CUDA: its peak statistics). What the parts leave of
the measured peak, such as buffers inside kernels, is stated as unexplained. (A part that is left out, or divided by
the batch, is how reports of low-rank methods go wrong: GaLore's issue 28.)
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inrank.allocations import measured_growth

__all__ = ["MOMENTS", "PARTS", "MemoryReport", "StateBytes", "count_states", "measure_memory", "planned_states"]

PARTS = ("weights", "frozen", "gradients", "moments", "activations", "workspace")
"""What a peak is made of."""

MOMENTS: Mapping[str, int] = MappingProxyType({"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2})
"""Tensors of a parameter's size that optimizers keep for it."""


@dataclass(frozen=True)
class StateBytes:
    """What stays between steps, and gradients [bytes].

    Attributes:
        weights: Parameters that are trained; shared ones once.
        frozen: Buffers, such as a kept W_0, and parameters that are not trained.
        gradients: One number for each trained weight.
        moments: All tensors of the optimizer's state.
    """

    weights: int
    frozen: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        """Sum of all four."""
        return self.weights + self.frozen + self.gradients + self.moments


@dataclass(frozen=True)
class MemoryReport:
    """Memory of a training step [bytes].

    Attributes:
        states: Weights, frozen weights, gradients and moments.
        activations: Everything that the forward pass saves for the backward pass, views once, parameters not.
        peak: What is alive at the highest moment, by `PARTS`; gradients and activations are rarely whole there.
        measured: The highest moment by the allocator's record.
        device: Where.
    """

    states: StateBytes
    activations: int
    peak: Mapping[str, int]
    measured: int
    device: str

    @property
    def counted(self) -> int:
        """Sum of the parts at the highest moment."""
        return sum(self.peak.values())

    @property
    def unexplained(self) -> int:
        """What the parts leave of the measured peak: buffers inside kernels, rounding of blocks."""
        return self.measured - self.counted

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "device": self.device,
            "measured": self.measured,
            "counted": self.counted,
            "unexplained": self.unexplained,
            "peak": dict(self.peak),
            "states": {**asdict(self.states), "total": self.states.total},
            "activations": self.activations,
        }


def count_states(model: nn.Module, optimizer: Optimizer | None = None) -> StateBytes:
    """Bytes that a model and its optimizer hold, gradients as if all were there.

    Args:
        model: Any module.
        optimizer: Its optimizer, after a step at least: before, most have no state.
    """
    trained, frozen, moments = _storages(model, optimizer)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return StateBytes(sum(trained.values()), sum(frozen.values()), gradients, sum(moments.values()))


def planned_states(trained: int, frozen: int = 0, *, optimizer: str = "adamw", element_size: int = 4) -> StateBytes:
    """Bytes that a model would hold, from numbers of weights alone.

    Args:
        trained: Trained numbers.
        frozen: Others.
        optimizer: One of `MOMENTS`.
        element_size: Bytes of a number.

    Raises:
        ValueError: An unknown optimizer.
    """
    if optimizer not in MOMENTS:
        raise ValueError(f"no optimizer {optimizer!r}; known: {', '.join(MOMENTS)}")
    own = trained * element_size
    return StateBytes(own, frozen * element_size, own, MOMENTS[optimizer] * own)


def measure_memory(
    step: Callable[[], Any], model: nn.Module, optimizer: Optimizer | None = None, *, warmup: int = 1
) -> MemoryReport:
    """Run training steps and say where their memory went.

    The model is trained by `warmup` + 2 steps: some until the optimizer has its state, one in which storages are
    followed, and one in which nothing but the allocator looks on. Both start without gradients. What existed before a
    step is counted from its tensors, and the batch is not counted.

    Args:
        step: One training step: zero_grad, forward, backward, optimizer.step. It must not keep tensors.
        model: What it trains; all on one device.
        optimizer: What it trains it with.
        warmup: Steps before.

    Returns:
        The parts and the measured peak.

    Raises:
        ValueError: The model has no parameter, or they are on several devices, or there is no warm-up.
    """
    if warmup < 1:
        raise ValueError(f"warmup is {warmup}; at least 1 step is needed before an optimizer has its state")
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        given = ", ".join(sorted(map(str, devices))) or "none"
        raise ValueError(f"the model's parameters are on {given}; expected one device")
    device = devices.pop()
    for _ in range(warmup):
        step()
    model.zero_grad(set_to_none=True)
    follower = _Follower(model, optimizer)
    with follower.following():
        step()
    states = count_states(model, optimizer)
    model.zero_grad(set_to_none=True)
    resident = states.total - states.gradients
    measured = resident + measured_growth(step, device)
    peak = {
        "weights": states.weights,
        "frozen": states.frozen,
        "gradients": follower.at_peak["gradients"],
        "moments": states.moments,
        "activations": follower.at_peak["activations"],
        "workspace": follower.at_peak["workspace"],
    }
    return MemoryReport(states, follower.saved, MappingProxyType(peak), measured, str(device))


def _storages(model: nn.Module, optimizer: Optimizer | None) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Sizes of storages by address: trained weights, frozen ones, moments; each in one of the three."""
    trained = _sizes(p for p in model.parameters() if p.requires_grad)
    frozen = _sizes([*model.buffers(), *(p for p in model.parameters() if not p.requires_grad)])
    state = list(optimizer.state.values()) if optimizer else []
    moments = _sizes(leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    frozen = {key: size for key, size in frozen.items() if key not in trained}
    moments = {key: size for key, size in moments.items() if key not in trained and key not in frozen}
    return trained, frozen, moments


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that operations make while it is on, and remembers the highest moment."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._known = {key for part in _storages(model, optimizer) for key in part}
        self._alive: dict[int, int] = {}  # bytes by number
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._part: dict[int, str] = {}
        self._count = self._now = self._highest = 0
        self._alive_at_peak: dict[int, int] = {}
        self.saved = 0
        self.at_peak: Counter[str] = Counter()

    @contextmanager
    def following(self) -> Iterator[None]:
        """While a step runs."""
        trained: list[Any] = [p for p in self._model.parameters() if p.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(self._accumulated) for p in trained]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, _same), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()
        for number, size in self._alive_at_peak.items():
            self.at_peak[self._part.get(number, "workspace")] += size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._look()
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        # Where gradients of one tensor meet, autograd adds in place, but not while a dispatch mode is on: look when the
        # summand is gone.
        if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:
            self._look()
        return result

    def _look(self) -> None:
        if self._now > self._highest:
            self._highest = self._now
            self._alive_at_peak = dict(self._alive)

    def _follow(self, tensor: Tensor) -> int | None:
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage)
        if number is None and storage.nbytes() and storage.data_ptr() not in self._known:
            self._count += 1
            number, size = self._count, storage.nbytes()
            self._numbers[storage] = number
            self._alive[number] = size
            self._now += size
            weakref.finalize(storage, self._freed, number).atexit = False
        return number

    def _freed(self, number: int) -> None:
        self._now -= self._alive.pop(number, 0)

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            number = self._numbers.get(parameter.grad.untyped_storage())
            if number is not None:
                self._part[number] = "gradients"

    def _pack(self, tensor: Tensor) -> Tensor:
        number = self._numbers.get(tensor.untyped_storage())
        if number is not None and number not in self._part:
            self._part[number] = "activations"
            self.saved += tensor.untyped_storage().nbytes()
        return tensor


def _same(tensor: Tensor) -> Tensor:
    return tensor

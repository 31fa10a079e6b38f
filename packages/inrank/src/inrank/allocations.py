"""How far memory rises while something runs, by the allocator's own record."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["measured_growth"]

# What the profiler of a CUDA build prints on a machine without one, and the allocator on blocks from before.
_CHATTER = (b"USDT:", b"SyncActivityProfilerHandler", b"DeviceProperties.cpp", b"CPUAllocator.cpp")


def measured_growth(run: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """Highest allocation above what there is at the start [bytes].

    Args:
        run: Called once. What it frees of earlier allocations is seen on CUDA only.
        device: Whose memory.

    Raises:
        ValueError: A device whose allocator keeps no record.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - start
    if device.type != "cpu":
        raise ValueError(f"device is {device}; memory is measured on cpu and cuda")
    with _without_chatter(), torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profile:
        run()
    results: Any = profile.kineto_results
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    now = highest = 0
    for _, change in sorted(events, key=lambda event: event[0]):
        now += change
        highest = max(highest, now)
    return highest


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold back what C++ code writes to stderr, and pass on what is not the profiler's."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not any(word in line for word in _CHATTER):
                    os.write(2, line)

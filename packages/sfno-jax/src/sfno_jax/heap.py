"""Memory that a training step frees is memory the next one needs.

XLA's CPU backend allocates a step's working memory anew at each call. Above 32 MB the C library maps such
blocks from the system and unmaps them when freed, so that every step pays a page fault per 4 KB: a sixth of the
time of an SFNO training step at 64 x 128. Told to keep freed memory, it reuses it.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Ask glibc to reuse freed memory of any size instead of returning it to the system.

    Acts on the whole process, whose memory then stays at its peak; meant for programs that call compiled
    functions over and over (training, rollouts, benchmarks). Call it before JAX computes anything: threads that
    run already keep heaps of their own. Nothing in this package calls it on import.

    Returns:
        Whether the C library took the request; False where it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # No mappings for single blocks, no trimming below 2 GB of free space at the heap's end, and one heap for all
    # threads: those of their own hold 64 MB at most and fall back to mappings.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    accepted = [mallopt(name, value) for name, value in settings]
    return all(accepted)

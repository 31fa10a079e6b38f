"""The training step of bench_sfno.py with glibc told, on both sides, not to return freed memory to the system.

Our command line and demo do so (`sfno_jax.heap`). It has to be said before the first computation, hence a file, and
so an interpreter, of its own.
"""

import ctypes
import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("bench_sfno", Path(__file__).with_name("bench_sfno.py"))
bench_sfno = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench_sfno)

IMPORTS = bench_sfno.IMPORTS
inputs = bench_sfno.inputs

CASES = [
    {
        "name": f"training step 64x128, freed memory kept, {threads} thread{'s' * (threads > 1)}",
        "params": {"what": "training step", "nlat": 64},
        "threads": threads,
        "pairs": 7,
        "peers": {"torch_harmonics": {"tolerance": 2e-3, "goal": "speedup >= 3"}},
    }
    for threads in (1, 2)
]


def _keep_freed_memory():
    """What `sfno_jax.heap.keep_freed_memory` sets: no mappings of their own, no trimming, one arena."""
    for option, value in ((-4, 0), (-1, 2**31 - 1), (-8, 1)):
        ctypes.CDLL(None).mallopt(option, value)


def ours(case, data):
    _keep_freed_memory()
    return bench_sfno.ours(case, data)


def peer_torch_harmonics(case, data):
    _keep_freed_memory()
    return bench_sfno.peer_torch_harmonics(case, data)

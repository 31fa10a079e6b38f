"""Freed memory is kept: a second large allocation costs no page faults."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from sfno_jax.heap import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if {keep}:
    assert keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(1 << 26)
    ctypes.memset(block, 1, 1 << 26)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is glibc's, on Linux")
def test_second_allocation_reuses_the_first():
    counts = [
        int(subprocess.run([sys.executable, "-c", PROGRAM.format(keep=keep)], check=True, capture_output=True).stdout)
        for keep in (False, True)
    ]
    assert counts[0] >= 30  # what the setting is against: a fault per page of 64 MB, 16,384 or 32 with huge pages
    assert counts[1] < 20


def test_other_systems_are_left_alone(monkeypatch):
    from sfno_jax import heap

    monkeypatch.setattr(sys, "platform", "darwin")
    assert not heap.keep_freed_memory()

"""One side of a benchmark, in its own interpreter; needs nothing but numpy.

Started as ``python -P worker.py BENCH_FILE SIDE CPUS`` in the environment of that side, which need
not have workbench. Requests come on stdin, answers go to stdout, both as a frame: the length of a
JSON header (4 bytes, big-endian), the header, and the .npy bytes of the array whose length the
header states. No pickle, so that neither side runs what the other sends.

Requests and answers (`do` names the request)::

    import          -> versions of the side's modules
    build (case)    -> seconds of build and first call, memory, digest of the inputs; output array
    time (calls)    -> wall and CPU seconds of that many calls
"""

import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

import numpy as np

MAX_HEADER = 1 << 20  # bytes; a longer header means that something else wrote to the pipe


def write_frame(stream: BinaryIO, header: dict[str, Any], array: Any = None) -> None:
    """Sends a header, and an array if there is one."""
    payload = b""
    if array is not None:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        payload = buffer.getvalue()
    text = json.dumps({**header, "bytes": len(payload)}).encode()
    stream.write(struct.pack(">I", len(text)) + text + payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], Any]:
    """Receives a header and its array, or None in the array's place.

    Raises:
        EOFError: The other side is gone.
        ValueError: What came is no frame.
    """
    (length,) = struct.unpack(">I", _read(stream, 4))
    if length > MAX_HEADER:
        raise ValueError(f"a header of {length} bytes: something else wrote to the pipe")
    header = json.loads(_read(stream, length))
    payload = _read(stream, header.pop("bytes"))
    if not payload:
        return header, None
    return header, np.lib.format.read_array(io.BytesIO(payload), allow_pickle=False)


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("the other side closed the pipe")
    return data


def load(file: Path) -> ModuleType:
    """The benchmark file as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def namespace(case: dict[str, Any]) -> SimpleNamespace:
    """A case as its functions see it: name, threads and each parameter as an attribute."""
    return SimpleNamespace(name=case["name"], threads=case["threads"], **case["params"])


class Worker:
    """Answers the requests for one side of one benchmark file."""

    def __init__(self, file: Path, side: str) -> None:
        self._module = load(file)
        self._side = side
        self._run: Callable[[], Any] | None = None

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The header and array that answer one request."""
        kind = request["do"]
        if kind == "import":
            return self._import(), None
        if kind == "build":
            return self._build(request["case"])
        if kind == "time":
            return self._time(request["calls"]), None
        raise ValueError(f"unknown request {kind!r}")

    def _import(self) -> dict[str, Any]:
        names = self._module.IMPORTS[self._side]
        for name in names:
            importlib.import_module(name)
        found = importlib.metadata.packages_distributions()
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        for top in sorted({name.split(".")[0] for name in names} - sys.stdlib_module_names):
            # An editable install lists no files, so its module is not in the table.
            for distribution in sorted(set(found.get(top, [top.replace("_", "-")]))):
                try:
                    versions[distribution] = importlib.metadata.version(distribution)
                except importlib.metadata.PackageNotFoundError:
                    versions[distribution] = "from source, not installed"
        return {"versions": versions}

    def _build(self, case: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        self._run = None
        gc.collect()
        before = start_of_peak()
        seen = namespace(case)
        data = self._module.inputs(seen)
        digest = _digest(data)
        name = "ours" if self._side == "ours" else f"peer_{self._side}"
        start = time.perf_counter()
        side = getattr(self._module, name)(seen, data)
        self._run = getattr(side, "run", side)
        value = self._run()
        seconds = time.perf_counter() - start
        peak = peak_bytes()
        output = side.output() if hasattr(side, "output") else value
        header = {
            "first_call_seconds": seconds,
            "peak_mb": peak / 1e6,
            "growth_mb": (peak - before) / 1e6,
            "digest": digest,
        }
        if hasattr(side, "counted_bytes"):
            header["counted_mb"] = side.counted_bytes() / 1e6
        return header, np.asarray(output)

    def _time(self, calls: int) -> dict[str, float]:
        run = self._run
        if run is None:
            raise RuntimeError("nothing is built yet")
        gc.disable()  # and no collection first: it would leave a cold cache
        try:
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        finally:
            gc.enable()
        return {"seconds": wall / calls, "cpu_seconds": cpu / calls}


def start_of_peak() -> int:
    """Resets the peak where the system allows it; returns the memory held now [bytes]."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _proc_status("VmRSS")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory [bytes].

    VmHWM where there is /proc: ru_maxrss would also count what the parent held at the fork.
    """
    try:
        return _proc_status("VmHWM")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _proc_status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in /proc/self/status")


def _digest(data: dict[str, Any]) -> str:
    """Tells whether both sides made the same inputs (their numpy versions may differ)."""
    total = hashlib.sha256()
    for name in sorted(data):
        array = np.ascontiguousarray(data[name])
        total.update(f"{name} {array.dtype.str} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def main() -> None:
    """Answers requests until stdin closes."""
    file, side, cpus = sys.argv[1:]
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])
    # Keep the pipes to ourselves: a library that prints must not write into a frame.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    worker: Worker | None = None
    while True:
        try:
            request, _ = read_frame(requests)
        except (EOFError, KeyboardInterrupt):
            return
        try:
            worker = worker or Worker(Path(file), side)
            header, array = worker.answer(request)
        except Exception as error:  # whatever a peer raises is the row's answer
            traceback.print_exc()
            header, array = {"error": f"{type(error).__name__}: {error}"}, None
        write_frame(answers, header, array)


if __name__ == "__main__":
    main()

"""The two sides of a pair: interpreters kept alive and driven over pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from workbench.bench import worker
from workbench.workspace import WorkspaceError

__all__ = ["Side", "SideError", "available_cpus", "pinned_environment"]


class SideError(Exception):
    """A side raised, or its process died; the message is its last word."""


def available_cpus() -> list[int]:
    """The processors that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pinned_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold the usual thread pools to ``threads``."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "DUCC0", "VECLIB_MAXIMUM", "RAYON", "NUMBA")
    eigen = "true" if threads > 1 else "false"
    return {
        **{f"{name}_NUM_THREADS": str(threads) for name in names},
        # XLA's pool takes its size from the process's affinity; this also stops Eigen's.
        "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}",
        "NPROC": str(threads),
        # Idle threads of the waiting side must not eat the working side's processor.
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        # A compilation found in a cache on disk would make the first call look fast.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


class Side:
    """An interpreter that runs one side of a benchmark file; a context manager."""

    def __init__(self, python: Path | str, file: Path, side: str, threads: int) -> None:
        cpus = available_cpus()
        if threads > len(cpus):
            raise WorkspaceError(f"{threads} threads asked for, but there are {len(cpus)} processors")
        env = {**os.environ, **pinned_environment(threads)}
        if side != "ours":
            env.pop("PYTHONPATH", None)
        self._name = side
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()
        self._process = subprocess.Popen(
            [
                str(python),
                "-P",  # not this file's folder: its modules must not shadow others
                str(Path(worker.__file__)),
                str(file.resolve()),
                side,
                ",".join(str(cpu) for cpu in cpus[:threads]) if sys.platform == "linux" else "",
            ],
            cwd=file.parent,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.versions: dict[str, str] = {}
        try:
            self.versions = self.ask("import")[0]["versions"]
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **request: Any) -> tuple[dict[str, Any], NDArray[Any] | None]:
        """Sends a request; returns the answer's header and array.

        Raises:
            SideError: The side raised, or is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            worker.write_frame(self._process.stdin, {"do": do, **request})  # type: ignore[arg-type]
            header, array = worker.read_frame(self._process.stdout)  # type: ignore[arg-type]
        except (OSError, EOFError, ValueError) as error:
            self._process.kill()
            code = self._process.wait()
            why = self._last_words() or str(error)
            raise SideError(f"{self._name}: its process ended ({code}): {why}") from error
        if "error" in header:
            raise SideError(f"{self._name}: {header['error']}")
        return header, None if array is None else np.asarray(array)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Ends the interpreter."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

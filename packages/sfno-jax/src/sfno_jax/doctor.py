"""What runs on this machine, and whether it computes what it should.

`report` gathers versions, devices, the backend and the data that are found; `self_check` does a few transforms whose
answers are known. The command `sfno-jax doctor` prints both.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Check", "report", "self_check"]

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "matplotlib", "xarray", "h5netcdf", "zarr")


@dataclass(frozen=True)
class Check:
    """One thing computed whose answer is known.

    Attributes:
        name: What was computed.
        error: How far it is off, relative.
        tolerance: What is still right.
        milliseconds: How long one call took, after the first.
    """

    name: str
    error: float
    tolerance: float
    milliseconds: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance (NaN is not)."""
        return bool(self.error <= self.tolerance)


def report() -> dict[str, Any]:
    """Versions, devices, backend, threads and data of this machine; JSON-able."""
    import jax

    from sfno_jax import _native
    from sfno_jax.transforms import backend

    native = _native.available()
    return {
        "sfno_jax": _version("sfno-jax"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "devices": [str(device) for device in jax.devices()],
        "default_backend": jax.default_backend(),
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "backend": backend(),
        "native": {
            "available": native,
            "instruction_set": _native.isa() if native else None,
            "reason": _native.why_unavailable(),
        },
        "threads": _threads(),
        "data": _data(),
    }


def self_check() -> list[Check]:
    """A few transforms with known answers: takes some seconds, most of them compiling.

    Returns:
        One `Check` each: round trips in both precisions, the vorticity of a solid-body rotation, the transpose of a
        transform by the dot-product test, and the two backends against one another where both are there.
    """
    import jax
    import jax.numpy as jnp

    from sfno_jax import _native
    from sfno_jax.differential import vorticity_divergence
    from sfno_jax.grids import latitudes
    from sfno_jax.transforms import InverseRealSHT, RealSHT, RealVectorSHT

    checks = []
    rng = np.random.default_rng(0)

    def add(name: str, tolerance: float, function: Callable[[Any], Any], x: Any, expected: Any) -> None:
        compute = jax.jit(function)
        value = np.asarray(compute(x))
        began = time.perf_counter()
        np.asarray(compute(x))
        spent = 1e3 * (time.perf_counter() - began)
        error = float(np.abs(value - expected).max() / np.abs(expected).max())
        checks.append(Check(name, error, tolerance, spent))

    nlat, nlon = 64, 128
    for dtype, tolerance in (("float32", 5e-6), ("float64", 1e-12)):
        with jax.enable_x64(dtype == "float64"):
            sht = RealSHT(nlat, nlon, grid="legendre-gauss")
            isht = InverseRealSHT(nlat, nlon, grid="legendre-gauss")
            coefficients = _coefficients(rng, sht.lmax).astype("complex64" if dtype == "float32" else "complex128")
            add(f"round trip {nlat}x{nlon}, {dtype}", tolerance, lambda c: sht(isht(c)), coefficients, coefficients)  # noqa: B023

    with jax.enable_x64(True):
        radius = 6.37122e6
        north = latitudes("legendre-gauss", nlat)[:, None] * np.ones(nlon)
        wind = np.stack([10 * np.cos(north), np.zeros_like(north)])
        vsht, back = (
            RealVectorSHT(nlat, nlon, grid="legendre-gauss"),
            InverseRealSHT(nlat, nlon, grid="legendre-gauss"),
        )
        add(
            "vorticity of a solid-body wind, float64",
            1e-10,  # rounding at degree l grows with l(l+1)
            lambda v: back(vorticity_divergence(v, vsht, radius))[0],
            wind,
            20 * np.sin(north) / radius,
        )
        exact = RealSHT(65, nlon, lmax=64, mmax=64, grid="equiangular")
        values = InverseRealSHT(65, nlon, lmax=64, mmax=64, grid="equiangular")(_coefficients(rng, 64))
        field, weights = rng.standard_normal((65, nlon)), _coefficients(rng, 64)

        product = float(np.sum((np.asarray(exact(field)) * weights).real))  # <w, A x> = <A^T w, x>
        add(
            "transpose of the equiangular analysis, float64",
            1e-11,
            lambda w: jnp.sum(field * jax.vjp(exact, jnp.asarray(field))[1](w)[0]),
            weights,
            product,
        )
        if _native.available():
            other = RealSHT(65, nlon, lmax=64, mmax=64, grid="equiangular", backend="einsum")
            expected = np.asarray(other(values))
            add("native kernel against einsum, float64", 1e-12, exact, np.asarray(values), expected)
    return checks


def describe(facts: dict[str, Any], checks: list[Check]) -> dict[str, Any]:
    """Report and checks as one JSON-able table."""
    return {**facts, "checks": [{**asdict(check), "passed": check.passed} for check in checks]}


def _coefficients(rng: np.random.Generator, lmax: int) -> Any:
    """Random coefficients (lmax, lmax) of a real field, falling off with the degree."""
    values = rng.standard_normal((lmax, lmax)) + 1j * rng.standard_normal((lmax, lmax))
    values[:, 0] = values[:, 0].real
    return np.tril(values) / (1.0 + np.arange(lmax))[:, None]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _threads() -> dict[str, Any]:
    return {
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def _data() -> dict[str, str | None]:
    from sfno_jax.samples import egm96_file

    found: dict[str, str | None] = {"era5": "ships with the package"}
    try:
        found["egm96"] = str(egm96_file())
    except FileNotFoundError as error:
        found["egm96"] = None
        found["egm96_hint"] = str(error)
    if importlib.util.find_spec("xarray") is None:
        found["netcdf_hint"] = f"xarray is missing; `{os.path.basename(sys.executable)} -m pip install 'sfno-jax[io]'`"
    return found

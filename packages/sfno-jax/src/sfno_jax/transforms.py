r"""Spherical harmonic transforms of scalar and vector fields.

    a_lm = int f Y_lm^* dOmega,    f = sum_{l,m} a_lm Y_lm,    Y_lm = Pbar_lm(cos theta) exp(i m lambda)

for real fields, so that only m >= 0 is kept. A transform is a real FFT along longitude and a Legendre stage along
latitude; the stage runs in the C++ kernel on CPUs (`backend="native"`), as a folded matrix product with a table
(`"einsum"`), or by recurrence in JAX without a table (`"recurrence"`, chosen where the table would exceed
``max_table_bytes`` or would be captured as a constant of a trace).

Vector fields V = (V_theta southward, V_lambda eastward) are written through a spheroidal and a toroidal potential,

    V = grad S + (1/sin(theta) dT/dlambda, -dT/dtheta),    s_lm = 1/(l(l+1)) int V . grad Y_lm^* dOmega,  t_lm alike

Conventions are torch-harmonics' (0.9): coefficients (..., l, m), Condon-Shortley phase on, entries m > l zero.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from . import _einsum, _native
from ._dtypes import complex_array, complex_dtype, real_array, real_dtype
from ._packed import PackedPlan
from ._plan import LegendrePlan
from .equiangular import exact_weighting
from .grids import SphereGrid, choose, default_lmax, quadrature, resolve_truncation
from .legendre import NORMS, degree_norm

__all__ = ["BACKENDS", "InverseRealSHT", "InverseRealVectorSHT", "RealSHT", "RealVectorSHT", "backend"]

BACKENDS = ("auto", "native", "einsum", "recurrence")
_CONSTANT_LIMIT = 2**20


def backend() -> str:
    """The backend that `auto` means here: `native` on a CPU where the C++ kernel is built, else `einsum`."""
    return "native" if jax.default_backend() == "cpu" and _native.available() else "einsum"


@dataclasses.dataclass(frozen=True)
class _Spec:
    nlat: int
    nlon: int
    lmax: int
    mmax: int
    grid: str
    norm: str
    csphase: bool
    truncation: str
    backend: str
    check_finite: bool


class _Transform:
    """What the four transforms share: arguments, checks, the choice of backend, and being a pytree."""

    vector: ClassVar[bool]
    inverse: ClassVar[bool]
    _spec: _Spec
    _tables: tuple[jax.Array, ...]

    def __init__(
        self,
        nlat: int,
        nlon: int,
        lmax: int | None = None,
        mmax: int | None = None,
        grid: str = "equiangular",
        norm: str = "ortho",
        csphase: bool = True,
        truncation: str = "triangular",
        *,
        backend: str = "auto",
        allow_aliasing: bool = False,
        check_finite: bool = False,
        max_table_bytes: int = 2**27,
    ) -> None:
        """Plan a transform.

        Args:
            nlat: Number of latitudes, rows from north to south.
            nlon: Number of longitudes, even.
            lmax: Number of degrees (l < lmax); None for where the grid's plain quadrature is exact.
            mmax: Number of orders (m < mmax); None for what ``truncation`` says.
            grid: One of `sfno_jax.GRIDS`.
            norm: `ortho`, `schmidt` or `unnorm`.
            csphase: Condon-Shortley phase (-1)^m.
            truncation: `triangular` or `rectangular`: what a missing lmax or mmax becomes.
            backend: One of `BACKENDS`.
            allow_aliasing: Accept an lmax beyond what the grid resolves.
            check_finite: Refuse fields with NaN or infinity (checked on concrete arrays, not inside a trace).
            max_table_bytes: Largest Legendre table [bytes] the `einsum` backend keeps; beyond, it recurs on the fly.

        Raises:
            ValueError: naming the argument, its value and the limit.
        """
        kind = SphereGrid(nlat, nlon, grid).kind
        lmax, mmax = resolve_truncation(nlat, nlon, lmax, mmax, kind, truncation, allow_aliasing)
        choose("norm", norm, NORMS)
        choose("backend", backend, BACKENDS)
        if backend == "auto":
            backend = globals()["backend"]()
        elif backend == "native" and not _native.available():
            raise ValueError(f"backend='native' is not available: {_native.why_unavailable()}. Use backend='auto'.")
        spec = _Spec(nlat, nlon, lmax, mmax, kind, norm, bool(csphase), truncation, backend, check_finite)
        itemsize = 8 if jax.config.jax_enable_x64 else 4  # type: ignore[attr-defined]
        if (
            backend == "einsum"
            and _einsum.table_bytes(_plan(spec, self.vector, self.inverse), self.vector, itemsize) > max_table_bytes
        ):
            spec = dataclasses.replace(spec, backend="recurrence")
        self._spec = spec
        self._tables = (_table(spec, self.vector, self.inverse, itemsize),) if spec.backend == "einsum" else ()

    nlat = property(lambda self: self._spec.nlat, doc="Number of latitudes.")
    nlon = property(lambda self: self._spec.nlon, doc="Number of longitudes.")
    lmax = property(lambda self: self._spec.lmax, doc="Number of degrees, l < lmax.")
    mmax = property(lambda self: self._spec.mmax, doc="Number of orders, m < mmax.")
    grid = property(lambda self: self._spec.grid, doc="Name of the grid, one of `sfno_jax.GRIDS`.")
    norm = property(lambda self: self._spec.norm, doc="Normalisation of the harmonics.")
    csphase = property(lambda self: self._spec.csphase, doc="Whether the Condon-Shortley phase is included.")
    truncation = property(lambda self: self._spec.truncation, doc="Truncation asked for.")
    backend = property(lambda self: self._spec.backend, doc="`native`, `einsum` or `recurrence`.")

    @property
    def sphere_grid(self) -> SphereGrid:
        """The grid as a `SphereGrid`."""
        return SphereGrid(self.nlat, self.nlon, self.grid)

    def __repr__(self) -> str:
        s = self._spec
        sizes = f"{s.nlat}, {s.nlon}, lmax={s.lmax}, mmax={s.mmax}"
        return f"{type(self).__name__}({sizes}, grid={s.grid!r}, backend={s.backend!r})"

    def __call__(self, x: Any) -> jax.Array:
        """Transform; see the class."""
        x = complex_array("coefficients", x) if self.inverse else real_array("field", x)
        self._check_shape(x)
        if self._spec.check_finite:
            _check_finite("coefficients" if self.inverse else "field", x)
        y: jax.Array = _apply(self._for(x), x)
        return y

    def _check_shape(self, x: jax.Array) -> None:
        s = self._spec
        want = (s.lmax, s.mmax) if self.inverse else (s.nlat, s.nlon)
        names = ("lmax", "mmax") if self.inverse else ("nlat", "nlon")
        what = "coefficients" if self.inverse else "field"
        lead = "(..., 2, " if self.vector else "(..., "
        if x.ndim < 2 + self.vector:
            raise ValueError(
                f"{what} has shape {x.shape}; {type(self).__name__} expects "
                f"{lead}{names[0]}={want[0]}, {names[1]}={want[1]})."
            )
        for axis, name, size in zip((-2, -1), names, want, strict=True):
            if x.shape[axis] != size:
                raise ValueError(
                    f"{what} has {name}={x.shape[axis]} (axis {axis} of shape {x.shape}); "
                    f"this transform was planned for {name}={size}."
                )
        if self.vector and x.shape[-3] != 2:
            raise ValueError(f"{what} has {x.shape[-3]} components (axis -3 of shape {x.shape}); a vector has 2.")

    def _for(self, x: jax.Array) -> Self:
        """This transform with a table that fits ``x``: of its precision, and not to be captured as a large constant."""
        if self._spec.backend != "einsum":
            return self
        table, itemsize = self._tables[0], real_dtype(x.dtype).itemsize
        if isinstance(table, jax.core.Tracer):
            return self if table.dtype.itemsize >= itemsize else self._without_table()
        if isinstance(x, jax.core.Tracer) and table.size * itemsize > _CONSTANT_LIMIT:
            return self._without_table()
        if table.dtype.itemsize == itemsize:
            return self
        return self._replace(self._spec, (_table(self._spec, self.vector, self.inverse, itemsize),))

    def _without_table(self) -> Self:
        return self._replace(dataclasses.replace(self._spec, backend="recurrence"), ())

    def _replace(self, spec: _Spec, tables: tuple[jax.Array, ...]) -> Self:
        new = copy.copy(self)
        new._spec, new._tables = spec, tables
        return new

    def tree_flatten(self) -> tuple[tuple[jax.Array, ...], _Spec]:
        """Leaves are the Legendre tables of the `einsum` backend; everything else is static."""
        return self._tables, self._spec

    @classmethod
    def tree_unflatten(cls, spec: _Spec, tables: tuple[jax.Array, ...]) -> Self:
        """Inverse of `tree_flatten`."""
        new = object.__new__(cls)
        new._spec, new._tables = spec, tuple(tables)
        return new


@jax.tree_util.register_pytree_node_class
class RealSHT(_Transform):
    """Analysis of real scalar fields: (..., nlat, nlon) real to (..., lmax, mmax) complex.

    Example:
        >>> sht = RealSHT(64, 128, grid="legendre-gauss")
        >>> coefficients = sht(field)  # field: (..., 64, 128) float32 or float64
    """

    vector, inverse = False, False


@jax.tree_util.register_pytree_node_class
class InverseRealSHT(_Transform):
    """Synthesis of real scalar fields: (..., lmax, mmax) complex to (..., nlat, nlon) real.

    Imaginary parts of order 0 and of the Nyquist order nlon/2 do not belong to a real field: they are ignored and
    their gradient is zero.
    """

    vector, inverse = False, True


@jax.tree_util.register_pytree_node_class
class RealVectorSHT(_Transform):
    """Analysis of vector fields: (..., 2, nlat, nlon) real to (..., 2, lmax, mmax) complex.

    Axis -3 is (southward, eastward) of the field and (spheroidal, toroidal) of the coefficients.

    Degree 0 carries no vector field; its coefficients are zero.
    """

    vector, inverse = True, False


@jax.tree_util.register_pytree_node_class
class InverseRealVectorSHT(_Transform):
    """Synthesis of vector fields: (..., 2, lmax, mmax) complex to (..., 2, nlat, nlon) real."""

    vector, inverse = True, True


def _is_exact_equiangular(spec: _Spec) -> bool:
    return spec.grid == "equiangular" and spec.lmax > default_lmax(spec.grid, spec.nlat)


@functools.lru_cache(maxsize=256)
def _plan(spec: _Spec, vector: bool, inverse: bool) -> LegendrePlan:
    theta, weights = quadrature(spec.grid, spec.nlat)
    scale = degree_norm(spec.lmax, spec.norm, inverse)
    if inverse:
        # XLA's inverse FFT divides by nlon; the synthesis is a plain sum.
        weights, scale = np.ones_like(weights), scale * spec.nlon
    else:
        weights = np.ones_like(weights) if _is_exact_equiangular(spec) else weights
        scale = scale * (2 * np.pi / spec.nlon)
        if vector:
            degree = np.arange(spec.lmax)
            scale = scale / np.maximum(degree * (degree + 1), 1)
    x = np.cos(theta)
    x = (x - x[::-1]) / 2  # symmetric about the equator to the last bit, with an exact zero there
    return LegendrePlan.create(
        cos_colatitude=x,
        sin_colatitude=np.sin(theta),
        weights=weights,
        degree_scale=scale,
        lmax=spec.lmax,
        mmax=spec.mmax,
        nfreq=spec.nlon // 2 + 1,
        csphase=spec.csphase,
    )


def packed_plan(transform: RealSHT | InverseRealSHT) -> PackedPlan | None:
    """What `sfno_jax._packed` needs to do this transform; None where it cannot."""
    spec = dataclasses.replace(transform._spec, backend="", check_finite=False)
    if transform.backend != "native" or transform._spec.check_finite or spec.nlon % 2:
        return None
    if transform.inverse:
        # There is no inverse FFT that divides by nlon.
        return PackedPlan(_plan(spec, False, True).scaled(1 / spec.nlon), spec.nlon, 2.0)
    return None if _is_exact_equiangular(spec) else PackedPlan(_plan(spec, False, False), spec.nlon, 1.0)


@functools.lru_cache(maxsize=8)
def _table(spec: _Spec, vector: bool, inverse: bool, itemsize: int) -> jax.Array:
    plan = _plan(spec, vector, inverse)
    with jax.ensure_compile_time_eval():
        return jnp.asarray(_einsum.folded_table(plan, vector, np.dtype(f"float{8 * itemsize}")))


def _check_finite(what: str, x: jax.Array) -> None:
    if isinstance(x, jax.core.Tracer):
        return
    bad = ~np.isfinite(np.asarray(x))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{what} has {int(bad.sum())} non-finite value(s), the first at index {first}; "
            "fill or mask them before the transform."
        )


_Stage = Callable[[jax.Array, LegendrePlan], jax.Array]
_STAGES: dict[tuple[str, bool, bool], _Stage] = {
    ("native", False, False): _native.legendre_analysis,
    ("native", False, True): _native.legendre_synthesis,
    ("native", True, False): _native.vector_analysis,
    ("native", True, True): _native.vector_synthesis,
    ("recurrence", False, False): _einsum.analysis_recurrence,
    ("recurrence", False, True): _einsum.synthesis_recurrence,
    ("recurrence", True, False): _einsum.vector_analysis_recurrence,
    ("recurrence", True, True): _einsum.vector_synthesis_recurrence,
}
_TABLE_STAGES: dict[tuple[bool, bool], Callable[[jax.Array, jax.Array, LegendrePlan], jax.Array]] = {
    (False, False): _einsum.analysis_table,
    (False, True): _einsum.synthesis_table,
    (True, False): _einsum.vector_analysis_table,
    (True, True): _einsum.vector_synthesis_table,
}


def _legendre_stage(transform: _Transform, x: jax.Array) -> jax.Array:
    spec = transform._spec
    plan = _plan(dataclasses.replace(spec, backend="", check_finite=False), transform.vector, transform.inverse)
    if spec.backend == "einsum":
        table = transform._tables[0].astype(real_dtype(x.dtype))
        return _TABLE_STAGES[transform.vector, transform.inverse](x, table, plan)
    return _STAGES[spec.backend, transform.vector, transform.inverse](x, plan)


@jax.jit
def _apply(transform: _Transform, x: jax.Array) -> jax.Array:
    spec = transform._spec
    if transform.inverse:
        fourier = _legendre_stage(transform, x)
        if spec.backend != "native":
            # XLA's CPU FFT ignores these imaginary parts; not every platform's does.
            fourier = _drop_imaginary(fourier, spec.nlon)
        return jnp.fft.irfft(fourier, spec.nlon)
    fourier = jnp.fft.rfft(x)
    if _is_exact_equiangular(spec):
        fourier = exact_weighting(fourier, vector=transform.vector)
    return _legendre_stage(transform, fourier.astype(complex_dtype(x.dtype)))


def _drop_imaginary(fourier: jax.Array, nlon: int) -> jax.Array:
    order = np.arange(nlon // 2 + 1)
    self_conjugate = (order == 0) | (2 * order == nlon)
    return jax.lax.complex(fourier.real, jnp.where(self_conjugate, 0, fourier.imag))

r"""Transforms and training over many devices: batch and sphere sharded over a `jax.sharding.Mesh`.

A mesh has an axis "batch" and an axis "sphere" (either may be of size 1). A field `(batch, ..., nlat, nlon)` is split
by batch and by bands of latitude; its coefficients `(batch, ..., lmax, mmax)` by batch and by ranges of the order m:

    field, band of latitudes --FFT along longitude--> all orders of the band
                             --all-to-all-----------> all latitudes of a range of orders
                             --Legendre stage-------> coefficients of a range of orders

and back for the synthesis (the scheme of torch-harmonics' distributed transforms and of makani). The Legendre stage of
an order needs no other order, so a device holds the table of its own orders only: of the O(L^3) numbers of the folded
table (8.6 GB in float32 at lmax = 2048 on a Gauss grid) each of n devices keeps 1/n. Only the all-to-all communicates,
once per transform, 1/n of a spectrum per device.

Sharded transforms are pytrees like the others: pass them to jitted functions as arguments, so that their tables stay
where they are.

Where the sphere axis is 1 nothing of this is needed: the single-device transform, the C++ kernel on CPUs, runs on every
device's own part of the batch.
"""

# JAX leaves PartitionSpec and its collectives without annotations.
# mypy: untyped-calls-exclude="jax"
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from . import _einsum, transforms
from ._dtypes import complex_array, real_array, real_dtype
from ._plan import LegendrePlan
from .equiangular import exact_weighting

__all__ = [
    "ShardedInverseRealSHT",
    "ShardedInverseRealVectorSHT",
    "ShardedRealSHT",
    "ShardedRealVectorSHT",
    "data_parallel",
    "data_parallel_value_and_grad",
    "make_mesh",
    "replicate",
    "shard_batch",
]


def make_mesh(batch: int | None = None, sphere: int = 1, devices: Any = None) -> Mesh:
    """A mesh with the axes "batch" and "sphere".

    Axes are of type Auto: `jax.make_mesh` of JAX 0.10 makes them Explicit unless told, and then every array must carry
    exactly the sharding of its use.

    Args:
        batch: Devices along the batch; None for all that ``sphere`` leaves.
        sphere: Devices that share one sphere.
        devices: The devices; None for all of this program.

    Returns:
        The mesh.

    Raises:
        ValueError: More devices asked for than there are, or a number below 1.
    """
    devices = jax.devices() if devices is None else list(devices)
    if sphere < 1 or (batch is not None and batch < 1):
        raise ValueError(f"batch={batch}, sphere={sphere}; expected at least 1 each.")
    batch = len(devices) // sphere if batch is None else batch
    if batch < 1 or batch * sphere > len(devices):
        raise ValueError(f"batch={batch} times sphere={sphere} devices asked for, but there are {len(devices)}.")
    grid = np.asarray(devices[: batch * sphere], dtype=object).reshape(batch, sphere)
    return Mesh(grid, ("batch", "sphere"), axis_types=(AxisType.Auto, AxisType.Auto))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Put a copy of every array of ``tree`` (weights, optimiser state) on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_batch(tree: Any, mesh: Mesh, axis: str = "batch") -> Any:
    """Split the leading axis of every array of ``tree`` over the devices along a mesh axis.

    Raises:
        ValueError: A leading axis that the number of devices does not divide, or an array without axes.
    """
    _check_mesh(mesh, axis)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        _check_batch(f"batch{jax.tree_util.keystr(path)}", np.shape(leaf), mesh.shape[axis])
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(axis)))


def data_parallel(function: Callable[..., Any], mesh: Mesh, axis: str = "batch") -> Callable[..., Any]:
    """Apply ``function(params, batch)`` to each device's part of the batch, with the whole of ``params``.

    For inference. Unlike plain `jit` on sharded arrays, custom kernels (the C++ transforms) stay on their own part of
    the batch instead of gathering it.

    Args:
        function: Maps (params, batch) to a tree of arrays with the batch on their leading axis, sample by sample.
        mesh: A mesh with Auto axes, such as `make_mesh` gives.
        axis: Mesh axis along which the batch is split.

    Returns:
        A compiled function of the same arguments.

    Raises:
        ValueError: A batch that the number of devices does not divide (when called).
    """
    _check_mesh(mesh, axis)
    specs = (PartitionSpec(), PartitionSpec(axis))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis), check_vma=False)
    return _checked(jax.jit(mapped), mesh, axis)


def data_parallel_value_and_grad(
    loss: Callable[..., Any], mesh: Mesh, axis: str = "batch", *, has_aux: bool = False
) -> Callable[..., Any]:
    """Value and gradient of a loss over a batch that is split over devices.

    Every device differentiates the loss of its own part; value, auxiliary output and gradient are then averaged over
    the devices. For a loss that is a mean over samples that is the gradient on one device.

    Args:
        loss: ``loss(params, batch)``, a mean over the samples of ``batch``: a scalar, or (scalar, aux) with
            ``has_aux``; aux then must be arrays for which an average makes sense.
        mesh: A mesh with Auto axes, such as `make_mesh` gives.
        axis: Mesh axis along which the batch is split.
        has_aux: Whether the loss returns (scalar, aux).

    Returns:
        A compiled function (params, batch) -> (value, gradient), or ((value, aux), gradient).

    Raises:
        ValueError: A batch that the number of devices does not divide (when called).
    """
    _check_mesh(mesh, axis)

    def local(params: Any, batch: Any) -> Any:
        return lax.pmean(jax.value_and_grad(loss, has_aux=has_aux)(params, batch), axis)

    specs = (PartitionSpec(), PartitionSpec(axis))
    # Without check_vma, which the custom kernels know nothing of, the average over devices has to be written out.
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return _checked(jax.jit(mapped), mesh, axis)


@dataclasses.dataclass(frozen=True)
class _Layout:
    mesh: Mesh
    batch_axis: str | None
    sphere_axis: str | None
    padded: bool

    @property
    def bands(self) -> int:
        """Devices that share a sphere."""
        return 1 if self.sphere_axis is None else int(self.mesh.shape[self.sphere_axis])


class _Sharded:
    """What the four sharded transforms share."""

    vector: ClassVar[bool]
    inverse: ClassVar[bool]
    single: ClassVar[type[transforms._Transform]]
    _local: transforms._Transform
    _tables: tuple[jax.Array, ...]
    _layout: _Layout

    def __init__(
        self,
        mesh: Mesh,
        nlat: int,
        nlon: int,
        lmax: int | None = None,
        mmax: int | None = None,
        grid: str = "equiangular",
        norm: str = "ortho",
        csphase: bool = True,
        truncation: str = "triangular",
        *,
        batch_axis: str = "batch",
        sphere_axis: str = "sphere",
        padded: bool = False,
        allow_aliasing: bool = False,
        dtype: Any = None,
    ) -> None:
        """Plan a transform over a mesh.

        Args:
            mesh: Mesh with Auto axes, such as `make_mesh` gives; an axis it lacks counts as of size 1.
            nlat: Number of latitudes; need not be a multiple of the devices.
            nlon: Number of longitudes, even.
            lmax: As in the single-device transform.
            mmax: As in the single-device transform; need not be a multiple of the devices.
            grid: As in the single-device transform.
            norm: As in the single-device transform.
            csphase: As in the single-device transform.
            truncation: As in the single-device transform.
            batch_axis: Mesh axis along which the leading axis of the data is split.
            sphere_axis: Mesh axis along which latitudes and orders are split.
            padded: Return the split axis as it is held: ``nlat_padded`` rows or ``mmax_padded`` orders, zero beyond
                the true ones. The result then stays evenly split; cutting the padding off makes XLA choose where the
                result lives.
            allow_aliasing: As in the single-device transform.
            dtype: Precision of the tables, float32 or float64; None for JAX's default float.

        Raises:
            ValueError: As in the single-device transform; a mesh with Explicit axes or with neither of the two.
        """
        names = [axis if axis in mesh.axis_names else None for axis in (batch_axis, sphere_axis)]
        if names == [None, None]:
            raise ValueError(f"mesh has the axes {mesh.axis_names}; expected {batch_axis!r} or {sphere_axis!r}.")
        for axis in names:
            if axis is not None:
                _check_mesh(mesh, axis)
        layout = _Layout(mesh, names[0], names[1], padded)
        self._layout = layout
        # The table of the whole transform is what sharding avoids.
        backend = "auto" if layout.bands == 1 else "recurrence"
        arguments = (nlat, nlon, lmax, mmax, grid, norm, csphase, truncation)
        self._local = self.single(*arguments, backend=backend, allow_aliasing=allow_aliasing)
        self._tables = () if layout.bands == 1 else (self._sharded_table(dtype),)

    nlat = property(lambda self: self._local.nlat, doc="Number of latitudes.")
    nlon = property(lambda self: self._local.nlon, doc="Number of longitudes.")
    lmax = property(lambda self: self._local.lmax, doc="Number of degrees, l < lmax.")
    mmax = property(lambda self: self._local.mmax, doc="Number of orders, m < mmax.")
    grid = property(lambda self: self._local.grid, doc="Name of the grid, one of `sfno_jax.GRIDS`.")
    norm = property(lambda self: self._local.norm, doc="Normalisation of the harmonics.")
    csphase = property(lambda self: self._local.csphase, doc="Whether the Condon-Shortley phase is included.")
    mesh = property(lambda self: self._layout.mesh, doc="The mesh.")

    @property
    def nlat_padded(self) -> int:
        """Rows held over all devices: nlat, rounded up to a multiple of the devices that share a sphere."""
        return _round_up(self._local.nlat, self._layout.bands)

    @property
    def mmax_padded(self) -> int:
        """Orders held over all devices: mmax, rounded up so that each device has an even number of them."""
        bands = self._layout.bands
        # Parity (-1)^m is counted from each device's first order: it must be even.
        return int(self._local.mmax) if bands == 1 else _round_up(self._local.mmax, 2 * bands)

    def field_spec(self, ndim: int) -> PartitionSpec:
        """How a field with ``ndim`` axes is split."""
        return PartitionSpec(*self._lead(ndim), self._layout.sphere_axis, None)

    def coefficient_spec(self, ndim: int) -> PartitionSpec:
        """How coefficients with ``ndim`` axes are split."""
        return PartitionSpec(*self._lead(ndim), None, self._layout.sphere_axis)

    def __call__(self, x: Any) -> jax.Array:
        """Transform; shapes as in the single-device transform, the split axis padded or not."""
        x = complex_array("coefficients", x) if self.inverse else real_array("field", x)
        axis, size, padded = (-1, self.mmax, self.mmax_padded) if self.inverse else (-2, self.nlat, self.nlat_padded)
        if x.ndim >= 2 and x.shape[axis] == padded:
            true_shape = jax.eval_shape(lambda y: lax.slice_in_dim(y, 0, size, axis=axis), x)
            self._local._check_shape(true_shape)
        else:
            self._local._check_shape(x)
            x = _pad(x, axis, padded)
        if x.ndim > 2 + self.vector and self._layout.batch_axis is not None:
            _check_batch("coefficients" if self.inverse else "field", x.shape, self.mesh.shape[self._layout.batch_axis])
        if self._tables and self._tables[0].dtype.itemsize < real_dtype(x.dtype).itemsize:
            raise TypeError(
                f"the data are {x.dtype} but the table is {self._tables[0].dtype}; plan with dtype='float64'."
            )
        if not isinstance(x, jax.core.Tracer):
            spec = self.coefficient_spec(x.ndim) if self.inverse else self.field_spec(x.ndim)
            x = jax.device_put(x, NamedSharding(self.mesh, spec))
        result: jax.Array = _run(self, x)
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._local!r}, mesh={dict(self.mesh.shape)})"

    def _lead(self, ndim: int) -> list[str | None]:
        lead: list[str | None] = [None] * (ndim - 2)
        if ndim > 2 + self.vector:
            lead[0] = self._layout.batch_axis
        return lead

    def _table_spec(self) -> PartitionSpec:
        return PartitionSpec(*([None] * (1 + self.vector)), self._layout.sphere_axis)

    def _plan(self) -> LegendrePlan:
        spec = dataclasses.replace(self._local._spec, backend="", check_finite=False)
        return transforms._plan(spec, self.vector, self.inverse)

    def _sharded_table(self, dtype: Any) -> jax.Array:
        real = np.dtype(jax.dtypes.canonicalize_dtype(np.float64) if dtype is None else dtype)
        if real not in (np.dtype("float32"), np.dtype("float64")):
            raise ValueError(f"dtype={dtype}; expected float32 or float64.")
        if real != jax.dtypes.canonicalize_dtype(real):
            raise TypeError("dtype=float64 needs JAX's 64-bit mode: `with jax.enable_x64(True):`.")
        table = _einsum.folded_table(self._plan(), self.vector, real)
        shape = (*table.shape[:-3], self.mmax_padded, *table.shape[-2:])

        def part(index: Any) -> np.ndarray:
            rows = index[len(shape) - 3]
            start, stop, _ = rows.indices(self.mmax_padded)
            return _pad_host(table[..., start:stop, :, :], stop - start)

        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, self._table_spec()), part)

    def tree_flatten(self) -> tuple[tuple[Any, Any], _Layout]:
        """Leaves are the tables; everything else is static."""
        return (self._local, self._tables), self._layout

    @classmethod
    def tree_unflatten(cls, layout: _Layout, children: tuple[Any, Any]) -> Self:
        """Inverse of `tree_flatten`."""
        new = object.__new__(cls)
        new._local, new._tables, new._layout = children[0], children[1], layout
        return new


@jax.tree_util.register_pytree_node_class
class ShardedRealSHT(_Sharded):
    """`RealSHT` over a mesh: (..., nlat, nlon) split by latitude to (..., lmax, mmax) split by order.

    Example:
        >>> sht = ShardedRealSHT(make_mesh(batch=2, sphere=4), 721, 1440, grid="equiangular")
        >>> coefficients = sht(field)  # field: (batch, ..., 721, 1440)
    """

    vector, inverse, single = False, False, transforms.RealSHT


@jax.tree_util.register_pytree_node_class
class ShardedInverseRealSHT(_Sharded):
    """`InverseRealSHT` over a mesh: (..., lmax, mmax) split by order to (..., nlat, nlon) split by latitude."""

    vector, inverse, single = False, True, transforms.InverseRealSHT


@jax.tree_util.register_pytree_node_class
class ShardedRealVectorSHT(_Sharded):
    """`RealVectorSHT` over a mesh: (..., 2, nlat, nlon) split by latitude to (..., 2, lmax, mmax) split by order."""

    vector, inverse, single = True, False, transforms.RealVectorSHT


@jax.tree_util.register_pytree_node_class
class ShardedInverseRealVectorSHT(_Sharded):
    """`InverseRealVectorSHT` over a mesh: (..., 2, lmax, mmax) split by order to (..., 2, nlat, nlon) by latitude."""

    vector, inverse, single = True, True, transforms.InverseRealVectorSHT


@jax.jit
def _run(sharded: _Sharded, x: jax.Array) -> jax.Array:
    field, coefficients = sharded.field_spec(x.ndim), sharded.coefficient_spec(x.ndim)
    source, result = (coefficients, field) if sharded.inverse else (field, coefficients)
    if sharded._layout.bands == 1:
        whole: Callable[..., jax.Array] = jax.shard_map(
            lambda transform, part: transform(part),
            mesh=sharded.mesh,
            in_specs=(PartitionSpec(), source),
            out_specs=result,
            check_vma=False,  # the kernels are primitives that know nothing of it
        )
        return whole(sharded._local, x)
    stage = functools.partial(_synthesis if sharded.inverse else _analysis, sharded)
    specs = (sharded._table_spec(), source)
    mapped = jax.shard_map(stage, mesh=sharded.mesh, in_specs=specs, out_specs=result)
    y: jax.Array = mapped(sharded._tables[0], x)
    if sharded._layout.padded:
        return y
    return y[..., : sharded.nlat, :] if sharded.inverse else y[..., : sharded.mmax]


def _local_plan(sharded: _Sharded) -> LegendrePlan:
    orders = sharded.mmax_padded // sharded._layout.bands
    return dataclasses.replace(sharded._plan(), mmax=orders, nfreq=orders)


def _analysis(sharded: _Sharded, table: jax.Array, x: jax.Array) -> jax.Array:
    """What one device does: its band of the field and its orders of the table to its orders of the coefficients."""
    fourier = _pad(jnp.fft.rfft(x)[..., : sharded.mmax], -1, sharded.mmax_padded)
    fourier = lax.all_to_all(
        fourier, sharded._layout.sphere_axis, split_axis=x.ndim - 1, concat_axis=x.ndim - 2, tiled=True
    )
    fourier = fourier[..., : sharded.nlat, :]
    if transforms._is_exact_equiangular(sharded._local._spec):
        fourier = exact_weighting(fourier, vector=sharded.vector)
    stage = _einsum.vector_analysis_table if sharded.vector else _einsum.analysis_table
    return stage(fourier, table.astype(x.dtype), _local_plan(sharded))


def _synthesis(sharded: _Sharded, table: jax.Array, coeffs: jax.Array) -> jax.Array:
    """What one device does: its orders of the coefficients and of the table to its band of the field."""
    stage = _einsum.vector_synthesis_table if sharded.vector else _einsum.synthesis_table
    fourier = stage(coeffs, table.astype(real_dtype(coeffs.dtype)), _local_plan(sharded))
    fourier = _pad(fourier, -2, sharded.nlat_padded)
    fourier = lax.all_to_all(
        fourier, sharded._layout.sphere_axis, split_axis=coeffs.ndim - 2, concat_axis=coeffs.ndim - 1, tiled=True
    )
    fourier = _pad(fourier[..., : sharded.mmax], -1, sharded.nlon // 2 + 1)
    return jnp.fft.irfft(transforms._drop_imaginary(fourier, sharded.nlon), sharded.nlon)


def _checked(function: Callable[..., Any], mesh: Mesh, axis: str) -> Callable[..., Any]:
    def call(params: Any, batch: Any) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
            _check_batch(f"batch{jax.tree_util.keystr(path)}", np.shape(leaf), mesh.shape[axis])
        return function(params, batch)

    return call


def _check_mesh(mesh: Mesh, axis: str) -> None:
    if axis not in mesh.axis_names:
        raise ValueError(f"mesh has the axes {mesh.axis_names}; expected one named {axis!r}.")
    kind = mesh.axis_types[mesh.axis_names.index(axis)]
    if kind != AxisType.Auto:
        raise ValueError(
            f"mesh axis {axis!r} is {kind}; expected AxisType.Auto. Use sfno_jax.parallel.make_mesh, or pass "
            "axis_types=(jax.sharding.AxisType.Auto, ...) to jax.make_mesh."
        )


def _check_batch(what: str, shape: tuple[int, ...], devices: int) -> None:
    if not shape or shape[0] % devices:
        raise ValueError(
            f"{what} has shape {shape}; the first axis is split over {devices} devices: it must be a multiple of that."
        )


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pad(x: jax.Array, axis: int, size: int) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths)


def _pad_host(table: np.ndarray, orders: int) -> np.ndarray:
    widths = [(0, 0)] * table.ndim
    widths[-3] = (0, orders - table.shape[-3])
    return np.pad(table, widths)

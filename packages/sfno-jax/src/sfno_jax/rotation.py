r"""Rotation of spherical harmonic coefficients by Euler angles.

A rotation :math:`\mathcal R = R_z(\alpha) R_y(\beta) R_z(\gamma)` (right-handed, active, about the
fixed axes: first gamma about z, then beta about y, last alpha about z) carries the field f to
:math:`(\mathcal R f)(x) = f(\mathcal R^{-1}x)`. It mixes the orders of one degree only,

.. math::
    a'_{lm} = \sum_{m'} e^{-im\alpha}\, d^l_{mm'}(\beta)\, e^{-im'\gamma}\, a_{lm'} .

A turn about y is a turn about z between two quarter turns, :math:`R_y(\beta) = R_z(-\pi/2)\,
R_y(-\pi/2)\, R_z(\beta)\, R_y(\pi/2)\, R_z(\pi/2)`, so all angles enter through phases and a single
real table :math:`\Delta^l_{mm'} = d^l_{mm'}(\pi/2)` serves every rotation (Risbo 1996, J. Geodesy 70,
383; Trapani & Navaza 2006, Acta Cryst. A62, 262): differentiating in the angles is exact and cheap.

For a real field :math:`a_{l,-m} = (-1)^m\overline{a_{lm}}` holds before, between and after the
turns. With the mirror symmetry :math:`\Delta^l_{k,-m} = (-1)^{l+k}\Delta^l_{km}` the sum over all m'
becomes one over :math:`m' \ge 0` of real numbers: where l+k+m' is even the real part of the
coefficient enters, where it is odd the imaginary part, each twice for m' > 0.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sfno_jax._dtypes import complex_array, complex_dtype

__all__ = [
    "Rotation",
    "euler_angles",
    "quarter_turn_wigner_d",
    "random_euler_angles",
    "rotate",
    "rotation_matrix",
]

_BLOCKS = 8
"""Degrees are stored in this many blocks, each padded to its own largest order."""

_LARGEST_CAPTURED_TABLE = 1 << 20
"""Bytes above which `rotate` refuses to bake its table into a compiled function."""


@jax.tree_util.register_pytree_node_class
class Rotation:
    """Rotates coefficients of real fields; holds the table of quarter turns.

    An immutable pytree: build it once, then pass it to jitted functions as an argument (closing over
    it would bake the table into the compiled program). The table, computed in float64 whatever its
    final precision, takes about 0.4 lmax^3 numbers: 3.4 MB for lmax = 128 and 210 MB for lmax = 512
    in float32, twice that in float64. Applying it costs about 5 lmax^3 flops a field.

    Args:
        lmax: number of degrees (and of orders: a rotation needs them all).
        csphase: whether the coefficients carry the Condon-Shortley phase (-1)^m.
        dtype: float32 or float64, the precision of the coefficients; default is JAX's default float.

    Raises:
        ValueError: if `lmax` is out of range, or `dtype` neither float32 nor float64.
        TypeError: if `dtype` is float64 while JAX's 64-bit mode is off.
    """

    lmax: int
    csphase: bool
    tables: tuple[jax.Array, ...]

    def __init__(self, lmax: int, *, csphase: bool = True, dtype: Any = None) -> None:
        default = jax.dtypes.canonicalize_dtype(np.float64)
        wanted = default if dtype is None else np.dtype(dtype)
        if wanted not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"dtype={dtype}: expected float32 or float64")
        if wanted != jax.dtypes.canonicalize_dtype(wanted):
            raise TypeError("dtype=float64 needs JAX's 64-bit mode: `with jax.enable_x64(True):`")
        tables = tuple(jnp.asarray(block) for block in _packed_tables(lmax, wanted.name))
        self._set(lmax, csphase, tables)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Rotation is immutable: cannot set {name}")

    def __repr__(self) -> str:
        return f"Rotation(lmax={self.lmax}, csphase={self.csphase})"

    def tree_flatten(self) -> tuple[tuple[jax.Array, ...], tuple[int, bool]]:
        """Tables as leaves, (lmax, csphase) as static data."""
        return self.tables, (self.lmax, self.csphase)

    @classmethod
    def tree_unflatten(cls, static: tuple[int, bool], tables: tuple[jax.Array, ...]) -> Rotation:
        """Inverse of `tree_flatten`."""
        self = object.__new__(cls)
        self._set(*static, tuple(tables))
        return self

    def _set(self, lmax: int, csphase: bool, tables: tuple[jax.Array, ...]) -> None:
        for name, value in (("lmax", lmax), ("csphase", csphase), ("tables", tables)):
            object.__setattr__(self, name, value)

    def __call__(self, coeffs: ArrayLike, alpha: ArrayLike, beta: ArrayLike, gamma: ArrayLike) -> jax.Array:
        r"""Rotate by :math:`R_z(\alpha) R_y(\beta) R_z(\gamma)`.

        Args:
            coeffs: `(..., lmax, lmax)` complex; imaginary parts at m = 0 are ignored.
            alpha: last angle, about z [rad]; scalar or broadcastable against the leading axes of
                `coeffs`.
            beta: angle about y [rad], likewise.
            gamma: first angle, about z [rad], likewise.

        Returns:
            `(..., lmax, lmax)`, dtype of `coeffs`: coefficients of f(R^-1 x).

        Raises:
            ValueError: if `coeffs` is not square or not of this `lmax`.
            TypeError: if `coeffs` and the table differ in precision.
        """
        coeffs = complex_array("coeffs", coeffs)
        self._check(coeffs)
        half, real = math.pi / 2, coeffs.real.dtype
        rotated: jax.Array = _rotate(
            self,
            coeffs,
            _phase(alpha, -half, self.lmax, real),
            _phase(beta, 0.0, self.lmax, real),
            _phase(gamma, half, self.lmax, real),
        )
        return rotated

    def inverse(self, coeffs: ArrayLike, alpha: ArrayLike, beta: ArrayLike, gamma: ArrayLike) -> jax.Array:
        """Undo the rotation by the same three angles; see `__call__`."""
        return self(coeffs, -_angle(gamma), -_angle(beta), -_angle(alpha))

    def _check(self, coeffs: jax.Array) -> None:
        _check_square(coeffs)
        if coeffs.shape[-1] != self.lmax:
            raise ValueError(
                f"coeffs has shape {coeffs.shape}: this Rotation is for lmax={self.lmax}; build "
                f"Rotation({coeffs.shape[-1]})"
            )
        if coeffs.real.dtype != self.tables[0].dtype:
            raise TypeError(
                f"coeffs is {coeffs.dtype} but the table is {self.tables[0].dtype}: build the Rotation "
                f"with dtype={coeffs.real.dtype}"
            )


def rotate(
    coeffs: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    gamma: ArrayLike,
    *,
    csphase: bool = True,
) -> jax.Array:
    r"""Rotate coefficients of a real field by :math:`R_z(\alpha) R_y(\beta) R_z(\gamma)`.

    Builds the table of a `Rotation` anew for its own call; for many rotations, or large ones under
    `jit`, build a `Rotation` once.

    Args:
        coeffs: `(..., lmax, lmax)` complex.
        alpha: last angle, about z [rad]; scalar or broadcastable against the leading axes.
        beta: angle about y [rad], likewise.
        gamma: first angle, about z [rad], likewise.
        csphase: whether the coefficients carry the Condon-Shortley phase.

    Returns:
        `(..., lmax, lmax)`, dtype of `coeffs`: coefficients of f(R^-1 x).

    Raises:
        ValueError: if `coeffs` is not square, or it is traced and the table would be a constant of
            more than 1 MB in the compiled function.
    """
    coeffs = complex_array("coeffs", coeffs)
    _check_square(coeffs)
    lmax, real = coeffs.shape[-1], np.dtype(coeffs.real.dtype)
    if isinstance(coeffs, jax.core.Tracer):
        size = sum(math.prod(shape) for shape in _block_shapes(lmax)) * real.itemsize
        if size > _LARGEST_CAPTURED_TABLE:
            raise ValueError(
                f"rotate was traced with lmax={lmax}: its table of {size / 1e6:.0f} MB would become a "
                f"constant of the compiled function. Build Rotation({lmax}) outside and pass it "
                "in as an argument"
            )
    return Rotation(lmax, csphase=csphase, dtype=real)(coeffs, alpha, beta, gamma)


def quarter_turn_wigner_d(lmax: int) -> NDArray[np.float64]:
    r"""Wigner's small d at a quarter turn, :math:`\Delta^l_{km} = d^l_{km}(\pi/2)`, k, m >= 0.

    The three-term recurrence in l at fixed (k, m), started at l = max(k, m),

    .. math::
        l\sqrt{((l{+}1)^2-k^2)((l{+}1)^2-m^2)}\,d^{l+1} = -(2l{+}1)\,k m\,d^l
        - (l{+}1)\sqrt{(l^2-k^2)(l^2-m^2)}\,d^{l-1}

    (Kostelec & Rockmore 2008, J. Fourier Anal. Appl. 14, 145, at cos(beta) = 0): upwards it grows out
    of the classically forbidden region, which is its stable direction. In float64 the smallest start
    value, 2^-l at k = m = l, limits it to lmax of about 1,000.

    Args:
        lmax: number of degrees, 1 ... 1024.

    Returns:
        `(lmax, lmax, lmax)` float64, entry (l, k, m); 0 where k > l or m > l.

    Raises:
        ValueError: if `lmax` is out of range.
    """
    _check_lmax(lmax)
    table = np.zeros((lmax, lmax, lmax))
    for degree, square in enumerate(_quarter_turns(lmax)):
        table[degree, : degree + 1, : degree + 1] = square
    return table


def rotation_matrix(alpha: ArrayLike, beta: ArrayLike, gamma: ArrayLike) -> jax.Array:
    r"""The 3 x 3 matrix :math:`R_z(\alpha) R_y(\beta) R_z(\gamma)` that acts on points (x, y, z).

    Args:
        alpha: last angle, about z [rad], any shape.
        beta: angle about y [rad], same shape.
        gamma: first angle, about z [rad], same shape.

    Returns:
        `(..., 3, 3)`.
    """
    a, b, c = jnp.broadcast_arrays(jnp.asarray(alpha), jnp.asarray(beta), jnp.asarray(gamma))
    return _about_z(a) @ _about_y(b) @ _about_z(c)


def euler_angles(matrix: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Euler angles (alpha, beta, gamma) of a rotation matrix: the inverse of `rotation_matrix`.

    Args:
        matrix: `(..., 3, 3)`, orthogonal with determinant 1.

    Returns:
        Angles of shape `(...)` [rad], beta in [0, pi]; gamma = 0 where beta is 0 or pi (only the sum
        or the difference of alpha and gamma matters there).

    Raises:
        ValueError: if the last two axes are not 3 x 3.
    """
    r = jnp.asarray(matrix)
    if r.shape[-2:] != (3, 3):
        raise ValueError(f"matrix has shape {r.shape}: expected (..., 3, 3)")
    sine = jnp.hypot(r[..., 0, 2], r[..., 1, 2])
    pole = sine < 8 * float(np.finfo(r.dtype).eps)
    beta = jnp.arctan2(sine, r[..., 2, 2])
    alpha = jnp.where(pole, jnp.arctan2(-r[..., 0, 1], r[..., 1, 1]), jnp.arctan2(r[..., 1, 2], r[..., 0, 2]))
    gamma = jnp.where(pole, 0, jnp.arctan2(r[..., 2, 1], -r[..., 2, 0]))
    return alpha, beta, gamma


def random_euler_angles(
    key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Angles (alpha, beta, gamma) [rad] of rotations uniform on SO(3) (Haar measure).

    Args:
        key: JAX random key.
        shape: shape of each of the three.
        dtype: float dtype; default is JAX's default float.

    Returns:
        Three arrays of the given shape; cos(beta) is uniform, so that no direction is preferred.
    """
    wanted = jax.dtypes.canonicalize_dtype(np.float64) if dtype is None else dtype
    u = jax.random.uniform(key, (3, *shape), wanted)
    return 2 * jnp.pi * u[0], jnp.arccos(1 - 2 * u[1]), 2 * jnp.pi * u[2]


@jax.jit
def _rotate(rotation: Rotation, coeffs: jax.Array, last: jax.Array, middle: jax.Array, first: jax.Array) -> jax.Array:
    """Phases and quarter turns in the order of the module docstring, read from right to left."""
    sign = jnp.asarray((-1.0) ** np.arange(rotation.lmax), dtype=coeffs.real.dtype)
    if not rotation.csphase:
        coeffs = coeffs * sign
    coeffs = _quarter_turn(rotation, coeffs * first)
    # Back by a quarter turn: the transposed table is (-1)^(k-m) times the table.
    coeffs = sign * _quarter_turn(rotation, sign * coeffs * middle) * last
    return coeffs if rotation.csphase else coeffs * sign


def _quarter_turn(rotation: Rotation, coeffs: jax.Array) -> jax.Array:
    """Apply Delta, degree by degree, to `(..., lmax, lmax)`."""
    blocks, start = [], 0
    for table in rotation.tables:
        degrees, orders = table.shape[:2]
        turned = _apply_block(coeffs[..., start : start + degrees, :orders], table, start)
        pad = [(0, 0)] * (turned.ndim - 1) + [(0, rotation.lmax - orders)]
        blocks.append(jnp.pad(turned, pad))
        start += degrees
    return jnp.concatenate(blocks, axis=-2)


def _apply_block(coeffs: jax.Array, table: jax.Array, first_degree: int) -> jax.Array:
    """Delta times coefficients `(..., degrees, orders)` of real fields, see the module."""
    degrees, orders = coeffs.shape[-2:]
    twice = np.full(orders, 2.0)
    twice[0] = 1.0
    weighted = coeffs * jnp.asarray(twice, dtype=coeffs.real.dtype)
    parts = jnp.stack([weighted.real, weighted.imag], axis=-3)

    def product(parity: int) -> jax.Array:
        return jnp.einsum(
            "lkm,...lm->...lk",
            table[..., parity::2],
            parts[..., parity::2],
            precision=jax.lax.Precision.HIGHEST,
        )

    even, odd = product(0), product(1)
    degree = first_degree + np.arange(degrees)[:, None]
    even_row = jnp.asarray((degree + np.arange(orders)) % 2 == 0)
    real = jnp.where(even_row, even[..., 0, :, :], odd[..., 0, :, :])
    imag = jnp.where(even_row, odd[..., 1, :, :], even[..., 1, :, :])
    return jax.lax.complex(real, imag)


def _phase(angle: ArrayLike, offset: float, lmax: int, real: Any) -> jax.Array:
    """exp(-i m (angle + offset)), `(..., 1, lmax)`; rounded last if the angle is a plain number."""
    value, order = _angle(angle), np.arange(lmax)
    if isinstance(value, jax.Array):
        # exp(-i m pi/2) apart and exact, so that no precision is lost in adding the offset.
        turns = np.round(np.exp(-1j * order * offset))
        total = value[..., None, None].astype(real) * jnp.asarray(order, dtype=real)
        phase = jax.lax.complex(jnp.cos(total), -jnp.sin(total))
        return phase * jnp.asarray(turns.astype(phase.dtype))
    exact: NDArray[Any] = np.exp(-1j * order * (value[..., None, None] + offset))
    return jnp.asarray(exact.astype(complex_dtype(real)))


def _angle(angle: ArrayLike) -> Any:
    return angle if isinstance(angle, jax.Array) else np.asarray(angle, dtype=np.float64)


def _about_z(angle: jax.Array) -> jax.Array:
    c, s, zero, one = jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(angle), jnp.ones_like(angle)
    return _matrix([[c, -s, zero], [s, c, zero], [zero, zero, one]])


def _about_y(angle: jax.Array) -> jax.Array:
    c, s, zero, one = jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(angle), jnp.ones_like(angle)
    return _matrix([[c, zero, s], [zero, one, zero], [-s, zero, c]])


def _matrix(rows: list[list[jax.Array]]) -> jax.Array:
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def _check_square(coeffs: jax.Array) -> None:
    if coeffs.ndim < 2 or coeffs.shape[-1] != coeffs.shape[-2]:
        raise ValueError(
            f"coeffs has shape {coeffs.shape}: a rotation mixes all orders of a degree and needs "
            "(..., lmax, mmax) with mmax = lmax; pad the orders with sfno_jax.spectral.resample"
        )


def _check_lmax(lmax: int) -> None:
    if not 1 <= lmax <= 1024:
        raise ValueError(f"lmax={lmax}: the table of quarter turns is good for lmax = 1 ... 1024")


def _quarter_turns(lmax: int) -> Any:
    """Yield Delta^l, `(l+1, l+1)`, for l = 0 ... lmax-1."""
    order = np.arange(lmax, dtype=np.float64)
    product = np.outer(order, order)
    before, now, rim = np.zeros((lmax, lmax)), np.zeros((lmax, lmax)), np.zeros(lmax)
    for degree in range(lmax):
        n = degree + 1
        inside = np.s_[:degree, :degree]
        if degree > 0:
            l = degree - 1  # the recurrence leads from l-1 and l to l+1 = degree
            up = np.sqrt(degree**2 - order[:degree] ** 2)
            down = np.sqrt(np.maximum(l**2 - order[:degree] ** 2, 0.0))
            after = -(2 * l + 1) * product[inside] * now[inside]
            after -= (l + 1) * np.outer(down, down) * before[inside]
            # At l = 0 the recurrence reads 0 = 0; d^1_00(pi/2) = cos(pi/2) = 0.
            after /= max(l, 1) * np.outer(up, up)
            before[inside], now[inside] = now[inside], after
        # New rim k = l or m = l: sqrt(binomial(2l, l+m)) 2^-l with the sign of (-sin)^(l-m), from
        # the rim before by the ratio of the binomials.
        m = order[:degree]
        rim[:degree] *= np.sqrt(degree * (2 * degree - 1) / (2 * (degree + m) * (degree - m)))
        rim[degree] = 0.5**degree
        now[:n, degree] = rim[:n]
        now[degree, :n] = rim[:n] * (-1.0) ** (degree - order[:n])
        yield now[:n, :n].copy()


def _block_shapes(lmax: int) -> list[tuple[int, int, int]]:
    size = -(-lmax // _BLOCKS)
    starts = range(0, lmax, size)
    return [(min(size, lmax - s), min(s + size, lmax), min(s + size, lmax)) for s in starts]


@functools.lru_cache(maxsize=2)
def _packed_tables(lmax: int, dtype: str) -> tuple[NDArray[Any], ...]:
    _check_lmax(lmax)
    blocks = [np.zeros(shape, dtype) for shape in _block_shapes(lmax)]
    size = -(-lmax // _BLOCKS)
    for degree, square in enumerate(_quarter_turns(lmax)):
        blocks[degree // size][degree % size, : degree + 1, : degree + 1] = square
    return tuple(blocks)

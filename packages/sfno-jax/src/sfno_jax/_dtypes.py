"""Input arrays keep their precision: what would change it in silence is an error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["complex_array", "complex_dtype", "real_array", "real_dtype"]

_REAL = (np.dtype("float32"), np.dtype("float64"))
_COMPLEX = (np.dtype("complex64"), np.dtype("complex128"))


def real_array(name: str, x: Any) -> jax.Array:
    """``x`` as a float32 or float64 JAX array.

    Args:
        name: The argument's name, for the message.
        x: Array-like of float32 or float64 (Python and integer input becomes the default float).

    Raises:
        TypeError: half precision, complex or other dtypes; float64 data while JAX's x64 mode is off.
    """
    x = _plain_to_float(x)
    if x.dtype not in _REAL:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected float32 or float64. Convert it with {name}.astype('float32')."
        )
    return _keep(name, x, "float64", "float32")


def complex_array(name: str, x: Any) -> jax.Array:
    """``x`` as a complex64 or complex128 JAX array (real coefficients are promoted to complex of their own precision).

    Raises:
        TypeError: half precision or other dtypes; double precision data while JAX's x64 mode is off.
    """
    x = _plain_to_float(x)
    if x.dtype in _REAL:
        x = x.astype(complex_dtype(x.dtype))
    if x.dtype not in _COMPLEX:
        raise TypeError(f"{name} has dtype {x.dtype}; expected complex64 or complex128.")
    return _keep(name, x, "complex128", "complex64")


def complex_dtype(dtype: Any) -> np.dtype[Any]:
    """The complex dtype of a real one (float32 -> complex64, float64 -> complex128)."""
    return np.dtype("complex128" if np.dtype(dtype) == np.float64 else "complex64")


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """The real dtype of a complex one (complex64 -> float32, complex128 -> float64)."""
    return np.dtype("float64" if np.dtype(dtype) in (np.dtype("complex128"), np.dtype("float64")) else "float32")


def _plain_to_float(x: Any) -> Any:
    if hasattr(x, "dtype"):
        return x
    x = np.asarray(x)
    return x.astype(jax.dtypes.canonicalize_dtype(np.float64)) if x.dtype.kind in "iub" or x.dtype == np.float64 else x


def _keep(name: str, x: Any, double: str, single: str) -> jax.Array:
    if x.dtype == np.dtype(double) and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TypeError(
            f"{name} is {double} but JAX's 64-bit mode is off, so it would be rounded to {single} in silence. Either "
            f"convert it yourself, {name}.astype('{single}'), or enable 64-bit: "
            "jax.config.update('jax_enable_x64', True) or `with jax.enable_x64(True):`."
        )
    return jnp.asarray(x)

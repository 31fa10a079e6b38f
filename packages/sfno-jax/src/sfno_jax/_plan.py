"""What a Legendre stage needs to know, as a hashable value that jit can take as a static argument."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LegendrePlan"]


@dataclasses.dataclass(frozen=True, repr=False)
class LegendrePlan:
    """Rows, weights and truncation of a Legendre stage.

    Attributes:
        lmax: Number of degrees.
        mmax: Number of orders.
        nfreq: Number of Fourier coefficients along longitude, nlon // 2 + 1.
        csphase: Include the Condon-Shortley phase (-1)^m.
    """

    lmax: int
    mmax: int
    nfreq: int
    csphase: bool
    _cos_colatitude: bytes
    _weights: bytes
    _degree_scale: bytes
    _sin_colatitude: bytes = b""

    @classmethod
    def create(
        cls,
        *,
        cos_colatitude: ArrayLike,
        weights: ArrayLike,
        degree_scale: ArrayLike,
        lmax: int,
        mmax: int,
        nfreq: int,
        csphase: bool,
        sin_colatitude: ArrayLike | None = None,
    ) -> LegendrePlan:
        """Build a plan from arrays: cos(theta) and weights, shape (nlat,), and a factor per degree, shape (lmax,).

        sin(theta), shape (nlat,), is optional; without it the native kernel takes sqrt((1 - x)(1 + x)), which next to
        the poles is good to 1e-16 / sin^2(theta) only.

        Raises:
            ValueError: Arrays whose lengths disagree.
        """
        x, w, s = (np.ascontiguousarray(v, dtype=np.float64) for v in (cos_colatitude, weights, degree_scale))
        if x.shape != w.shape or s.shape != (lmax,):
            raise ValueError(
                f"cos_colatitude {x.shape} and weights {w.shape} must agree, and degree_scale {s.shape} be ({lmax},)."
            )
        sine = np.ascontiguousarray([] if sin_colatitude is None else sin_colatitude, dtype=np.float64)
        if sin_colatitude is not None and sine.shape != x.shape:
            raise ValueError(f"sin_colatitude {sine.shape} and cos_colatitude {x.shape} must agree.")
        return cls(lmax, mmax, nfreq, bool(csphase), x.tobytes(), w.tobytes(), s.tobytes(), sine.tobytes())

    @property
    def nlat(self) -> int:
        """Number of latitudes."""
        return len(self._cos_colatitude) // 8

    @property
    def cos_colatitude(self) -> NDArray[np.float64]:
        """cos(theta) of the rows, north to south, shape (nlat,)."""
        return np.frombuffer(self._cos_colatitude)

    @property
    def sin_colatitude(self) -> NDArray[np.float64]:
        """sin(theta) of the rows, shape (nlat,), or (0,) where it was not given."""
        return np.frombuffer(self._sin_colatitude)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Factor per row, shape (nlat,)."""
        return np.frombuffer(self._weights)

    @property
    def degree_scale(self) -> NDArray[np.float64]:
        """Factor per degree, shape (lmax,)."""
        return np.frombuffer(self._degree_scale)

    def scaled(self, factor: float) -> LegendrePlan:
        """The same with another factor on all degrees."""
        return dataclasses.replace(self, _degree_scale=(self.degree_scale * factor).tobytes())

    def __repr__(self) -> str:
        sizes = f"nlat={self.nlat}, lmax={self.lmax}, mmax={self.mmax}, nfreq={self.nfreq}"
        return f"LegendrePlan({sizes}, csphase={self.csphase})"

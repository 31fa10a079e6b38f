"""Spherical harmonic transforms and Spherical Fourier Neural Operators in JAX."""

from .grids import GRIDS, SphereGrid, area_weights, colatitudes, latitudes, longitudes, quadrature
from .legendre import associated_legendre
from .transforms import InverseRealSHT, InverseRealVectorSHT, RealSHT, RealVectorSHT, backend

__all__ = [
    "GRIDS",
    "InverseRealSHT",
    "InverseRealVectorSHT",
    "RealSHT",
    "RealVectorSHT",
    "SphereGrid",
    "area_weights",
    "associated_legendre",
    "backend",
    "colatitudes",
    "latitudes",
    "longitudes",
    "quadrature",
]

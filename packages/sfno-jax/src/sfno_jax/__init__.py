"""Spherical harmonic transforms and Spherical Fourier Neural Operators in JAX.

The names below are loaded when they are first used, so that importing the package is quick. Where to look:

    grids, legendre, equiangular, transforms       the sphere and its transforms (spec: the module docstrings)
    differential, spectral, rotation, random_fields  operators on coefficients
    models, convert                                 SFNO, FNO, weights from and to other implementations
    physics                                         shallow water, Allen-Cahn, Ginzburg-Landau
    losses, metrics, training, data                 learning from trajectories and gridded files
    parallel                                        transforms and training over several devices
    samples, plotting, cli, demo                    real fields, maps, the command line
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .differential import (
        HelmholtzDecomposition,
        divergence,
        east_north,
        gradient,
        helmholtz,
        inverse_laplacian,
        laplacian,
        laplacian_eigenvalues,
        theta_lambda,
        vorticity,
        vorticity_divergence,
        wind,
    )
    from .grids import GRIDS, SphereGrid, area_weights, colatitudes, latitudes, longitudes, quadrature
    from .legendre import associated_legendre, associated_legendre_derivatives
    from .models import FNO, SFNO, FNOConfig, SFNOConfig, build_model, from_pretrained, parameter_count, save_pretrained
    from .physics import (
        AllenCahn,
        GinzburgLandau,
        InstabilityError,
        ShallowWaterSolver,
        ShallowWaterState,
        galewsky,
        random_state,
        solid_body_rotation,
    )
    from .random_fields import GaussianRandomField
    from .rotation import Rotation, rotate
    from .samples import egm96, era5_500hpa
    from .spectral import (
        apply_filter,
        coherence,
        cross_spectrum,
        exponential_filter,
        gaussian_filter,
        hyperdiffusion_filter,
        power_spectrum,
        regrid,
        resample,
    )
    from .transforms import InverseRealSHT, InverseRealVectorSHT, RealSHT, RealVectorSHT, backend

_HOMES = {
    "grids": (
        "GRIDS",
        "SphereGrid",
        "area_weights",
        "colatitudes",
        "latitudes",
        "longitudes",
        "quadrature",
    ),
    "legendre": (
        "associated_legendre",
        "associated_legendre_derivatives",
    ),
    "transforms": (
        "InverseRealSHT",
        "InverseRealVectorSHT",
        "RealSHT",
        "RealVectorSHT",
        "backend",
    ),
    "differential": (
        "HelmholtzDecomposition",
        "divergence",
        "east_north",
        "gradient",
        "helmholtz",
        "inverse_laplacian",
        "laplacian",
        "laplacian_eigenvalues",
        "theta_lambda",
        "vorticity",
        "vorticity_divergence",
        "wind",
    ),
    "spectral": (
        "apply_filter",
        "coherence",
        "cross_spectrum",
        "exponential_filter",
        "gaussian_filter",
        "hyperdiffusion_filter",
        "power_spectrum",
        "regrid",
        "resample",
    ),
    "rotation": (
        "Rotation",
        "rotate",
    ),
    "random_fields": ("GaussianRandomField",),
    "models": (
        "FNO",
        "SFNO",
        "FNOConfig",
        "SFNOConfig",
        "build_model",
        "from_pretrained",
        "parameter_count",
        "save_pretrained",
    ),
    "physics": (
        "AllenCahn",
        "GinzburgLandau",
        "InstabilityError",
        "ShallowWaterSolver",
        "ShallowWaterState",
        "galewsky",
        "random_state",
        "solid_body_rotation",
    ),
    "samples": (
        "egm96",
        "era5_500hpa",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "FNO",
    "GRIDS",
    "SFNO",
    "AllenCahn",
    "FNOConfig",
    "GaussianRandomField",
    "GinzburgLandau",
    "HelmholtzDecomposition",
    "InstabilityError",
    "InverseRealSHT",
    "InverseRealVectorSHT",
    "RealSHT",
    "RealVectorSHT",
    "Rotation",
    "SFNOConfig",
    "ShallowWaterSolver",
    "ShallowWaterState",
    "SphereGrid",
    "apply_filter",
    "area_weights",
    "associated_legendre",
    "associated_legendre_derivatives",
    "backend",
    "build_model",
    "coherence",
    "colatitudes",
    "cross_spectrum",
    "divergence",
    "east_north",
    "egm96",
    "era5_500hpa",
    "exponential_filter",
    "from_pretrained",
    "galewsky",
    "gaussian_filter",
    "gradient",
    "helmholtz",
    "hyperdiffusion_filter",
    "inverse_laplacian",
    "laplacian",
    "laplacian_eigenvalues",
    "latitudes",
    "longitudes",
    "parameter_count",
    "power_spectrum",
    "quadrature",
    "random_state",
    "regrid",
    "resample",
    "rotate",
    "save_pretrained",
    "solid_body_rotation",
    "theta_lambda",
    "vorticity",
    "vorticity_divergence",
    "wind",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

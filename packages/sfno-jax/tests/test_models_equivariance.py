"""Rotating the input and then filtering is filtering and then rotating: for zonal filters, and only for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sfno_jax.models import FNO, SFNO, FNOConfig, SFNOConfig
from sfno_jax.models.operator import SpectralConv
from sfno_jax.rotation import rotate
from sfno_jax.transforms import InverseRealSHT, RealSHT

ANGLES = (0.7, 1.1, -2.0)
NLAT, NLON, BAND = 32, 64, 24


def random_field(channels, band, seed=0):
    """Coefficients of smooth random fields with degrees below `band`, shape (1, channels, NLAT, NLAT)."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((2, 1, channels, NLAT, NLAT))
    l, m = np.arange(NLAT)[:, None], np.arange(NLAT)
    keep = (m <= l) & (l < band)
    return jnp.asarray(np.where(keep, a[0] + 1j * np.where(m > 0, a[1], 0), 0) / (1 + l), np.complex64)


def equivariance_error(function, coefficients, angles=ANGLES):
    """|f(R x) - R f(x)| / |f(x)| over the grid, for one function of fields on the Gauss grid."""
    analysis = RealSHT(NLAT, NLON, NLAT, NLAT, "legendre-gauss")
    synthesis = InverseRealSHT(NLAT, NLON, NLAT, NLAT, "legendre-gauss")

    @jax.jit
    def both(coefficients):
        y = function(synthesis(coefficients))
        there = function(synthesis(rotate(coefficients, *angles)))
        here = synthesis(rotate(analysis(y), *angles))
        return jnp.linalg.norm(there - here) / jnp.linalg.norm(y)

    return float(both(coefficients))


def layer(operator_type, config_class=SFNOConfig, **options):
    grids = {"grid": "legendre-gauss"} if config_class is SFNOConfig else {}
    config = config_class(
        nlat=NLAT, nlon=NLON, scale_factor=1, embed_dim=3, num_layers=1, operator_type=operator_type, **grids, **options
    )
    network = (SFNO if config_class is SFNOConfig else FNO)(config, rngs=nnx.Rngs(0))
    conv = SpectralConv(config, gain=2.0, rngs=nnx.Rngs(1))
    return lambda x: conv(x, network.analyses[0], network.syntheses[0])[0]


def test_zonal_layer_is_equivariant():
    assert equivariance_error(layer("driscoll-healy", real_weights=True), random_field(3, BAND)) < 1e-5
    separable = layer("driscoll-healy", real_weights=True, separable=True)
    assert equivariance_error(separable, random_field(3, BAND)) < 1e-5


def test_complex_weights_commute_with_rotations_about_the_poles_only():
    complex_layer = layer("driscoll-healy")
    assert equivariance_error(complex_layer, random_field(3, BAND)) > 1e-1
    assert equivariance_error(complex_layer, random_field(3, BAND), (0.7, 0.0, 0.0)) < 1e-5


@pytest.mark.parametrize("config_class", [SFNOConfig, FNOConfig])
def test_weights_per_mode_are_not(config_class):
    assert equivariance_error(layer("diagonal", config_class), random_field(3, BAND)) > 1e-1


def network_error(nlat, activation="gelu"):
    config = SFNOConfig(
        nlat=nlat,
        nlon=2 * nlat,
        grid="legendre-gauss",
        scale_factor=1,
        max_modes=(8, 8),
        embed_dim=8,
        num_layers=2,
        in_channels=3,
        activation=activation,
        real_weights=True,
    )
    model = SFNO(config, rngs=nnx.Rngs(0))
    synthesis = InverseRealSHT(nlat, 2 * nlat, 8, 8, "legendre-gauss")
    analysis = RealSHT(nlat, 2 * nlat, 8, 8, "legendre-gauss")
    x = random_field(3, 6)[..., :8, :8]

    @jax.jit
    def both(x):
        y = analysis(model(synthesis(x)))
        there = analysis(model(synthesis(rotate(x, *ANGLES))))
        return jnp.linalg.norm(there - rotate(y, *ANGLES)) / jnp.linalg.norm(y)

    return float(both(x))


def test_whole_network_is_equivariant_up_to_the_aliasing_of_its_activation():
    """GELU leaves the band, and what the grid cannot resolve comes back rotated wrongly: less on a finer grid."""
    coarse, fine = network_error(10), network_error(24)
    assert 1e-6 < fine < coarse / 3
    assert coarse < 0.1
    assert network_error(10, "identity") < 1e-5

"""The pointwise kernel against plain JAX and against SciPy's erf."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from sfno_jax.models import gelu_mlp as module
from sfno_jax.models.gelu_mlp import gelu_mlp, supports
from sfno_jax.models.layers import PointwiseMLP

# batch, in, hidden, out, points: whole tiles of 256, less than one, one and a bit
SIZES = [(2, 32, 64, 32, 512), (1, 16, 16, 48, 1), (3, 16, 32, 16, 300)]


def arguments(batch, inner, hidden, out, points, residual):
    rng = np.random.default_rng(0)
    shapes = ((batch, inner, points), (hidden, inner), (hidden,), (out, hidden), (batch, out, points))
    scales = (1, inner**-0.5, 1, hidden**-0.5, 1)
    arrays = [(s * rng.standard_normal(n)).astype(np.float32) for n, s in zip(shapes, scales, strict=True)]
    return tuple(map(jnp.asarray, arrays if residual else arrays[:4]))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(sizes, residual):
    args = arguments(*sizes, residual)
    y, back = jax.vjp(gelu_mlp, *args)
    expected, plain_back = jax.vjp(module._plain, *args)
    np.testing.assert_allclose(y, expected, atol=2e-6 * np.abs(expected).max(), rtol=0)
    g = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), jnp.float32)
    for a, b in zip(back(g), plain_back(g), strict=True):
        np.testing.assert_allclose(a, b, atol=4e-6 * np.abs(b).max(), rtol=0)


def test_gradients_are_the_transpose_of_the_tangent():
    args = arguments(*SIZES[2], True)
    changes = tuple(jnp.flip(a) for a in args)
    y, tangent = jax.jvp(gelu_mlp, args, changes)
    gradients = jax.vjp(gelu_mlp, *args)[1](y)
    left = np.vdot(np.asarray(tangent, np.float64), np.asarray(y, np.float64))
    right = sum(
        np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(changes, gradients, strict=True)
    )
    np.testing.assert_allclose(left, right, rtol=1e-4)


def test_second_derivatives():
    x, *weights = arguments(*SIZES[1], True)

    def norm(function):
        def penalty(x):
            return jnp.sum(jax.grad(lambda z: jnp.sum(jnp.sin(function(z, *weights))))(x) ** 2)

        return jax.grad(penalty)(x), jax.jvp(penalty, (x,), (jnp.ones_like(x),))[1]

    for a, b in zip(norm(gelu_mlp), norm(module._plain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max(), rtol=0)


@pytest.mark.parametrize("axes", [(0, None, None, None, None), (0, None, None, None, 0), (None, 0, None, None, None)])
def test_vmap(axes):
    args = arguments(*SIZES[2], True)
    stacked = [a if axis is None else jnp.stack([a, 2 * a], axis) for a, axis in zip(args, axes, strict=True)]
    y = jax.vmap(gelu_mlp, in_axes=axes)(*stacked)
    expected = gelu_mlp(*(a if axis is None else 2 * a for a, axis in zip(args, axes, strict=True)))
    np.testing.assert_allclose(y[1], expected, atol=4e-6 * np.abs(expected).max(), rtol=0)
    if axes[4] is None and axes[0] == 0:
        y = jax.vmap(gelu_mlp, in_axes=axes[:4])(*stacked[:4])
        expected = gelu_mlp(2 * args[0], *args[1:4])
        np.testing.assert_allclose(y[1], expected, atol=4e-6 * np.abs(expected).max(), rtol=0)


def test_gelu_and_its_slope_everywhere():
    x = np.concatenate([np.linspace(-9, 9, 4000), [-1e30, -100, -0.0, 0.0, 100, 1e30]]).astype(np.float32)
    x = jnp.asarray(np.tile(x, (1, 16, 1)))
    one, zero = jnp.eye(16), jnp.zeros(16)
    y, back = jax.vjp(lambda x: gelu_mlp(x, one, zero, one), x)
    z = np.asarray(x, np.float64)
    cdf = 0.5 * (1 + erf(z / np.sqrt(2)))
    np.testing.assert_allclose(y, z * cdf, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(back(jnp.ones_like(x))[0], cdf + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi), atol=1e-6)


def test_threads_do_not_change_a_bit(monkeypatch):
    args = arguments(2, 32, 64, 32, 4000, True)
    expected = jax.vjp(gelu_mlp, *args)[1](args[4])
    monkeypatch.setenv("SFNO_JAX_NUM_THREADS", "1")
    for a, b in zip(jax.vjp(gelu_mlp, *args)[1](args[4]), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_where_it_applies():
    x = jnp.zeros((2, 32, 10))
    assert supports(x, 64, 32)
    assert not supports(x, 40, 32)
    assert not supports(x, 1024, 32)
    assert not supports(x[:, :3], 64, 32)
    assert not supports(x.astype(jnp.float16), 64, 32)


def test_layer_without_the_kernel():
    layer = PointwiseMLP(
        16, 32, activation="gelu", output_bias=True, drop_rate=0.0, gain=1.0, dtype=jnp.float32, rngs=nnx.Rngs(0)
    )
    layer.contract.bias[...] = jnp.arange(16.0)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 16, 5, 10)), jnp.float32)
    y = layer(x, 2 * x)
    assert "gelu_mlp" in str(jax.make_jaxpr(lambda x: layer(x, x))(x))  # traced anew
    layer.may_use_kernel = False
    assert "gelu_mlp" not in str(jax.make_jaxpr(lambda x: layer(x, x))(x))  # traced anew
    np.testing.assert_allclose(y, layer(x, 2 * x), atol=1e-5)

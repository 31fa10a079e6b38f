"""Packed transforms and products against the plain transforms, and as exact transposes of each other."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from flax import nnx

from sfno_jax import InverseRealSHT, RealSHT
from sfno_jax._packed import (
    mode_count,
    packed_analysis,
    packed_analysis_beside,
    packed_synthesis,
    packed_synthesis_onto,
    supports,
)
from sfno_jax._packed_product import mix, mix_transposed, outer
from sfno_jax.models import SFNO, SFNOConfig
from sfno_jax.models.filters import mix_per_degree
from sfno_jax.models.packed_conv import packed_plans
from sfno_jax.transforms import packed_plan

TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
CHANNELS = 16

# nlat, nlon, lmax, mmax, grid: odd and even nlat, poles, the Nyquist order, rectangles either way, radices 2 to 7
SHAPES = [
    (16, 32, 16, 16, "legendre-gauss"),
    (17, 40, 12, 21, "legendre-gauss"),
    (9, 18, 5, 4, "equiangular"),
    (10, 14, 9, 8, "lobatto"),
    (12, 90, 12, 7, "trapezoidal"),
    (6, 4, 6, 3, "legendre-gauss"),
]


def transforms(nlat, nlon, lmax, mmax, grid):
    plan = (nlat, nlon, lmax, mmax, grid)
    return RealSHT(*plan, allow_aliasing=True), InverseRealSHT(*plan, allow_aliasing=True)


def values(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def pack(coefficients):
    """(batch, channels, l, m) complex to (modes, batch, 2, channels)."""
    *_, lmax, mmax = coefficients.shape
    l, m = np.array([(l, m) for l in range(lmax) for m in range(min(l + 1, mmax))]).T
    a = np.asarray(coefficients)[:, :, l, m]
    return np.stack([a.real, a.imag]).transpose(3, 1, 0, 2)


def close(a, b, dtype):
    np.testing.assert_allclose(a, b, atol=TOLERANCE[dtype] * np.abs(b).max(), rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_transforms_are_the_plain_ones(shape, dtype):
    nlat, nlon, lmax, mmax, _ = shape
    with jax.enable_x64(True):
        analysis, synthesis = transforms(*shape)
        x = values(3, CHANNELS, nlat, nlon, dtype=dtype)
        u = packed_analysis(x, packed_plan(analysis))
        assert u.dtype == dtype
        assert u.shape == (mode_count(lmax, mmax), 3, 2, CHANNELS)
        coefficients = analysis(x)
        close(u, pack(coefficients), dtype)
        close(packed_synthesis(u, packed_plan(synthesis)), synthesis(coefficients), dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_imaginary_parts_of_no_real_field_are_ignored(shape):
    _nlat, _nlon, lmax, mmax, _ = shape
    with jax.enable_x64(True):
        _, synthesis = transforms(*shape)
        a = np.tril(np.ones((lmax, mmax))) * (values(2, CHANNELS, lmax, mmax) + 1j * values(2, CHANNELS, lmax, mmax))
        close(packed_synthesis(jnp.asarray(pack(a)), packed_plan(synthesis)), synthesis(a), "float64")


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_transposes_of_the_transforms(shape):
    nlat, nlon, lmax, mmax, _ = shape
    with jax.enable_x64(True):
        for plan in map(packed_plan, transforms(*shape)):
            x = values(2, CHANNELS, nlat, nlon)
            u = values(mode_count(lmax, mmax), 2, 2, CHANNELS, seed=1)
            left, right = np.vdot(packed_analysis(x, plan), u), np.vdot(x, packed_synthesis(u, plan))
            np.testing.assert_allclose(left, right, rtol=1e-12)
            (back,) = jax.vjp(lambda y, plan=plan: packed_analysis(y, plan), x)[1](jnp.asarray(u))
            np.testing.assert_array_equal(back, packed_synthesis(u, plan))
            (back,) = jax.vjp(lambda y, plan=plan: packed_synthesis(y, plan), u)[1](jnp.asarray(x))
            np.testing.assert_array_equal(back, packed_analysis(x, plan))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("lmax", "mmax"), [(16, 16), (11, 5), (3, 7)])
def test_product_is_mix_per_degree(lmax, mmax, dtype):
    with jax.enable_x64(True):
        a = np.tril(np.ones((lmax, mmax))) * (values(3, 16, lmax, mmax) + 1j * values(3, 16, lmax, mmax, seed=1))
        a = a.astype(np.result_type(dtype, np.complex64))
        weight = values(32, 16, lmax, 2, dtype=dtype)
        v = mix(jnp.asarray(pack(a)), weight, lmax, mmax)
        assert v.dtype == dtype
        close(v, pack(mix_per_degree(jnp.asarray(weight), jnp.asarray(a))), dtype)


def test_transposes_of_the_product():
    lmax, mmax, modes = 11, 5, mode_count(11, 5)
    with jax.enable_x64(True):
        u, v = values(modes, 3, 2, 16), values(modes, 3, 2, 32, seed=1)
        weight = values(32, 16, lmax, 2, seed=2)
        form = np.vdot(mix(u, weight, lmax, mmax), v)
        np.testing.assert_allclose(np.vdot(u, mix_transposed(v, weight, lmax, mmax)), form, rtol=1e-12)
        np.testing.assert_allclose(np.vdot(weight, outer(u, v, lmax, mmax)), form, rtol=1e-12)
        for function, a, b in ((mix, u, weight), (mix_transposed, v, weight), (outer, u, v)):

            def square(a, b, function=function):
                return jnp.sum(function(a, b, lmax, mmax) ** 2)

            jax.test_util.check_grads(square, (a, b), order=2, modes=("fwd", "rev"), rtol=1e-6)


def test_vmap_of_all_operations():
    shape = SHAPES[1]
    nlat, nlon, lmax, mmax, _ = shape
    with jax.enable_x64(True):
        plan = packed_plan(transforms(*shape)[0])
        x = values(2, CHANNELS, 5, nlat, nlon)
        u = jax.vmap(lambda y: packed_analysis(y, plan), in_axes=2)(x)
        back = jax.vmap(lambda y: packed_synthesis(y, plan))(u)
        one = packed_analysis(x[:, :, 3], plan)
        close(u[3], one, "float64")
        close(back[3], packed_synthesis(one, plan), "float64")
        weight, weights = values(16, 16, lmax, 2), values(5, 16, 16, lmax, 2, seed=1)
        shared = jax.vmap(lambda y: mix(y, weight, lmax, mmax))(u)
        close(shared[3], mix(u[3], weight, lmax, mmax), "float64")
        own = jax.vmap(lambda y, w: mix(y, w, lmax, mmax))(u, weights)
        close(own[3], mix(u[3], weights[3], lmax, mmax), "float64")
        for_each = jax.vmap(lambda w: mix(u[0], w, lmax, mmax))(weights)
        close(for_each[3], mix(u[0], weights[3], lmax, mmax), "float64")
        squares = jax.vmap(lambda y: outer(y, y, lmax, mmax))(u)
        close(squares[3], outer(u[3], u[3], lmax, mmax), "float64")


def test_what_the_kernels_do():
    assert supports(128, 32)
    assert supports(2 * 3 * 5 * 7, 16)
    assert not supports(22, 16)
    assert not supports(128, 24)
    assert packed_plan(RealSHT(16, 32, 16, grid="legendre-gauss", backend="einsum")) is None
    assert packed_plan(RealSHT(16, 32, 15, grid="equiangular")) is None  # its exact analysis lies between the stages


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_do_not_change_a_bit(threads, monkeypatch):
    analysis, _ = transforms(64, 128, 64, 64, "legendre-gauss")
    x = values(2, 32, 64, 128, dtype="float32")
    expected = packed_analysis(x, packed_plan(analysis))
    monkeypatch.setenv("SFNO_JAX_NUM_THREADS", threads)
    np.testing.assert_array_equal(packed_analysis(x, packed_plan(analysis)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"real_weights": True},
        {"scale_factor": 2},
        {"variant": "makani", "scale_factor": 2, "bias": True},
        {"param_dtype": "float64", "mlp_ratio": 1.0},
    ],
    ids=str,
)
def test_network_and_its_gradient_are_those_of_the_plain_path(options, monkeypatch):
    options = {"scale_factor": 1, **options}
    dtype = options.get("param_dtype", "float32")
    with jax.enable_x64(dtype == "float64"):
        config = SFNOConfig(nlat=16, nlon=32, grid="legendre-gauss", embed_dim=16, num_layers=2, **options)
        model = SFNO(config, rngs=nnx.Rngs(0))
        x = jnp.asarray(values(2, 3, 16, 32, dtype=dtype))
        graph, state = nnx.split(model)
        assert packed_plans(
            jnp.zeros((2, 16, 16, 32), dtype), model.blocks[0].conv.filter, model.analyses[0], model.syntheses[0]
        )

        def loss(state, x):
            return jnp.sum(jnp.sin(nnx.merge(graph, state)(x)))

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(state, x)
        monkeypatch.setattr("sfno_jax.models.operator.packed_plans", lambda *_: None)
        monkeypatch.setattr("sfno_jax.models.gelu_mlp.supports", lambda *_: False)
        plain, plain_gradients = jax.value_and_grad(loss, argnums=(0, 1))(state, x)
        np.testing.assert_allclose(value, plain, rtol=50 * TOLERANCE[dtype])
        largest = max(np.abs(b).max() for b in jax.tree.leaves(plain_gradients[0]))  # some are zero but for rounding
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(plain_gradients), strict=True):
            np.testing.assert_allclose(a, b, atol=10 * TOLERANCE[dtype] * largest, rtol=0)


def test_a_synthesis_adds_to_a_field_and_leaves_it_to_others():
    with jax.enable_x64(True):
        for shape in SHAPES[:3]:
            nlat, nlon, lmax, mmax, _ = shape
            _, synthesis = transforms(*shape)
            plan = packed_plan(synthesis)
            u, field = values(mode_count(lmax, mmax), 3, 2, CHANNELS), values(3, CHANNELS, nlat, nlon, seed=1)
            expected = field + packed_synthesis(u, plan)
            close(packed_synthesis_onto(u, field, plan), expected, "float64")
            twice = jax.jit(lambda u, f: (packed_synthesis_onto(u, f, plan) + f, f))  # noqa: B023
            total, kept = twice(u, jnp.asarray(field))
            close(total, expected + field, "float64")
            np.testing.assert_array_equal(kept, field)


def test_residual_pair_is_its_transpose_in_all_modes():
    with jax.enable_x64(True):
        shape = SHAPES[1]
        nlat, nlon, lmax, mmax, _ = shape
        analysis, _ = transforms(*shape)
        plan = packed_plan(analysis)
        x, g = values(2, CHANNELS, nlat, nlon), values(2, CHANNELS, nlat, nlon, seed=1)
        u = values(mode_count(lmax, mmax), 2, 2, CHANNELS, seed=2)
        (coefficients, kept), back = jax.vjp(lambda x: packed_analysis_beside(x, plan), x)
        np.testing.assert_array_equal(kept, x)
        close(coefficients, packed_analysis(x, plan), "float64")
        close(back((u, g))[0], g + packed_synthesis(u, plan), "float64")
        _, onto_back = jax.vjp(lambda u, r: packed_synthesis_onto(u, r, plan), u, g)
        for a, b in zip(onto_back(x), (packed_analysis(x, plan), x), strict=True):
            close(a, b, "float64")

        def each(x):  # uses both results, one, and the other
            u, r = packed_analysis_beside(x, plan)
            only_u, only_r = packed_analysis_beside(r, plan)[0], packed_analysis_beside(x, plan)[1]
            return jnp.sum(jnp.sin(u) * only_u) + jnp.sum(jnp.cos(r) * only_r)

        jax.test_util.check_grads(each, (x,), order=2, atol=1e-4, rtol=1e-4, eps=1e-4)


@pytest.mark.parametrize("axes", [(1, 0), (None, 1), (2, None)])
def test_residual_pair_under_vmap(axes):
    with jax.enable_x64(True):
        shape = SHAPES[0]
        nlat, nlon, lmax, mmax, _ = shape
        analysis, _ = transforms(*shape)
        plan = packed_plan(analysis)
        us = values(4, mode_count(lmax, mmax), 2, 2, CHANNELS)
        fields = values(4, 2, CHANNELS, nlat, nlon, seed=1)
        args = [a[0] if axis is None else np.moveaxis(a, 0, axis) for a, axis in zip((us, fields), axes, strict=True)]
        onto = jax.vmap(lambda u, r: packed_synthesis_onto(u, r, plan), in_axes=axes)(*args)
        for i in range(4):
            u, r = (a[0] if axis is None else a[i] for a, axis in zip((us, fields), axes, strict=True))
            close(onto[i], r + packed_synthesis(u, plan), "float64")
        if axes[1] is not None:
            u, r = jax.vmap(lambda x: packed_analysis_beside(x, plan), in_axes=axes[1])(args[1])
            close(u[2], packed_analysis(fields[2], plan), "float64")
            np.testing.assert_array_equal(r, fields)

"""Structure of the networks and their life under JAX's and flax's transformations."""

import itertools

import jax
import jax.extend.core
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from sfno_jax.grids import area_weights
from sfno_jax.models import FNO, SFNO, FNOConfig, SFNOConfig, build_model, parameter_count
from sfno_jax.models.filters import LinearFilter, SpectralMLP, complex_relu
from sfno_jax.models.layers import AreaInstanceNorm, ChannelLayerNorm, ComplexParam, GridLayerNorm, InstanceNorm

SMALL = {"nlat": 9, "nlon": 16, "scale_factor": 1, "embed_dim": 4, "num_layers": 2, "in_channels": 2, "out_channels": 2}


def make(config_class=SFNOConfig, **options):
    return build_model(config_class(**{**SMALL, **options}), nnx.Rngs(0, dropout=1))


def fields(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def unoptimised(function):
    """``jit`` of ``function(model, x)`` that compiles twice as fast: these networks are tiny."""

    def call(model, x):
        graph, state = nnx.split(model)
        options = {"xla_backend_optimization_level": 0}
        jitted = jax.jit(lambda state, x: function(nnx.merge(graph, state), x), compiler_options=options)
        return jitted(state, x)

    return call


@unoptimised
def evaluate(model, x):
    return model(x)


SHAPES = [  # nlat, nlon, scale, grid, internal grid, variant
    (48, 128, 3, "legendre-gauss", "legendre-gauss", "torch-harmonics"),
    (17, 32, 2, "equiangular", "legendre-gauss", "torch-harmonics"),
    (33, 54, 2, "lobatto", "equiangular", "makani"),
    (33, 64, 3, "trapezoidal", "lobatto", "torch-harmonics"),
    (16, 30, 1, "equiangular", "legendre-gauss", "makani"),
]


@pytest.mark.parametrize(("nlat", "nlon", "scale", "grid", "internal", "variant"), SHAPES)
def test_any_shape_and_grid(nlat, nlon, scale, grid, internal, variant):
    options = {"nlat": nlat, "nlon": nlon, "scale_factor": scale, "grid": grid, "grid_internal": internal}
    model = make(**options, variant=variant)
    y = evaluate(model, fields(1, 2, nlat, nlon))
    assert y.shape == (1, 2, nlat, nlon)
    assert np.isfinite(y).all()


OPTIONS = [
    {"filter_type": "non-linear", "norm": "layer_norm", "spectral_layers": 1},
    {
        "filter_type": "non-linear",
        "operator_type": "l-dependant",
        "complex_activation": "cartesian",
        "bias": True,
        "variant": "makani",
        "norm": "layer_norm",
        "position_embedding": "direct",
    },
    {"filter_type": "non-linear", "complex_activation": "modulus", "inner_skip": "linear", "activation": "silu"},
    {"filter_type": "non-linear", "complex_activation": "halfplane", "norm": "instance_norm", "use_mlp": False},
    {"real_weights": True, "inner_skip": "identity", "activation": "relu", "encoder_layers": 2, "encoder_ratio": 1.5},
    {"separable": True, "operator_type": "diagonal", "outer_skip": "linear", "position_embedding": "learnable lat"},
    {"operator_type": "block-diagonal", "spectral_bias": True, "norm": "instance_norm_s2", "bias": True},
    {"operator_type": "diagonal", "variant": "makani", "position_embedding": "frequency", "out_channels": 3},
    {"analysis": "exact", "max_modes": (8, 8), "outer_skip": "none", "residual_prediction": True, "out_channels": 1},
    {"drop_rate": 0.2, "drop_path_rate": 0.5, "num_layers": 2, "position_embedding": "spectral"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(map(str, o.values())))
def test_every_parameter_has_a_gradient(options):
    model = make(**{"num_layers": 1, **options})
    x = fields(2, 2, 9, 16)
    # Non-trivial values also for what starts at zero, so that no gradient vanishes by symmetry.
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda p: p + 0.1 * jnp.cos(jnp.arange(p.size)).reshape(p.shape), state))

    @unoptimised
    def gradients(model, x):
        return nnx.grad(lambda m: jnp.sum(jnp.sin(m(x))))(model)

    for path, gradient in nnx.to_flat_state(gradients(model, x)):
        value = gradient.get_value()
        assert np.isfinite(value).all(), path
        if path[-1] == "thresholds" or "thresholds" in path:
            continue  # angles of the half-plane activation only switch modes on and off
        assert np.abs(value).max() > 0, path


def test_fno_shapes_and_modes():
    for variant, options in itertools.product(("torch-harmonics", "makani"), ({}, {"filter_type": "non-linear"})):
        model = make(FNOConfig, variant=variant, nlat=12, nlon=20, scale_factor=2, norm="instance_norm", **options)
        assert evaluate(model, fields(1, 2, 12, 20)).shape == (1, 2, 12, 20)


def test_fft_truncation_keeps_low_wave_numbers_of_both_signs():
    from sfno_jax.models.fft2 import InverseRealFFT2, RealFFT2

    rows, columns = np.meshgrid(np.arange(8) / 8, np.arange(12) / 12, indexing="ij")
    forward, inverse = RealFFT2(8, 12, 5, 4), InverseRealFFT2(8, 12, 5, 4)
    for k, m in ((0, 0), (2, 3), (-2, 1), (-1, 3)):
        wave = np.cos(2 * np.pi * (k * rows + m * columns)).astype(np.float32)
        np.testing.assert_allclose(inverse(forward(wave)), wave, atol=1e-6)
    for k, m in ((3, 1), (-3, 1), (0, 4)):
        wave = np.cos(2 * np.pi * (k * rows + m * columns)).astype(np.float32)
        assert np.abs(inverse(forward(wave))).max() < 1e-6
    with pytest.raises(ValueError, match=r"lmax=9.*8 x 12"):
        RealFFT2(8, 12, 9, 4)


def test_identity_filter_gives_back_the_residual():
    for variant, grid in (("torch-harmonics", "legendre-gauss"), ("makani", "equiangular")):
        model = make(variant=variant, grid=grid, nlat=16, nlon=32, scale_factor=2, num_layers=1)
        conv = model.blocks[0].conv
        identity = jnp.zeros_like(conv.filter.weight.get_value())
        conv.filter.weight.set_value(identity.at[jnp.arange(4), jnp.arange(4), :, 0].set(1.0))
        y, residual = conv(jnp.asarray(fields(1, 4, 16, 32)), model.analyses[0], model.syntheses[1], resample=True)
        assert y.shape == (1, 4, 8, 16)
        np.testing.assert_allclose(y, residual, atol=1e-5)


def test_unbatched_input_and_vmap():
    model = make(norm="instance_norm", residual_prediction=True)
    x = fields(3, 2, 9, 16)
    y = evaluate(model, x)
    np.testing.assert_allclose(evaluate(model, x[0]), y[0], atol=1e-5)
    graph, state = nnx.split(model)
    mapped = jax.jit(jax.vmap(lambda state, x: nnx.merge(graph, state)(x), (None, 0)))
    np.testing.assert_allclose(mapped(state, x), y, atol=1e-5)


def test_functional_form_under_jit_and_grad():
    model = make(drop_rate=0.1)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    x = fields(2, 2, 9, 16)

    @jax.jit
    def loss(params, rest, x):
        return jnp.mean(jnp.square(nnx.merge(graph, params, rest)(x)))

    gradient = jax.grad(loss)(params, rest, x)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)


def test_gradient_matches_finite_differences():
    with jax.enable_x64(True):
        model = make(param_dtype="float64", norm="instance_norm_s2", scale_factor=2, filter_type="non-linear")
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        x = fields(1, 2, 9, 16).astype(np.float64)
        loss = jax.jit(jax.value_and_grad(lambda p: jnp.sum(jnp.sin(nnx.merge(graph, unravel(p), rest)(x)))))
        direction, step = np.cos(np.arange(flat.size)), 1e-6
        slope = loss(flat)[1] @ direction
        ends = [loss(flat + s * direction)[0] for s in (step, -step)]
        assert abs((ends[0] - ends[1]) / (2 * step) - slope) < 1e-5 * abs(slope)


@pytest.mark.parametrize("options", [{}, {"grid": "equiangular", "position_embedding": "spectral"}])
def test_no_large_constant_is_captured(options):
    model = make(**{"nlat": 96, "nlon": 192, "grid": "legendre-gauss", **options, "embed_dim": 16})
    x = jax.ShapeDtypeStruct((1, 2, 96, 192), np.float32)
    graph, state = nnx.split(model)
    jaxpr = jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x))(state, x)
    assert max((np.asarray(c).nbytes for c in _constants(jaxpr)), default=0) < 2**20
    closed = jax.make_jaxpr(nnx.merge(graph, state))(x)
    weights = {leaf.shape for leaf in jax.tree.leaves(state)}
    others = [np.asarray(c).nbytes for c in _constants(closed) if np.asarray(c).shape not in weights]
    assert max(others, default=0) < 2**20


def _constants(jaxpr):
    yield from jaxpr.consts
    for equation in jaxpr.jaxpr.eqns:
        for value in equation.params.values():
            if isinstance(value, jax.extend.core.ClosedJaxpr):
                yield from _constants(value)


def test_products_ask_for_full_precision():
    model = make(operator_type="diagonal", variant="makani")
    graph, state = nnx.split(model)
    jaxpr = jax.make_jaxpr(nnx.merge(graph, state))(fields(1, 2, 9, 16))
    precisions = [e.params["precision"] for e in _equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    assert len(precisions) >= 8
    assert all(p == (jax.lax.Precision.HIGHEST,) * 2 for p in precisions)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if isinstance(value, jax.extend.core.ClosedJaxpr):
                yield from _equations(value.jaxpr)


def test_area_weighted_norm_has_zero_mean_and_unit_variance_on_the_sphere():
    x = jnp.asarray(fields(2, 3, 17, 32) * 3 + 1)
    weights = area_weights("equiangular", 17, 32) / (4 * np.pi)
    y = np.asarray(AreaInstanceNorm(3, "equiangular", 17, np.float32)(x), np.float64)
    np.testing.assert_allclose((y * weights).sum((-2, -1)), 0, atol=1e-5)
    np.testing.assert_allclose((y**2 * weights).sum((-2, -1)), 1, atol=1e-4)
    plain = np.asarray(InstanceNorm(3, np.float32)(x), np.float64)
    assert np.abs((plain * weights).sum((-2, -1))).max() > 1e-3
    np.testing.assert_allclose(plain.mean((-2, -1)), 0, atol=1e-5)
    np.testing.assert_allclose(ChannelLayerNorm(3, np.float32)(x).mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(GridLayerNorm(17, 32, np.float32)(x).var((-2, -1)), 1, atol=1e-4)


def test_complex_rectifiers():
    z = np.array([1 + 2j, -1 + 2j, -1 - 2j, 1 - 2j, 0])
    expected = {
        "real": [1 + 2j, 2j, -2j, 1 - 2j, 0],
        "cartesian": [1 + 2j, 2j, 0, 1, 0],
        "halfplane": [1 + 2j, 0, 0, 0, 0],
    }
    for mode, values in expected.items():
        re, im = complex_relu(jnp.asarray(z.real), jnp.asarray(z.imag), mode)
        np.testing.assert_allclose(np.asarray(re) + 1j * np.asarray(im), values, atol=1e-6)
    re, im = complex_relu(jnp.asarray(z.real), jnp.asarray(z.imag), "modulus", -1.0)
    np.testing.assert_allclose(np.hypot(re, im), np.maximum(np.abs(z) - 1, 0), atol=1e-6)
    gradient = jax.grad(lambda r: complex_relu(r, jnp.float32(0), "modulus", 0.5)[0])(jnp.float32(0))
    assert np.isfinite(gradient)


@pytest.mark.parametrize("operator_type", ["driscoll-healy", "diagonal", "block-diagonal"])
def test_linear_filters_are_complex_products(operator_type):
    layer = LinearFilter(
        3,
        (5, 4),
        operator_type=operator_type,
        separable=False,
        gain=1.0,
        boost_mean=False,
        dtype=np.float32,
        rngs=nnx.Rngs(0),
    )
    w = np.asarray(layer.weight.get_value(), np.float64)
    w = w[..., 0] + 1j * w[..., 1]
    u = fields(2, 3, 5, 4) + 1j * fields(2, 3, 5, 4, seed=1)
    subscripts = {
        "driscoll-healy": "oil,bilm->bolm",
        "diagonal": "oilm,bilm->bolm",
        "block-diagonal": "oilnm,bilm->boln",
    }
    expected = np.einsum(subscripts[operator_type], w, u)
    np.testing.assert_allclose(layer(jnp.asarray(u, np.complex64)), expected, atol=1e-5)


def test_initial_filters_have_the_stated_variance():
    options = {"operator_type": "driscoll-healy", "separable": False, "gain": 2.0, "dtype": np.float32}
    layer = LinearFilter(64, (16, 16), **options, boost_mean=True, rngs=nnx.Rngs(0))
    power = np.square(np.asarray(layer.weight.get_value())).sum(-1).mean((0, 1))
    np.testing.assert_allclose(power[1:], 2 / 64, rtol=0.1)
    np.testing.assert_allclose(power[0], 4 / 64, rtol=0.1)
    shared = SpectralMLP(
        64, (4, 4), operator_type="diagonal", width=128, hidden_layers=1, activation="real", bias=False, gain=2.0,
        dtype=np.float32, rngs=nnx.Rngs(0),
    )  # fmt: skip
    np.testing.assert_allclose(np.square(np.asarray(shared.output.get_value())).sum(-1).mean(), 2 / 128, rtol=0.1)


def test_complex_regression_converges_with_adam():
    """Adam on a complex filter: real leaves, the right gradient, and the true weights found."""
    options = {"operator_type": "driscoll-healy", "separable": False, "gain": 1.0, "boost_mean": False}
    target = LinearFilter(2, (3, 3), **options, dtype=np.float32, rngs=nnx.Rngs(1))
    layer = LinearFilter(2, (3, 3), **options, dtype=np.float32, rngs=nnx.Rngs(2))
    u = jnp.asarray(fields(16, 2, 3, 3) + 1j * fields(16, 2, 3, 3, seed=1))
    v = target(u)
    optimizer = nnx.Optimizer(layer, optax.adam(optax.cosine_decay_schedule(0.1, 300)), wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimizer):
        loss, gradient = nnx.value_and_grad(lambda f: jnp.mean(jnp.abs(f(u) - v) ** 2))(layer)
        optimizer.update(layer, gradient)
        return loss

    first = step(layer, optimizer)
    for _ in range(299):
        last = step(layer, optimizer)
    assert last < 1e-6 * first
    np.testing.assert_allclose(layer.weight.get_value(), target.weight.get_value(), atol=2e-3)
    leaves = jax.tree.leaves(nnx.state(optimizer, nnx.optimizer.OptState))
    assert leaves
    assert not any(jnp.iscomplexobj(leaf) for leaf in leaves)
    assert isinstance(layer.weight, ComplexParam)


def test_dropout_acts_in_training_and_not_in_evaluation():
    model = make(drop_rate=0.3, drop_path_rate=0.9)
    x = fields(2, 2, 9, 16)
    train = nnx.jit(lambda model, x: model(x))
    assert np.abs(train(model, x) - train(model, x)).max() > 1e-3
    model.eval()
    np.testing.assert_array_equal(evaluate(model, x), evaluate(model, x))
    assert [block.drop_path is None for block in model.blocks] == [True, False]
    assert model.blocks[1].drop_path.rate == 0.9


def test_drop_path_drops_whole_samples():
    from sfno_jax.models.layers import drop_path

    layer = drop_path(0.5, nnx.Rngs(0))
    y = np.asarray(layer(jnp.ones((64, 3, 4, 5)))).reshape(64, -1)
    assert set(np.unique(y)) == {0.0, 2.0}
    assert (y == y[:, :1]).all()


def test_weights_move_to_another_grid():
    model = make(nlat=16, nlon=32, grid="legendre-gauss", activation="identity", max_modes=(8, 8))
    finer = model.on_grid(32, 64)
    assert finer.config.modes == model.config.modes
    assert parameter_count(finer) == parameter_count(model)
    assert evaluate(model.on_grid(17, 32, grid="equiangular"), fields(1, 2, 17, 32)).shape == (1, 2, 17, 32)
    # Without an activation nothing aliases: a smooth field gives the same integrals on both grids.
    from sfno_jax.grids import colatitudes

    def field(grid, nlat, nlon):
        mu = np.cos(colatitudes(grid, nlat))[:, None]
        return np.broadcast_to(np.stack([mu, mu**2])[None], (1, 2, nlat, nlon)).astype(np.float32)

    coarse = np.asarray(evaluate(model, field("legendre-gauss", 16, 32)))
    fine = np.asarray(evaluate(finer, field("legendre-gauss", 32, 64)))
    mean_coarse = (coarse * area_weights("legendre-gauss", 16, 32)).sum((-2, -1))
    mean_fine = (fine * area_weights("legendre-gauss", 32, 64)).sum((-2, -1))
    np.testing.assert_allclose(mean_fine, mean_coarse, rtol=1e-5, atol=1e-5)
    latitude = make(nlat=16, nlon=32, grid="legendre-gauss", position_embedding="learnable lat")
    here, there = colatitudes("legendre-gauss", 16), colatitudes("legendre-gauss", 32)
    latitude.embedding.fields[...] = jnp.broadcast_to(
        jnp.asarray(here, jnp.float32)[:, None], latitude.embedding.fields.shape
    )
    moved = np.asarray(latitude.on_grid(32, 64).embedding.fields[...])[0, :, 0]
    np.testing.assert_allclose(moved[1:-1], there[1:-1], rtol=1e-6)  # linear in theta, so exact between the nodes
    assert np.asarray(latitude.embedding.fields[...]).shape[1] == 16
    tied = make(nlat=16, nlon=32, norm="layer_norm")
    with pytest.raises(ValueError, match=r"blocks.0.norm.scale is tied to its grid"):
        tied.on_grid(32, 64)
    plane = make(FNOConfig, nlat=16, nlon=32).on_grid(32, 64)
    assert plane.config.modes == (16, 16)
    assert evaluate(plane, fields(1, 2, 32, 64)).shape == (1, 2, 32, 64)


BAD_INPUT = [
    (fields(2, 2, 9, 18), ValueError, r"expected \(batch, in_channels=2, nlat=9, nlon=16\)"),
    (fields(1, 3, 9, 16), ValueError, "in_channels=2"),
    (fields(9, 16), ValueError, "without batch"),
    (fields(2, 2, 9, 16).astype(np.float16), TypeError, "float16"),
    (fields(2, 2, 9, 16).astype(np.float64), TypeError, "64-bit"),
]


@pytest.mark.parametrize(("x", "kind", "message"), BAD_INPUT)
def test_bad_input(x, kind, message):
    model = make()
    with pytest.raises(kind, match=message):
        model(x)


def test_spectral_embedding_needs_resolved_degrees():
    with pytest.raises(ValueError, match=r"embed_dim=26.*embed_dim <= 25"):
        make(position_embedding="spectral", embed_dim=26)


def test_names_of_the_two_networks():
    assert type(make()) is SFNO
    assert type(make(FNOConfig)) is FNO

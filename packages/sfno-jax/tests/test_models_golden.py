"""Networks against torch-harmonics' with the same weights."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sfno_jax.convert import config_from_torch_harmonics, load_torch_harmonics, torch_harmonics_arguments
from sfno_jax.models import SFNO, SFNOConfig, parameter_count
from sfno_jax.models.config import OperatorConfig
from sfno_jax.models.operator import FourierBlock, SpectralConv
from sfno_jax.models.sphere import sphere_transforms
from sfno_jax.models.weights import set_weights

GOLDEN = Path(__file__).parent / "golden"
NETWORKS = json.loads((GOLDEN / "torch_harmonics_networks.json").read_text())
CASES = [name for name in NETWORKS if not name.startswith("block")]


def documented_weight(number, shape, is_complex):
    j = np.arange(np.prod(shape))
    values = 0.3 * np.sin(0.37 * j + 1.1 * number)
    if is_complex:
        values = values + 0.3j * np.sin(0.37 * j + 1.1 * number + 0.5)
    return values.reshape(shape).astype(np.complex64 if is_complex else np.float32)


def documented_input(*shape):
    q = np.arange(np.prod(shape)).reshape(1, *shape)
    return np.cos(0.61 * q + 0.002 * q**1.5).astype(np.float32)


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


def error(y, reference):
    return np.abs(np.asarray(y) - reference).max() / np.abs(reference).max()


def load_case(arguments, parameters):
    model = SFNO(config_from_torch_harmonics(arguments), rngs=nnx.Rngs(0))
    state = {name: documented_weight(i, shape, c) for i, (name, shape, c) in enumerate(parameters)}
    load_torch_harmonics(model, state)
    model.eval()
    return model


@pytest.mark.parametrize("name", ["sfno_a", "sfno_b"])
def test_golden_networks(name, golden):
    reference = json.loads((GOLDEN / f"{name}.json").read_text())
    parameters = [(n, shape, "complex" in dtype) for n, shape, dtype in reference["params"]]
    model = load_case(reference["config"], parameters)
    assert model.config.modes == (reference["lmax"], reference["mmax"])
    assert model.config.internal_shape == (reference["h"], reference["w"])
    assert parameter_count(model, complex_as_one=True) == reference["n_params"]
    arrays = golden(name)
    assert error(evaluate(model, arrays["x"]), arrays["y"]) < 2e-5
    weight = model.decoder.layers[0].weight
    weight.set_value(weight.get_value().at[0, 0].add(1e-2))
    assert error(evaluate(model, arrays["x"]), arrays["y"]) > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_more_networks(name, golden):
    case = NETWORKS[name]
    model = load_case(case["arguments"], case["parameters"])
    arrays = golden("torch_harmonics_networks")
    if f"{name}/embedding" in arrays:
        fields = model.embedding.fields.get_value()
        assert error(fields, arrays[f"{name}/embedding"][0]) < 5e-5  # theirs is made in float32
    assert parameter_count(model, complex_as_one=True) == case["n_params"]
    x = documented_input(case["arguments"].get("in_chans", 3), *case["arguments"]["img_size"])
    assert error(evaluate(model, x), arrays[f"{name}/y"]) < 2e-5
    assert error(evaluate(model, x + 0.01), arrays[f"{name}/y"]) > 1e-4


def layer_config(**options):
    defaults = {
        "nlat": 12,
        "nlon": 24,
        "grid": "legendre-gauss",
        "scale_factor": 1,
        "embed_dim": 3,
        "max_modes": (8, 8),
    }
    return SFNOConfig(**{**defaults, **options})


def transforms(nlat, nlon, grid, modes=(8, 8)):
    return sphere_transforms(nlat, nlon, modes, grid, exact=False)


def pairs(number, shape):
    w = documented_weight(number, shape, True)
    return np.stack([w.real, w.imag], -1)


@pytest.mark.parametrize("operator_type", ["diagonal", "block-diagonal"])
def test_layer_with_other_operators(operator_type, golden):
    conv = SpectralConv(layer_config(operator_type=operator_type, bias=True), gain=2.0, rngs=nnx.Rngs(0))
    modes = (8, 8) if operator_type == "diagonal" else (8, 8, 8)
    weights = {"filter.weight": pairs(0, (3, 3, *modes)), "bias": documented_weight(1, (3,), False)}
    set_weights(conv, weights, "the rule")
    analysis, _ = transforms(12, 24, "legendre-gauss")
    _, synthesis = transforms(8, 16, "equiangular")
    x = jnp.asarray(documented_input(3, 12, 24))
    y, residual = nnx.jit(lambda conv, x: conv(x, analysis, synthesis, resample=True))(conv, x)
    arrays = golden("torch_harmonics_networks")
    assert error(y, arrays[f"layer_{operator_type}/y"]) < 2e-5
    assert error(residual, arrays[f"layer_{operator_type}/residual"]) < 2e-5


def test_layer_with_spectral_bias(golden):
    conv = SpectralConv(layer_config(spectral_bias=True, max_modes=(12, 12)), gain=2.0, rngs=nnx.Rngs(0))
    weight = pairs(0, (1, 3, 3, 12))[0].swapaxes(0, 1)  # theirs is (group, in, out, l)
    set_weights(conv, {"filter.weight": weight, "spectral_bias": pairs(1, (3, 12, 12))}, "the rule")
    x = jnp.asarray(documented_input(3, 12, 24) + 0.5)
    pair = transforms(12, 24, "legendre-gauss", (12, 12))
    y, _ = nnx.jit(lambda conv, x: conv(x, *pair))(conv, x)
    assert error(y, golden("torch_harmonics_networks")["layer_spectral_bias/y"]) < 2e-5


@pytest.mark.parametrize(("inner", "outer"), [("linear", "linear"), ("identity", "none")])
def test_block_with_other_skips(inner, outer, golden):
    config = layer_config(inner_skip=inner, outer_skip=outer, norm="instance_norm")
    block = FourierBlock(
        config, shape=(8, 16), grid="legendre-gauss", resample=True, drop_path_rate=0.0, rngs=nnx.Rngs(0)
    )
    names = {
        "global_conv.weight": "conv.filter.weight",
        "norm.weight": "norm.scale",
        "norm.bias": "norm.shift",
        "mlp.fwd.0": "mlp.expand",
        "mlp.fwd.2": "mlp.contract",
    }
    weights = {}
    for i, (name, shape, is_complex) in enumerate(NETWORKS[f"block_{inner}_{outer}"]["parameters"]):
        ours = name
        for theirs, here in names.items():
            ours = ours.replace(theirs, here)
        w = documented_weight(i, shape, is_complex)
        w = w[:, :, 0, 0] if w.ndim == 4 else w
        weights[ours] = np.stack([w.real, w.imag], -1) if is_complex else w
    set_weights(block, weights, "the rule")
    analysis, _ = transforms(12, 24, "legendre-gauss")
    _, synthesis = transforms(8, 16, "legendre-gauss")
    x = jnp.asarray(documented_input(3, 12, 24))
    y = nnx.jit(lambda block, x: block(x, analysis, synthesis))(block, x)
    assert error(y, golden("torch_harmonics_networks")[f"block_{inner}_{outer}/y"]) < 2e-5


@pytest.mark.parametrize(("nlat", "nlon", "expected"), [(64, 128, 279_232), (128, 256, 541_376)])
def test_registered_networks_have_their_parameter_counts(nlat, nlon, expected):
    config = SFNOConfig(
        nlat=nlat,
        nlon=nlon,
        scale_factor=2,
        embed_dim=32,
        num_layers=4,
        norm="instance_norm",
        residual_prediction=True,
    )
    model = nnx.eval_shape(lambda: SFNO(config, rngs=nnx.Rngs(0)))
    assert parameter_count(model) == expected
    assert config.modes == (nlat // 2, nlat // 2)


def test_arguments_round_trip():
    for name in CASES:
        arguments = NETWORKS[name]["arguments"]
        back = torch_harmonics_arguments(config_from_torch_harmonics(arguments))
        assert {key: back[key] for key in arguments} == {**arguments, "img_size": tuple(arguments["img_size"])}


def test_float64_network_agrees_with_float32():
    case = NETWORKS["odd_internal_longitudes"]
    single = load_case(case["arguments"], case["parameters"])
    x = documented_input(3, *case["arguments"]["img_size"])
    with jax.enable_x64(True):
        config = SFNOConfig.from_dict({**single.config.to_dict(), "param_dtype": "float64"})
        double = SFNO(config, rngs=nnx.Rngs(0))
        state = {
            n: documented_weight(i, s, c).astype(np.complex128 if c else np.float64)
            for i, (n, s, c) in enumerate(case["parameters"])
        }
        load_torch_harmonics(double, state)
        y = evaluate(double, x.astype(np.float64))
        assert y.dtype == np.float64
        with pytest.raises(TypeError, match="astype"):
            double(x)
    assert error(evaluate(single, x), np.asarray(y)) < 1e-5
    assert isinstance(config, OperatorConfig)
    with pytest.raises(ValueError, match="64-bit"):
        SFNO(config, rngs=nnx.Rngs(0))

"""State dicts of torch-harmonics and makani: bijective maps, complete error lists."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from sfno_jax import convert
from sfno_jax.models import SFNO, SFNOConfig
from sfno_jax.models.weights import named_weights

NETWORKS = json.loads((Path(__file__).parent / "golden" / "torch_harmonics_networks.json").read_text())
SMALL = {"nlat": 8, "nlon": 16, "scale_factor": 2, "embed_dim": 4, "num_layers": 2, "in_channels": 2, "out_channels": 3}

TORCH_HARMONICS = [
    {},
    {"bias": True, "norm": "instance_norm", "position_embedding": "spectral", "residual_prediction": True},
    {"norm": "layer_norm", "drop_rate": 0.1, "position_embedding": "learnable latlon"},
    {"use_mlp": False, "position_embedding": "learnable lat"},
]
MAKANI = [
    {},
    {"bias": True, "inner_skip": "linear", "position_embedding": "frequency"},
    {"separable": True, "position_embedding": "direct", "norm": "layer_norm", "encoder_layers": 2},
    {"operator_type": "diagonal", "drop_rate": 0.1, "residual_prediction": False},
    {"filter_type": "non-linear", "complex_activation": "modulus", "bias": True},
    {"filter_type": "non-linear", "operator_type": "l-dependant", "norm": "none"},
]


def make(seed, **options):
    return SFNO(SFNOConfig(**{**SMALL, **options}), rngs=nnx.Rngs(seed))


def same(a, b):
    return all(np.array_equal(named_weights(b)[name], array) for name, array in named_weights(a).items())


@pytest.mark.parametrize("options", TORCH_HARMONICS, ids=str)
def test_torch_harmonics_round_trip(options):
    model, other = make(0, **options), make(1, **options)
    state = convert.to_torch_harmonics(model)
    assert sum(v.size for v in state.values()) > 0
    assert not same(model, other)
    convert.load_torch_harmonics(other, state)
    assert same(model, other)
    again = convert.to_torch_harmonics(other)
    assert again.keys() == state.keys()
    assert all(again[k].dtype == state[k].dtype and np.array_equal(again[k], state[k]) for k in state)


@pytest.mark.parametrize("options", MAKANI, ids=str)
def test_makani_round_trip(options):
    model, other = make(0, variant="makani", **options), make(1, variant="makani", **options)
    state = convert.to_makani(model)
    assert not same(model, other)
    convert.load_makani(other, state)
    assert same(model, other)
    again = convert.to_makani(other)
    assert all(np.array_equal(again[k], state[k]) for k in state)


@pytest.mark.parametrize("name", [n for n in NETWORKS if not n.startswith("block")])
def test_names_and_shapes_are_torch_harmonics(name):
    config = convert.config_from_torch_harmonics(NETWORKS[name]["arguments"])
    state = convert.to_torch_harmonics(SFNO(config, rngs=nnx.Rngs(0)))
    listed = {n: (tuple(shape), is_complex) for n, shape, is_complex in NETWORKS[name]["parameters"]}
    buffers = {"pos_embed.position_embeddings"} - listed.keys()
    ours = {n: (v.shape, np.iscomplexobj(v)) for n, v in state.items() if n not in buffers}
    assert ours == listed


def test_makani_layouts_with_and_without_group_axis_and_as_real_pairs():
    model, other = make(0, variant="makani"), make(1, variant="makani")
    state = convert.to_makani(model)
    name = "blocks.0.filter.filter.weight"
    assert state[name].shape == (1, 4, 4, 4)
    assert state[name].dtype == np.complex64
    # in before out: theirs [0, i, o, l] is ours [o, i, l]
    ours = model.blocks[0].conv.filter.weight.get_value()
    assert state[name][0, 1, 2, 3] == ours[2, 1, 3, 0] + 1j * ours[2, 1, 3, 1]
    for form in (state[name][0], np.stack([state[name].real, state[name].imag], -1)):
        convert.load_makani(other, {**state, name: form})
        assert same(model, other)
    renamed = {f"module.{n}": v for n, v in state.items()} | {"module.trans_down.weights": np.zeros(3)}
    convert.load_makani(other, renamed, rename=lambda n: "" if "trans_down" in n else n.removeprefix("module."))
    assert same(model, other)


def test_errors_list_every_difference():
    model = make(0, bias=True)
    state = convert.to_torch_harmonics(model)
    del state["encoder.0.bias"]
    state["head.weight"] = np.zeros(3, np.float32)
    before = named_weights(model)
    with pytest.raises(ValueError, match=r"missing: encoder\.0\.bias") as error:
        convert.load_torch_harmonics(model, state)
    assert "unexpected: head.weight" in str(error.value)
    state = convert.to_torch_harmonics(model)
    state["encoder.0.weight"] = np.zeros((4, 2, 3, 3), np.float32)
    state["decoder.0.weight"] = np.zeros((3, 4, 1, 1), np.float64)
    with pytest.raises(ValueError, match=r"shape of encoder\.layers\.0\.weight: model \(4, 2\)") as error:
        convert.load_torch_harmonics(model, state)
    assert "dtype of decoder.layers.0.weight: model float32, given float64" in str(error.value)
    assert all(np.array_equal(before[n], w) for n, w in named_weights(model).items())


def test_single_precision_loads_exactly_into_double():
    state = convert.to_torch_harmonics(make(0))
    with jax.enable_x64(True):
        model = make(1, param_dtype="float64")
        convert.load_torch_harmonics(model, state)
        back = convert.to_torch_harmonics(model)
    assert all(np.array_equal(back[name], state[name]) for name in state)
    assert back["blocks.0.global_conv.weight"].dtype == np.complex128


def test_what_the_other_side_lacks_is_refused():
    for options, message in (
        ({"spectral_bias": True}, "spectral_bias=True"),
        ({"real_weights": True}, "real_weights=True"),
        ({"activation": "silu"}, "activation='silu'"),
        ({"norm": "instance_norm_s2"}, "norm='instance_norm_s2'"),
        ({"max_modes": (3, 3)}, r"max_modes=\(3, 3\)"),
        ({"analysis": "exact"}, "analysis='exact'"),
        ({"variant": "makani"}, "variant='makani'"),
    ):
        with pytest.raises(ValueError, match=message):
            convert.to_torch_harmonics(make(0, **options))
    with pytest.raises(ValueError, match="variant='makani'"):
        convert.to_makani(make(0))
    with pytest.raises(ValueError, match=r"unknown arguments \['embed'\]"):
        convert.config_from_torch_harmonics({"embed": 3})
    with pytest.raises(ValueError, match="activation='silu'"):
        convert.config_from_torch_harmonics({"activation_function": "silu"})


def test_files(tmp_path):
    model, other = make(0), make(1)
    state = convert.to_torch_harmonics(model)
    pairs = {k: np.stack([v.real, v.imag], -1) if np.iscomplexobj(v) else v for k, v in state.items()}
    path = tmp_path / "weights.safetensors"
    path.write_bytes(safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in pairs.items()}))
    convert.load_torch_harmonics(other, path)
    assert same(model, other)
    with pytest.raises(FileNotFoundError, match="nothing"):
        convert.load_torch_harmonics(other, tmp_path / "nothing.safetensors")
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "legacy.bin").write_bytes(b"\x80\x02}q")
    for name in ("weights.pt", "legacy.bin"):
        with pytest.raises(ValueError, match=r"torch pickle[\s\S]*safetensors\.torch\.save_file"):
            convert.load_torch_harmonics(other, tmp_path / name)
    (tmp_path / "noise.bin").write_bytes(b"noise, not tensors")
    with pytest.raises(ValueError, match="not a safetensors file"):
        convert.read_state(tmp_path / "noise.bin")

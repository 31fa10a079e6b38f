"""Weights of torch-harmonics and makani networks, to ours and back.

Both directions are one list of rules, (their name, our name, layout), so that a round trip is the
identity bit for bit. Weights travel as numpy arrays or safetensors files; torch pickles can run any
code when opened and are refused.

The torch-harmonics side is that of the example network `SphericalFourierNeuralOperator`, release
0.9, and is tested against it. makani is not on any registry: names and layouts of that side follow
its public source as known, and were not checked against a checkpoint; `rename` bridges differences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from sfno_jax.models.config import SFNOConfig
from sfno_jax.models.embeddings import FixedEmbedding
from sfno_jax.models.filters import SpectralMLP
from sfno_jax.models.layers import PointwiseLinear
from sfno_jax.models.sfno import SFNO
from sfno_jax.models.weights import named_weights, set_weights

__all__ = [
    "config_from_torch_harmonics",
    "load_makani",
    "load_torch_harmonics",
    "read_state",
    "to_makani",
    "to_torch_harmonics",
    "torch_harmonics_arguments",
]

Array = NDArray[Any]
State = Mapping[str, Array] | str | os.PathLike[str]

# their constructor argument -> our option; both directions
_ARGUMENTS = {
    "grid": "grid",
    "grid_internal": "grid_internal",
    "scale_factor": "scale_factor",
    "in_chans": "in_channels",
    "out_chans": "out_channels",
    "embed_dim": "embed_dim",
    "num_layers": "num_layers",
    "activation_function": "activation",
    "use_mlp": "use_mlp",
    "mlp_ratio": "mlp_ratio",
    "drop_rate": "drop_rate",
    "drop_path_rate": "drop_path_rate",
    "normalization_layer": "norm",
    "hard_thresholding_fraction": "hard_thresholding_fraction",
    "residual_prediction": "residual_prediction",
    "pos_embed": "position_embedding",
    "bias": "bias",
}
_GRIDS = {"trapezoidal": "equiangular-trapezoidal"}  # our name -> theirs, where they differ


def config_from_torch_harmonics(arguments: Mapping[str, Any]) -> SFNOConfig:
    """The configuration of a torch-harmonics example network.

    Args:
        arguments: Keyword arguments of ``SphericalFourierNeuralOperator``; missing ones take its
            defaults (128 x 256 equiangular points).

    Raises:
        ValueError: an unknown argument, or a value that this network never had.
    """
    values = dict(arguments)
    nlat, nlon = values.pop("img_size", (128, 256))
    values.pop("encoder_layers", None)  # the network ignores it: its encoder is one linear map
    unknown = sorted(set(values) - set(_ARGUMENTS))
    if unknown:
        raise ValueError(
            f"unknown arguments {unknown} of SphericalFourierNeuralOperator; known: "
            f"{['img_size', 'encoder_layers', *_ARGUMENTS]}"
        )
    options = {_ARGUMENTS[name]: value for name, value in values.items()}
    theirs = {there: here for here, there in _GRIDS.items()}
    for name in ("grid", "grid_internal"):
        if name in options:
            options[name] = theirs.get(options[name], options[name])
    config = SFNOConfig(variant="torch-harmonics", nlat=nlat, nlon=nlon, **options)
    torch_harmonics_arguments(config)
    return config


def torch_harmonics_arguments(config: SFNOConfig) -> dict[str, Any]:
    """Keyword arguments of ``SphericalFourierNeuralOperator`` for a configuration.

    Raises:
        ValueError: naming the options that it does not have.
    """
    plain = SFNOConfig(
        nlat=config.nlat,
        nlon=config.nlon,
        **{ours: getattr(config, ours) for ours in _ARGUMENTS.values()},
    )
    differing = [
        f"{name}={getattr(config, name)!r}"
        for name in plain.to_dict()
        if name != "param_dtype" and getattr(config, name) != getattr(plain, name)
    ]
    for name, allowed in (
        ("norm", ("none", "instance_norm", "layer_norm")),
        ("activation", ("gelu", "relu", "identity")),
    ):
        if getattr(config, name) not in allowed:
            differing.append(f"{name}={getattr(config, name)!r}")
    if differing:
        raise ValueError(f"torch-harmonics' network has no counterpart of {', '.join(differing)}")
    arguments = {theirs: getattr(config, ours) for theirs, ours in _ARGUMENTS.items()}
    for name in ("grid", "grid_internal"):
        arguments[name] = _GRIDS.get(arguments[name], arguments[name])
    return {"img_size": (config.nlat, config.nlon), **arguments}


def load_torch_harmonics(model: SFNO, state: State) -> None:
    """Load the state dict of a torch-harmonics network.

    Args:
        model: Of the same configuration (`config_from_torch_harmonics`), changed in place.
        state: Arrays by name, or a safetensors file.

    Raises:
        ValueError: listing missing and unexpected names and differing shapes; a torch pickle.
    """
    torch_harmonics_arguments(model.config)
    _load(model, list(_torch_harmonics_rules(model)), state, "torch-harmonics", None)


def to_torch_harmonics(model: SFNO) -> dict[str, Array]:
    """A model's weights as torch-harmonics' state dict, as numpy arrays.

    Raises:
        ValueError: the model has options that torch-harmonics' network lacks.
    """
    torch_harmonics_arguments(model.config)
    weights = named_weights(model)
    return {r.theirs: r.layout.export(weights[r.ours]) for r in _torch_harmonics_rules(model)}


def load_makani(model: SFNO, state: State, *, rename: Callable[[str], str] | None = None) -> None:
    """Load the state dict of a makani network (not checked against makani itself, see above).

    Args:
        model: With ``variant="makani"`` and the same options, changed in place.
        state: Arrays by name, or a safetensors file.
        rename: Applied to each of the state's names first, for releases that name things
            differently; names it maps to "" are dropped (tables of transforms, for instance).

    Raises:
        ValueError: listing missing and unexpected names and differing shapes; a torch pickle.
    """
    _load(model, list(_makani_rules(model)), state, "makani", rename)


def to_makani(model: SFNO) -> dict[str, Array]:
    """A model's weights as makani's state dict, as numpy arrays.

    Raises:
        ValueError: not a makani model, or with options that makani lacks.
    """
    weights = named_weights(model)
    return {r.theirs: r.layout.export(weights[r.ours]) for r in _makani_rules(model)}


def read_state(source: State) -> dict[str, Array]:
    """Arrays of a mapping or of a safetensors file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a safetensors file; for a torch pickle with how to convert it.
    """
    if isinstance(source, Mapping):
        return {name: np.asarray(value) for name, value in source.items()}
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"no weights file {path}")
    with open(path, "rb") as file:
        start = file.read(2)
    if start in (b"PK", b"\x80\x02") or path.suffix in (".pt", ".pth", ".ckpt", ".tar", ".pkl"):
        raise ValueError(
            f"{path} is a torch pickle, which can run any code when opened. Convert it once where "
            "you trust it:\n"
            "  import torch, safetensors.torch\n"
            f'  state = torch.load("{path.name}", map_location="cpu", weights_only=True)\n'
            "  state = {k: v.contiguous() for k, v in state.items()}  # state['model_state'] first, "
            "if it is a whole checkpoint\n"
            f'  safetensors.torch.save_file(state, "{path.stem}.safetensors")'
        )
    try:
        return safetensors.numpy.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


# --- layouts: how one array is stored on either side -----------------------------------------------


class _Layout(NamedTuple):
    adopt: Callable[[Array], Array]
    export: Callable[[Array], Array]


def _complex_to_pair(z: Array) -> Array:
    """Complex (...) or real pairs (..., 2) to real pairs."""
    return np.stack([z.real, z.imag], axis=-1) if np.iscomplexobj(z) else z


def _pair_to_complex(pair: Array) -> Array:
    dtype = np.complex128 if pair.dtype == np.float64 else np.complex64
    return np.ascontiguousarray(pair).view(dtype)[..., 0]


def _drop_axes(*axes: int) -> Callable[[Array], Array]:
    """Remove axes of size 1; another shape passes and is reported as it is."""

    def drop(x: Array) -> Array:
        fits = x.ndim > max(axes) and all(x.shape[a] == 1 for a in axes)
        return x.squeeze(axes) if fits else x

    return drop


def _makani_filter(z: Array) -> Array:
    """([1,] in, out, modes...) to (out, in, modes..., 2)."""
    pair = _complex_to_pair(z)
    pair = pair[0] if pair.shape[0] == 1 and pair.ndim >= 5 else pair
    return pair.swapaxes(0, 1)


_SAME = _Layout(lambda x: x, lambda x: x)
_CONV = _Layout(_drop_axes(2, 3), lambda x: x[:, :, None, None])
_BIAS4 = _Layout(_drop_axes(0, 2, 3), lambda x: x[None, :, None, None])
_FIELDS = _Layout(_drop_axes(0), lambda x: x[None])
_COMPLEX = _Layout(_complex_to_pair, _pair_to_complex)
_COMPLEX_T = _Layout(  # (..., in, out) to (..., out, in, 2)
    lambda z: _complex_to_pair(z).swapaxes(-2, -3), lambda p: _pair_to_complex(p).swapaxes(-1, -2)
)
_GROUPED = _Layout(_makani_filter, lambda p: _pair_to_complex(p).swapaxes(0, 1)[None])
_DEPTHWISE = _Layout(lambda z: _drop_axes(0)(_complex_to_pair(z)), lambda p: _pair_to_complex(p)[None])
_THRESHOLD = _Layout(_drop_axes(1, 2), lambda x: x[:, None, None])


class _Rule(NamedTuple):
    theirs: str
    ours: str
    layout: _Layout
    derived: bool = False  # follows from the configuration: a state may leave it out


def _load(
    model: SFNO,
    rules: list[_Rule],
    state: State,
    source: str,
    rename: Callable[[str], str] | None,
) -> None:
    arrays = read_state(state)
    if rename is not None:
        arrays = {new: value for name, value in arrays.items() if (new := rename(name))}
    theirs = {rule.theirs: rule for rule in rules}
    present = [rule for rule in rules if not rule.derived or rule.theirs in arrays]
    problems = [f"missing: {rule.theirs}" for rule in present if rule.theirs not in arrays]
    problems += [f"unexpected: {name}" for name in arrays if name not in theirs]
    if problems:
        raise ValueError(
            f"this {source} state dict does not fit the model's configuration:\n  " + "\n  ".join(sorted(problems))
        )
    adopted = {rule.ours: rule.layout.adopt(arrays[rule.theirs]) for rule in present}
    kept = {rule.ours for rule in rules} - adopted.keys()
    set_weights(model, {**{n: w for n, w in named_weights(model).items() if n in kept}, **adopted}, source)


# --- names -----------------------------------------------------------------------------------------


def _torch_harmonics_rules(model: SFNO) -> Iterator[_Rule]:
    if model.embedding is not None:
        fixed = isinstance(model.embedding, FixedEmbedding)
        yield _Rule("pos_embed.position_embeddings", "embedding.fields", _FIELDS, derived=fixed)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            yield from _linear_rules(f"{name}.{2 * i}", f"{name}.layers.{i}", layer)
    for i, block in enumerate(model.blocks):
        here = f"blocks.{i}"
        yield _Rule(f"{here}.global_conv.weight", f"{here}.conv.filter.weight", _COMPLEX)
        if block.conv.bias is not None:
            yield _Rule(f"{here}.global_conv.bias", f"{here}.conv.bias", _BIAS4)
        if block.norm is not None:
            yield from _norm_rules(f"{here}.norm", f"{here}.norm")
        yield from _mlp_rules(block.mlp, here)
    if model.big_skip is not None:
        yield from _linear_rules("residual_projection", "big_skip", model.big_skip)


def _makani_rules(model: SFNO) -> Iterator[_Rule]:
    config = model.config
    if config.variant != "makani" or config.spectral_bias or config.real_weights:
        raise ValueError(
            f"variant={config.variant!r}, spectral_bias={config.spectral_bias}, real_weights={config.real_weights}: "
            "makani's network is variant='makani' without spectral bias and with complex weights"
        )
    if config.position_embedding == "direct":
        yield _Rule("pos_embed", "embedding.fields", _FIELDS)
    elif config.position_embedding == "frequency":
        yield _Rule("pos_embed_freqs", "embedding.coefficients", _DEPTHWISE)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, layer in enumerate(stack.layers):
            yield from _linear_rules(f"{name}.fwd.{2 * i}", f"{name}.layers.{i}", layer)
    for i, block in enumerate(model.blocks):
        here = f"blocks.{i}"
        yield from _makani_filter_rules(block.conv, f"{here}.filter.filter", f"{here}.conv")
        if block.norm is not None:
            yield from _norm_rules(f"{here}.norm0", f"{here}.norm")
            yield from _norm_rules(f"{here}.norm1", f"{here}.norm_after")
        for skip in ("inner_skip", "outer_skip"):
            layer = getattr(block, skip)
            if layer is not None:
                yield from _linear_rules(f"{here}.{skip}", f"{here}.{skip}", layer)
        yield from _mlp_rules(block.mlp, here)
    if model.big_skip is not None:
        yield from _linear_rules("residual_transform", "big_skip", model.big_skip)


def _makani_filter_rules(conv: Any, theirs: str, ours: str) -> Iterator[_Rule]:
    if conv.bias is not None:
        yield _Rule(f"{theirs}.bias", f"{ours}.bias", _BIAS4)
    if not isinstance(conv.filter, SpectralMLP):
        layout = _DEPTHWISE if conv.filter.separable else _GROUPED
        yield _Rule(f"{theirs}.weight", f"{ours}.filter.weight", layout)
        return
    for k in range(len(conv.filter.hidden)):
        yield _Rule(f"{theirs}.w.{k}", f"{ours}.filter.hidden.{k}", _COMPLEX_T)
        if conv.filter.biases is not None:
            yield _Rule(f"{theirs}.b.{k}", f"{ours}.filter.biases.{k}", _COMPLEX)
        if conv.filter.thresholds is not None:
            name = f"{theirs}.activations.{k}.bias"
            yield _Rule(name, f"{ours}.filter.thresholds.{k}", _THRESHOLD)
    yield _Rule(f"{theirs}.wout", f"{ours}.filter.output", _COMPLEX_T)


def _linear_rules(theirs: str, ours: str, layer: PointwiseLinear) -> Iterator[_Rule]:
    yield _Rule(f"{theirs}.weight", f"{ours}.weight", _CONV)
    if layer.bias is not None:
        yield _Rule(f"{theirs}.bias", f"{ours}.bias", _SAME)


def _norm_rules(theirs: str, ours: str) -> Iterator[_Rule]:
    yield _Rule(f"{theirs}.weight", f"{ours}.scale", _SAME)
    yield _Rule(f"{theirs}.bias", f"{ours}.shift", _SAME)


def _mlp_rules(mlp: Any, block: str) -> Iterator[_Rule]:
    """Linear maps are numbers 0 and 2 of their sequence, or 0 and 3 with dropout between."""
    if mlp is not None:
        second = 2 if mlp.dropout is None else 3
        yield from _linear_rules(f"{block}.mlp.fwd.0", f"{block}.mlp.expand", mlp.expand)
        yield from _linear_rules(f"{block}.mlp.fwd.{second}", f"{block}.mlp.contract", mlp.contract)

"""Saved models: a folder with weights (safetensors), config.json and a model card.

The weights' file name carries a digest of its content and config.json names it. config.json is
renamed into place last, so that a save killed at any instant leaves the previous model whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from flax import nnx

from sfno_jax._files import write_atomically
from sfno_jax.models.config import FNOConfig, SFNOConfig
from sfno_jax.models.layers import parameter_count
from sfno_jax.models.operator import FourierNeuralOperator
from sfno_jax.models.sfno import FNO, SFNO, build_model
from sfno_jax.models.statistics import ChannelStatistics
from sfno_jax.models.weights import named_weights, set_weights

__all__ = ["from_pretrained", "save_pretrained"]

FORMAT = "sfno-jax"
FORMAT_VERSION = 1
_CONFIGS: dict[str, type[SFNOConfig] | type[FNOConfig]] = {"SFNO": SFNOConfig, "FNO": FNOConfig}


def save_pretrained(
    model: FourierNeuralOperator,
    folder: str | Path,
    *,
    statistics: Mapping[str, Any] | ChannelStatistics | None = None,
    card: str | None = None,
) -> Path:
    """Write a model.

    Args:
        model: An `SFNO` or `FNO`.
        folder: Made if it does not exist; a model saved there before is replaced.
        statistics: Normalisation and channel names, see `ChannelStatistics.from_dict`; None for
            those the model carries.
        card: Text of README.md; None for one that states architecture, channels and use.

    Returns:
        The folder.

    Raises:
        TypeError: not an `SFNO` or `FNO`.
        ValueError: bad statistics.
    """
    if not isinstance(model, (SFNO, FNO)):
        raise TypeError(f"save_pretrained takes an SFNO or FNO, got {type(model).__name__}")
    config = model.config
    if statistics is None:
        statistics = model.statistics
    elif not isinstance(statistics, ChannelStatistics):
        statistics = ChannelStatistics.from_dict(statistics, config.in_channels, config.out_channels)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = type(model).__name__
    weights = safetensors.numpy.save(named_weights(model), {"format": FORMAT, "architecture": architecture})
    digest = hashlib.sha256(weights).hexdigest()
    name = f"model-{digest[:12]}.safetensors"
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "architecture": architecture,
        "config": config.to_dict(),
        "statistics": None if statistics is None else statistics.to_dict(),
        "weights": {"file": name, "sha256": digest},
    }
    write_atomically(folder / name, weights)
    card = _card(model, statistics) if card is None else card
    write_atomically(folder / "README.md", card.encode())
    write_atomically(folder / "config.json", json.dumps(description, indent=2).encode())
    for old in folder.glob("model-*.safetensors"):
        if old.name != name:
            old.unlink()
    return folder


def from_pretrained(source: str | Path, *, revision: str | None = None) -> SFNO | FNO:
    """Read a model that `save_pretrained` wrote.

    Args:
        source: A folder, or the id ``org/name`` of a repository on the Hugging Face hub, which is
            fetched only if no such folder exists.
        revision: Branch, tag or commit of the repository.

    Returns:
        The model, in evaluation mode, with its statistics.

    Raises:
        FileNotFoundError: neither a saved model's folder nor a hub id.
        ValueError: another format or architecture, damaged weights, or weights that do not fit.
    """
    path = Path(source)
    if not path.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        return _read(_fetch(str(source), "config.json", revision), str(source), revision)
    if revision is not None:
        raise ValueError(f"revision={revision!r} is for hub ids; {source} is a folder")
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"no saved model at {source}: expected a folder with config.json, as save_pretrained "
            "writes it, or the id 'org/name' of a repository on the Hugging Face hub"
        )
    return _read(path / "config.json", None, None)


def _fetch(repository: str, name: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, name, revision=revision))


def _read(config_file: Path, repository: str | None, revision: str | None) -> SFNO | FNO:
    try:
        description = json.loads(config_file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{config_file} is not JSON: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(
            f"{config_file} does not describe an {FORMAT} model (its 'format' is not {FORMAT!r}); "
            "weights of torch-harmonics or makani are read by sfno_jax.convert"
        )
    if description.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{config_file} has format_version {description.get('format_version')!r}; this "
            f"release reads {FORMAT_VERSION}"
        )
    architecture = description.get("architecture")
    if architecture not in _CONFIGS:
        raise ValueError(f"unknown architecture {architecture!r}; known: {sorted(_CONFIGS)}")
    missing = [key for key in ("config", "weights") if key not in description]
    if missing:
        raise ValueError(f"{config_file} lacks {missing}")
    config = _CONFIGS[architecture].from_dict(description["config"])
    name, digest = description["weights"]["file"], description["weights"]["sha256"]
    if Path(name).name != name:
        raise ValueError(f"{config_file} names weights outside its folder: {name!r}")
    weights_file = config_file.parent / name if repository is None else _fetch(repository, name, revision)
    if not weights_file.is_file():
        raise FileNotFoundError(f"weights {weights_file} named by {config_file} are missing")
    content = weights_file.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{weights_file} is damaged: its SHA-256 is not that in {config_file}")
    model = build_model(config, nnx.Rngs(0))
    set_weights(model, safetensors.numpy.load(content), str(weights_file))
    if description.get("statistics") is not None:
        model.statistics = ChannelStatistics.from_dict(
            description["statistics"], config.in_channels, config.out_channels
        )
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _card(model: SFNO | FNO, statistics: ChannelStatistics | None) -> str:
    config, architecture = model.config, type(model).__name__
    titles = {
        "SFNO": "Spherical Fourier Neural Operator (Bonev et al., ICML 2023)",
        "FNO": "Fourier Neural Operator (Li et al., ICLR 2021) on the latitude-longitude grid",
    }
    lines = [
        "---",
        "library_name: sfno-jax",
        f"tags: [{architecture.lower()}, jax, weather, sphere]",
        "---",
        f"# {architecture}",
        "",
        f"{titles[architecture]}, {parameter_count(model):,} parameters (real numbers), variant "
        f"{config.variant}: {config.in_channels} fields in, {config.out_channels} out, on "
        f"{config.nlat} x {config.nlon} points, {config.modes[0]} x {config.modes[1]} modes.",
        "",
        "```python",
        "from sfno_jax import from_pretrained",
        "",
        'model = from_pretrained("FOLDER")',
        "forecast = model.predict(fields)  # numpy, physical units, "
        f"(..., {config.in_channels}, {config.nlat}, {config.nlon})",
        "```",
        "",
        "## Channels",
        "",
    ]
    if statistics is None:
        lines.append("No statistics were saved: input and output are as the network sees them.")
    else:
        lines += ["| | channel | mean | std |", "| --- | --- | --- | --- |"]
        for kind, names, mean, std in (
            ("in", statistics.channels, statistics.mean, statistics.std),
            ("out", statistics.output_channels, statistics.output_mean, statistics.output_std),
        ):
            for i, (m, s) in enumerate(zip(mean, std, strict=True)):
                lines.append(f"| {kind} | {names[i] if names else i} | {m:.6g} | {s:.6g} |")
    lines += ["", "## Options", "", "```json", config.to_json(), "```", ""]
    return "\n".join(lines)

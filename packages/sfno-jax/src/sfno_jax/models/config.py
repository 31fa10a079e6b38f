"""What a spherical (or plain) Fourier neural operator is made of: frozen, validated, JSON-serialisable.

Two public versions of the SFNO differ in many small choices; `variant` selects one's structure and defaults:

- ``"torch-harmonics"``: the example network of torch-harmonics 0.9 (Bonev et al. 2023, the shallow-water experiments).
- ``"makani"``: the lineage of the ERA5 experiments (NVIDIA makani).

An option left at ``None`` takes its variant's default when the configuration is made, so a configuration always shows
real values. An option that would have no effect beside the others is an error, never ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sfno_jax.grids import canonical_grid, max_lmax

__all__ = ["FNOConfig", "SFNOConfig"]

VARIANTS = ("torch-harmonics", "makani")
ACTIVATIONS = ("gelu", "relu", "silu", "identity")
COMPLEX_ACTIVATIONS = ("real", "cartesian", "modulus", "halfplane")
SKIPS = ("none", "identity", "linear")
DTYPES = ("float32", "float64")

# variant -> defaults of the fields that are None (spec table, both columns)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "torch-harmonics": {
        "scale_factor": 3,
        "embed_dim": 256,
        "encoder_layers": 0,
        "norm": "none",
        "outer_skip": "identity",
        "residual_prediction": False,
    },
    "makani": {
        "scale_factor": 8,
        "embed_dim": 32,
        "encoder_layers": 1,
        "norm": "instance_norm",
        "outer_skip": "linear",
        "residual_prediction": True,
    },
}


@dataclass(frozen=True, kw_only=True)
class OperatorConfig:
    """What `SFNOConfig` and `FNOConfig` share.

    Attributes:
        nlat: Latitudes of input and output.
        nlon: Longitudes of input and output, even.
        in_channels: Input fields.
        out_channels: Output fields.
        variant: ``"torch-harmonics"`` or ``"makani"``.
        scale_factor: Ratio of the data grid to the internal grid: ``(nlat-1)//s + 1`` (torch-harmonics) or
            ``nlat//s`` (makani) latitudes by ``nlon//s`` longitudes. Default 3 or 8.
        embed_dim: Width of the blocks. Default 256 or 32.
        num_layers: Number of blocks.
        encoder_layers: Hidden layers of the encoder and of the decoder; 0 is one linear map. Default 0 or 1.
        encoder_ratio: Width of the encoder's hidden layers over `embed_dim` (with `encoder_layers` > 0; default 1).
        decoder_ratio: The same for the decoder.
        use_mlp: Blocks have a pointwise MLP after the filter.
        mlp_ratio: Hidden width over `embed_dim`, of the pointwise MLP and of the spectral one.
        activation: ``"gelu"`` (exact, with erf), ``"relu"``, ``"silu"`` or ``"identity"``.
        filter_type: ``"linear"`` (one weight matrix per mode or degree) or ``"non-linear"`` (a complex MLP on the
            coefficients).
        operator_type: How a filter's weights depend on the mode (l, m); see `SFNOConfig` and `FNOConfig`.
        separable: Linear filter without channel mixing (depthwise).
        complex_activation: Of the non-linear filter: ``"real"`` (default), ``"cartesian"``, ``"modulus"``,
            ``"halfplane"``.
        spectral_layers: Hidden layers of the non-linear filter (default 3).
        bias: torch-harmonics: biases in encoder, decoder and filters. makani: biases in filters.
        norm: ``"none"``, ``"instance_norm"``, ``"layer_norm"`` (torch-harmonics: over the grid; makani: over channels).
        drop_rate: Rate at which the MLP drops whole channels.
        pos_drop_rate: Rate at which single values of the embedded input are dropped. Default `drop_rate` or 0.
        drop_path_rate: Stochastic depth: the last block's branch is dropped at this rate per sample, the first one's
            never.
        inner_skip: Skip around the filter alone: ``"none"``, ``"identity"``, ``"linear"``.
        outer_skip: Skip around the block. Default ``"identity"`` or ``"linear"``.
        residual_prediction: The network predicts a change added to its input (makani: big skip, through a linear map).
        hard_thresholding_fraction: Fraction of the internal grid's modes that are kept, in (0, 1].
        max_modes: (lmax, mmax) in place of that rule.
        param_dtype: ``"float32"`` or ``"float64"`` (needs JAX's 64-bit mode).

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """

    nlat: int
    nlon: int
    in_channels: int = 3
    out_channels: int = 3
    variant: str = "torch-harmonics"
    scale_factor: int = None  # type: ignore[assignment]  # None: the variant's default, resolved below
    embed_dim: int = None  # type: ignore[assignment]
    num_layers: int = 4
    encoder_layers: int = None  # type: ignore[assignment]
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    use_mlp: bool = True
    mlp_ratio: float = 2.0
    activation: str = "gelu"
    filter_type: str = "linear"
    operator_type: str = None  # type: ignore[assignment]
    separable: bool = False
    complex_activation: str | None = None
    spectral_layers: int | None = None
    bias: bool = False
    norm: str = None  # type: ignore[assignment]
    drop_rate: float = 0.0
    pos_drop_rate: float = None  # type: ignore[assignment]
    drop_path_rate: float = 0.0
    inner_skip: str = "none"
    outer_skip: str = None  # type: ignore[assignment]
    residual_prediction: bool = None  # type: ignore[assignment]
    hard_thresholding_fraction: float = 1.0
    max_modes: tuple[int, int] | None = None
    param_dtype: str = "float32"

    def __post_init__(self) -> None:
        _choice("variant", self.variant, VARIANTS)
        self._fill(
            {**_DEFAULTS[self.variant], "pos_drop_rate": self.drop_rate if self.variant == "torch-harmonics" else 0.0}
        )
        for name in ("in_channels", "out_channels", "scale_factor", "embed_dim", "num_layers"):
            _integer(name, getattr(self, name), 1)
        _integer("nlat", self.nlat, 2)
        if _integer("nlon", self.nlon, 4) % 2:
            raise ValueError(f"nlon={self.nlon} is odd; expected an even number of longitudes, e.g. {self.nlon + 1}")
        for name, allowed in (
            ("activation", ACTIVATIONS),
            ("filter_type", ("linear", "non-linear")),
            ("inner_skip", SKIPS),
            ("outer_skip", SKIPS),
            ("param_dtype", DTYPES),
        ):
            _choice(name, getattr(self, name), allowed)
        for name in ("use_mlp", "separable", "bias", "residual_prediction"):
            _boolean(name, getattr(self, name))
        for name in ("drop_rate", "pos_drop_rate", "drop_path_rate"):
            _number(name, getattr(self, name), 0.0, 1.0, upper_open=True)
        self._check_encoder()
        self._check_filter()
        if not self.use_mlp and (self.drop_rate > 0.0 and self.pos_drop_rate == 0.0):
            raise ValueError(f"drop_rate={self.drop_rate} has no effect with use_mlp=False; leave it at 0")
        if not (self.use_mlp or self.filter_type == "non-linear") and self.mlp_ratio != 2.0:
            raise ValueError(
                f"mlp_ratio={self.mlp_ratio} has no effect with use_mlp=False and a linear filter; leave it out"
            )
        _number("mlp_ratio", self.mlp_ratio, 1.0 / self.embed_dim, math.inf)
        self._check_modes()

    def _fill(self, defaults: Mapping[str, Any]) -> None:
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_encoder(self) -> None:
        _integer("encoder_layers", self.encoder_layers, 0)
        if self.encoder_layers:
            self._fill({"encoder_ratio": 1.0, "decoder_ratio": 1.0})
            _number("encoder_ratio", self.encoder_ratio, 1.0 / self.embed_dim, math.inf)
            _number("decoder_ratio", self.decoder_ratio, 1.0 / self.embed_dim, math.inf)
            return
        for name in ("encoder_ratio", "decoder_ratio"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect with encoder_layers=0; leave it out or set "
                    f"encoder_layers=1"
                )

    def _check_filter(self) -> None:
        if self.filter_type == "non-linear":
            self._fill({"complex_activation": "real", "spectral_layers": 3})
            _choice("complex_activation", self.complex_activation, COMPLEX_ACTIVATIONS)
            _integer("spectral_layers", self.spectral_layers, 1)
            if self.separable:
                raise ValueError(
                    "separable=True is for linear filters; the spectral MLP of filter_type='non-linear' mixes channels"
                )
            return
        for name in ("complex_activation", "spectral_layers"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with filter_type='linear'; leave it out or "
                    f"choose 'non-linear'"
                )
        if self.separable and self.operator_type == "block-diagonal":
            raise ValueError(
                "separable=True is not defined for operator_type='block-diagonal'; use 'driscoll-healy' or 'diagonal'"
            )

    def _check_modes(self) -> None:
        _number("hard_thresholding_fraction", self.hard_thresholding_fraction, 0.0, 1.0, lower_open=True)
        if self.max_modes is not None:
            if self.hard_thresholding_fraction != 1.0:
                raise ValueError(
                    f"give hard_thresholding_fraction={self.hard_thresholding_fraction} or "
                    f"max_modes={self.max_modes}, not both"
                )
            try:
                degrees, orders = self.max_modes
            except (TypeError, ValueError):
                raise ValueError(f"max_modes={self.max_modes!r}; expected a pair (lmax, mmax)") from None
            object.__setattr__(
                self, "max_modes", (_integer("max_modes[0]", degrees, 1), _integer("max_modes[1]", orders, 1))
            )
        h, w = self.internal_shape
        if min(h, *self.modes) < 2:
            raise ValueError(
                f"scale_factor={self.scale_factor} with "
                f"hard_thresholding_fraction={self.hard_thresholding_fraction} leaves {self.modes} modes on "
                f"an internal grid of {h} x {w}; a network needs at least 2 degrees and 2 orders"
            )

    @property
    def internal_shape(self) -> tuple[int, int]:
        """(nlat, nlon) of the grid between the first and the last block."""
        if self.variant == "makani":
            return self.nlat // self.scale_factor, self.nlon // self.scale_factor
        return (self.nlat - 1) // self.scale_factor + 1, self.nlon // self.scale_factor

    @property
    def modes(self) -> tuple[int, int]:
        """(lmax, mmax) kept by the filters."""
        raise NotImplementedError

    @property
    def encoder_width(self) -> int:
        """Channels of the encoder's hidden layers."""
        return int(self.embed_dim * (self.encoder_ratio or 1.0))

    @property
    def decoder_width(self) -> int:
        """Channels of the decoder's hidden layers."""
        return int(self.embed_dim * (self.decoder_ratio or 1.0))

    @property
    def mlp_width(self) -> int:
        """Hidden channels of the pointwise and of the spectral MLP."""
        return int(self.embed_dim * self.mlp_ratio)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as `from_dict` takes them."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration of a mapping.

        Args:
            values: Option names and values, for instance from JSON or TOML.

        Raises:
            ValueError: an unknown option (with the nearest known one), a missing one, or a bad value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                raise ValueError(
                    f"unknown option {name!r} for {cls.__name__}"
                    + (f"; did you mean {near[0]!r}?" if near else f"; known: {sorted(known)}")
                )
        missing = [name for name in ("nlat", "nlon") if name not in values]
        if missing:
            raise ValueError(f"{cls.__name__} needs {missing}")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """`from_dict` of JSON text."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object of options for {cls.__name__}, got {type(values).__name__}")
        return cls.from_dict(values)


@dataclass(frozen=True, kw_only=True)
class SFNOConfig(OperatorConfig):
    """A Spherical Fourier Neural Operator (Bonev et al., ICML 2023).

    `operator_type` of a linear filter is ``"driscoll-healy"`` (default: one matrix per degree l, convolution by
    zonal kernels), ``"diagonal"`` (per mode l, m) or ``"block-diagonal"`` (per degree, mixing orders); of a
    non-linear one ``"diagonal"`` (default: one MLP shared by all modes) or ``"l-dependant"`` (one per degree, makani's
    spelling). With torch-harmonics' variant, scale_factor 1 and unlike kinds of grid, a block's residual stays where it
    is though its filter's output moves to other latitudes; choose `grid_internal` = `grid` there.

    Attributes:
        grid: Latitudes of input and output, one of `sfno_jax.grids.GRIDS`.
        grid_internal: Latitudes between the first and the last block.
        position_embedding: Added after the encoder. torch-harmonics: ``"none"``, ``"sequence"``, ``"spectral"``,
            ``"learnable lat"``, ``"learnable latlon"``; makani: ``"none"``, ``"direct"``, ``"frequency"``.
        real_weights: Real instead of complex weights per degree. Only these commute with all rotations; complex ones,
            as in both public versions, with rotations about the poles.
        spectral_bias: Each filter adds (integral of the input channel over the sphere) x (a learned field's
            coefficients) before it mixes channels (torch-harmonics' library SpectralConvS2).
        analysis: ``"quadrature"`` as both public versions do, aliased on equiangular grids beyond half their degrees,
            or ``"exact"``.
        norm: Beside the shared ones ``"instance_norm_s2"``: mean and variance weighted by area.
        (others): see `OperatorConfig`.
    """

    grid: str = "equiangular"
    grid_internal: str = "legendre-gauss"
    position_embedding: str = "none"
    real_weights: bool = False
    spectral_bias: bool = False
    analysis: str = "quadrature"

    def __post_init__(self) -> None:
        for name in ("grid", "grid_internal"):
            object.__setattr__(self, name, canonical_grid(getattr(self, name)))
        _choice("analysis", self.analysis, ("quadrature", "exact"))
        _boolean("spectral_bias", self.spectral_bias)
        _boolean("real_weights", self.real_weights)
        super().__post_init__()
        _choice("norm", self.norm, ("none", "instance_norm", "layer_norm", "instance_norm_s2"))
        embeddings = {
            "torch-harmonics": ("none", "sequence", "spectral", "learnable lat", "learnable latlon"),
            "makani": ("none", "direct", "frequency"),
        }
        _choice(f"position_embedding (variant={self.variant!r})", self.position_embedding, embeddings[self.variant])

    def _check_filter(self) -> None:
        self._fill({"operator_type": "driscoll-healy" if self.filter_type == "linear" else "diagonal"})
        allowed = (
            ("driscoll-healy", "diagonal", "block-diagonal")
            if self.filter_type == "linear"
            else ("diagonal", "l-dependant")
        )
        _choice(f"operator_type (filter_type={self.filter_type!r})", self.operator_type, allowed)
        if self.real_weights and (self.filter_type, self.operator_type) != ("linear", "driscoll-healy"):
            raise ValueError(
                f"real_weights=True is for the linear driscoll-healy filter, not for filter_type={self.filter_type!r}, "
                f"operator_type={self.operator_type!r}"
            )
        super()._check_filter()

    def _check_modes(self) -> None:
        super()._check_modes()
        degrees, orders = self.modes
        h, w = self.internal_shape
        if orders > w // 2 + 1:
            raise ValueError(
                f"{orders} orders do not fit on nlon={w} internal longitudes; the largest is {w // 2 + 1} (see "
                f"max_modes, scale_factor)"
            )
        if self.analysis == "exact" or self.max_modes is not None:
            for grid, nlat in ((self.grid, self.nlat), (self.grid_internal, h)):
                if degrees > max_lmax(grid, nlat):
                    raise ValueError(
                        f"{degrees} degrees are beyond what a {grid!r} grid of {nlat} latitudes resolves; the "
                        f"largest is {max_lmax(grid, nlat)}: "
                        "set max_modes or hard_thresholding_fraction, or analysis='quadrature'"
                    )

    @property
    def modes(self) -> tuple[int, int]:
        """(lmax, mmax) of all transforms: triangular, so both are equal."""
        if self.max_modes is not None:
            return (min(self.max_modes),) * 2
        h, w = self.internal_shape
        if self.variant == "makani":
            fraction = self.hard_thresholding_fraction
            return (min(int(h * fraction), int((w // 2 + 1) * fraction)),) * 2
        return (int(min(h, w // 2) * self.hard_thresholding_fraction),) * 2


@dataclass(frozen=True, kw_only=True)
class FNOConfig(OperatorConfig):
    """A Fourier Neural Operator (Li et al., ICLR 2021) on the latitude-longitude rectangle.

    Block for block the SFNO's baseline. `operator_type` is ``"diagonal"`` (default: a matrix per wave number pair or,
    for a non-linear filter, one MLP shared by all) or, for a non-linear one, ``"l-dependant"`` (an MLP per row).

    Attributes:
        position_embedding: torch-harmonics: ``"none"``, ``"sequence"``, ``"learnable lat"``, ``"learnable latlon"``;
            makani: ``"none"``, ``"direct"``.
        (others): see `OperatorConfig`.
    """

    position_embedding: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _choice("norm", self.norm, ("none", "instance_norm", "layer_norm"))
        embeddings = {
            "torch-harmonics": ("none", "sequence", "learnable lat", "learnable latlon"),
            "makani": ("none", "direct"),
        }
        _choice(f"position_embedding (variant={self.variant!r})", self.position_embedding, embeddings[self.variant])

    def _check_filter(self) -> None:
        self._fill({"operator_type": "diagonal"})
        allowed = ("diagonal",) if self.filter_type == "linear" else ("diagonal", "l-dependant")
        _choice(f"operator_type (filter_type={self.filter_type!r})", self.operator_type, allowed)
        super()._check_filter()

    def _check_modes(self) -> None:
        super()._check_modes()
        (degrees, orders), (h, w) = self.modes, self.internal_shape
        if degrees > h or orders > w // 2 + 1:
            raise ValueError(
                f"modes {self.modes} do not fit on an internal grid of {h} x {w}; "
                f"the largest are ({h}, {w // 2 + 1}) (see max_modes)"
            )

    @property
    def modes(self) -> tuple[int, int]:
        """(rows, columns) of the kept half-plane of wave numbers."""
        if self.max_modes is not None:
            return self.max_modes
        h, w = self.internal_shape
        fraction = self.hard_thresholding_fraction
        if self.variant == "makani":
            return int(h * fraction), int((w // 2 + 1) * fraction)
        return (int(min(h, w // 2) * fraction),) * 2


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}; expected one of {list(allowed)}")


def _integer(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}; expected an integer of at least {least}")
    return value


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected true or false")


def _number(
    name: str, value: object, low: float, high: float, *, lower_open: bool = False, upper_open: bool = False
) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not good or (lower_open and value == low) or (upper_open and value == high):
        left, right = "(" if lower_open else "[", ")" if upper_open else "]"
        raise ValueError(f"{name}={value!r}; expected a number in {left}{low:g}, {high:g}{right}")

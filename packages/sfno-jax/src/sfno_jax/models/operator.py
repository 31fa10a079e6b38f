"""The network that SFNO and FNO share, and its block. Only their transforms differ.

    encoder -> + position embedding -> blocks -> decoder -> + big skip

    block(x):  u = F x ;  v = F^-1 filter(u) ;  r = x, or F^-1 u where the block changes the grid
               v -> norm -> [+ inner skip(r)] -> [activation] -> MLP -> [norm] -> drop path
               -> + outer skip(r)

F is a spherical harmonic transform or an FFT. The first block analyses on the data grid, the last
one synthesises on it, and what lies between lives on the internal grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from sfno_jax._dtypes import real_array
from sfno_jax.models import embeddings, layers
from sfno_jax.models.config import FNOConfig, OperatorConfig, SFNOConfig
from sfno_jax.models.filters import LinearFilter, SpectralMLP, as_complex
from sfno_jax.models.layers import ComplexParam, PointwiseLinear, PointwiseMLP, PointwiseStack
from sfno_jax.models.packed_conv import packed_convolution, packed_plans
from sfno_jax.models.sphere import Analysis, Synthesis
from sfno_jax.models.statistics import ChannelStatistics

__all__ = ["FourierBlock", "FourierNeuralOperator", "SpectralConv"]


class SpectralConv(nnx.Module):
    """Filter of a block, between its transforms.

    Args:
        config: The network's options.
        gain: Of the initial filter weights.
        rngs: Random streams.
    """

    def __init__(self, config: OperatorConfig, *, gain: float, rngs: nnx.Rngs) -> None:
        dtype, channels = np.dtype(config.param_dtype), config.embed_dim
        self.filter: LinearFilter | SpectralMLP
        if config.filter_type == "linear":
            self.filter = LinearFilter(
                channels,
                config.modes,
                operator_type=config.operator_type,
                separable=config.separable,
                gain=gain,
                boost_mean=config.variant == "makani",
                real=isinstance(config, SFNOConfig) and config.real_weights,
                dtype=dtype,
                rngs=rngs,
            )
        else:
            assert config.spectral_layers is not None
            assert config.complex_activation is not None
            self.filter = SpectralMLP(
                channels,
                config.modes,
                operator_type=config.operator_type,
                width=config.mlp_width,
                hidden_layers=config.spectral_layers,
                activation=config.complex_activation,
                bias=config.bias,
                gain=gain,
                dtype=dtype,
                rngs=rngs,
            )
        self.bias = nnx.Param(jnp.zeros((channels,), dtype)) if config.bias else None
        self.spectral_bias = (
            ComplexParam(jnp.zeros((channels, *config.modes, 2), dtype))
            if isinstance(config, SFNOConfig) and config.spectral_bias
            else None
        )

    def __call__(
        self, x: jax.Array, analysis: Analysis, synthesis: Synthesis, *, resample: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """Filter fields.

        Args:
            x: Fields (batch, channels, nlat, nlon) on the grid of `analysis`.
            analysis: To coefficients.
            synthesis: Back to fields, perhaps on another grid.
            resample: The residual is x carried through both transforms, not x itself.

        Returns:
            Filtered fields and residual, both on the grid of `synthesis`.
        """
        plans = packed_plans(x, self.filter, analysis, synthesis) if self.spectral_bias is None else None
        if plans is not None:
            assert isinstance(self.filter, LinearFilter)
            y, residual = packed_convolution(x, self.filter, plans, resample=resample)
            return self._with_bias(y), residual
        u = analysis(x)
        v = u
        if self.spectral_bias is not None:
            integral = math.sqrt(4.0 * math.pi) * u[..., 0, 0].real  # of x over the sphere
            v = u + integral[..., None, None] * as_complex(self.spectral_bias[...])
        v = self.filter(v)
        if resample:
            y, residual = jnp.split(synthesis(jnp.concatenate([v, u])), 2)
        else:
            y, residual = synthesis(v), x
        return self._with_bias(y), residual

    def _with_bias(self, y: jax.Array) -> jax.Array:
        return y if self.bias is None else y + self.bias[...][:, None, None]


class FourierBlock(nnx.Module):
    """One block of the network; see the module's equations.

    Args:
        config: The network's options.
        shape: (nlat, nlon) of the block's output.
        grid: Its latitudes (for the area-weighted norm).
        resample: The block changes the grid, so its residual goes through the transforms.
        drop_path_rate: Rate of its stochastic depth.
        rngs: Random streams.
    """

    def __init__(
        self,
        config: OperatorConfig,
        *,
        shape: tuple[int, int],
        grid: str,
        resample: bool,
        drop_path_rate: float,
        rngs: nnx.Rngs,
    ) -> None:
        dtype, channels = np.dtype(config.param_dtype), config.embed_dim
        makani = config.variant == "makani"
        gain = 2.0 if makani or config.activation != "identity" else 1.0
        if not makani and config.inner_skip != "none":
            gain /= 2.0
        self.conv = SpectralConv(config, gain=gain, rngs=rngs)
        self.inner_skip = self._skip(config.inner_skip, config, gain, rngs)
        # torch-harmonics halves this gain by testing the wrong skip; here the outer one counts.
        halved = config.outer_skip != "none" if makani else config.outer_skip == "linear"
        gain = 0.5 if halved else 1.0
        self.outer_skip = self._skip(config.outer_skip, config, gain, rngs)
        self.mlp = (
            PointwiseMLP(
                channels,
                config.mlp_width,
                activation=config.activation,
                output_bias=makani,
                drop_rate=config.drop_rate,
                gain=gain,
                dtype=dtype,
                rngs=rngs,
            )
            if config.use_mlp
            else None
        )
        norm = (config.norm, config.variant, channels, grid, *shape, dtype)
        self.norm = layers.make_norm(*norm)
        self.norm_after = layers.make_norm(*norm) if makani else None
        self.drop_path = layers.drop_path(drop_path_rate, rngs)
        self.skips = (config.inner_skip, config.outer_skip)
        self.activation = config.activation if makani else "identity"
        self.resample = resample

    @staticmethod
    def _skip(kind: str, config: OperatorConfig, gain: float, rngs: nnx.Rngs) -> PointwiseLinear | None:
        if kind != "linear":
            return None
        channels = config.embed_dim
        return PointwiseLinear(
            channels,
            channels,
            std=math.sqrt(gain / channels),
            bias=config.variant == "torch-harmonics",
            dtype=np.dtype(config.param_dtype),
            rngs=rngs,
        )

    def __call__(self, x: jax.Array, analysis: Analysis, synthesis: Synthesis) -> jax.Array:
        """Map (batch, channels, nlat, nlon) from the grid of `analysis` to that of `synthesis`."""
        y, residual = self.conv(x, analysis, synthesis, resample=self.resample)
        inner, outer = self.skips
        if self.norm is not None:
            y = self.norm(y)
        if inner != "none":
            y = y + (residual if self.inner_skip is None else self.inner_skip(residual))
        y = layers.activation_function(self.activation)(y)
        skip = None
        if outer != "none":
            skip = residual if self.outer_skip is None else self.outer_skip(residual)
        if self.mlp is not None and self.norm_after is None and self.drop_path is None:
            return self.mlp(y, skip)
        if self.mlp is not None:
            y = self.mlp(y)
        if self.norm_after is not None:
            y = self.norm_after(y)
        if self.drop_path is not None:
            y = self.drop_path(y)
        return y if skip is None else y + skip


class FourierNeuralOperator(nnx.Module):
    """What `SFNO` and `FNO` share.

    Attributes:
        config: The options it was made from.
        statistics: Normalisation and names of its channels, if known.
    """

    config: OperatorConfig
    statistics: ChannelStatistics | None

    def __init__(
        self,
        config: OperatorConfig,
        *,
        outer: tuple[Analysis, Synthesis],
        inner: tuple[Analysis, Synthesis],
        grids: tuple[str, str],
        rngs: nnx.Rngs,
    ) -> None:
        """Make the layers.

        Args:
            config: The network's options.
            outer: Analysis and synthesis on the data grid.
            inner: Analysis and synthesis on the internal grid.
            grids: Latitudes of the data grid and of the internal grid.
            rngs: Random streams ``params`` and, with dropout, ``dropout``.
        """
        dtype = np.dtype(config.param_dtype)
        if dtype == np.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ValueError(
                "param_dtype='float64' needs JAX's 64-bit mode: `with jax.enable_x64(True):` or "
                "jax.config.update('jax_enable_x64', True), or choose param_dtype='float32'"
            )
        self.config = config
        self.statistics: ChannelStatistics | None = None
        self.analyses = nnx.data((outer[0], inner[0]))
        self.syntheses = nnx.data((outer[1], inner[1]))
        makani = config.variant == "makani"
        stack: dict[str, Any] = {"activation": config.activation, "dtype": dtype, "rngs": rngs}
        self.encoder = PointwiseStack(
            config.in_channels,
            config.embed_dim,
            hidden_layers=config.encoder_layers,
            width=config.encoder_width,
            bias=config.bias and not makani,
            **stack,
        )
        self.embedding = _make_embedding(config, grids[0], dtype, rngs)
        self.dropout = layers.point_dropout(config.pos_drop_rate, rngs)
        rates = np.linspace(0.0, config.drop_path_rate, config.num_layers)
        shapes = ((config.nlat, config.nlon), config.internal_shape)
        blocks = []
        for i in range(config.num_layers):
            source, target = self._side(i, "source"), self._side(i, "target")
            moved = shapes[source] != shapes[target]
            block = FourierBlock(
                config,
                shape=shapes[target],
                grid=grids[target],
                # torch-harmonics leaves the residual alone where only the kind of grid changes.
                resample=moved or (makani and grids[source] != grids[target]),
                drop_path_rate=float(rates[i]),
                rngs=rngs,
            )
            blocks.append(block)
        self.blocks = nnx.List(blocks)
        self.decoder = PointwiseStack(
            config.embed_dim,
            config.out_channels,
            hidden_layers=config.encoder_layers,
            width=config.decoder_width,
            bias=config.bias and not makani,
            gain=0.5 if makani and config.residual_prediction else 1.0,
            **stack,
        )
        self.big_skip = _make_big_skip(config, dtype, rngs)

    def _side(self, block: int, end: str) -> int:
        """0 where a block's source or target is the data grid, 1 where it is the internal one."""
        at = 0 if end == "source" else self.config.num_layers - 1
        return 0 if block == at else 1

    def __call__(self, x: Any) -> jax.Array:
        """Evaluate the network.

        Args:
            x: Fields, real, shape (batch, in_channels, nlat, nlon) or (in_channels, nlat, nlon).

        Returns:
            Fields of shape (batch, out_channels, nlat, nlon), or without batch as given.

        Raises:
            ValueError: another shape than the configuration's.
            TypeError: another dtype than the weights'.
        """
        x = self._checked(x)
        batched = x if x.ndim == 4 else x[None]
        y = self.encoder(batched)
        if isinstance(self.embedding, embeddings.FrequencyEmbedding):
            y = self.embedding(y, self.syntheses[0])
        elif self.embedding is not None:
            y = self.embedding(y)
        if self.dropout is not None:
            y = self.dropout(y)
        for i, block in enumerate(self.blocks):
            analysis = self.analyses[self._side(i, "source")]
            y = block(y, analysis, self.syntheses[self._side(i, "target")])
        y = self.decoder(y)
        if self.config.residual_prediction:
            y = y + (batched if self.big_skip is None else self.big_skip(batched))
        return y if x.ndim == 4 else y[0]

    def predict(self, x: Any) -> Any:
        """Evaluate the network on fields in physical units, without dropout.

        Args:
            x: Array of shape (batch, in_channels, nlat, nlon) or (in_channels, nlat, nlon), or a
                mapping from the names in `statistics.channels` to fields (batch, nlat, nlon) or
                (nlat, nlon). Normalised by `statistics`.

        Returns:
            Numpy array of the input's precision, or a mapping from the names of the output
            channels, in physical units.

        Raises:
            ValueError: no statistics, channel names that are missing or unknown, a wrong shape.
        """
        if self.statistics is None:
            raise ValueError(
                "this model has no statistics: set model.statistics = "
                "ChannelStatistics.from_dict({'mean': ..., 'std': ...}, in_channels, "
                "out_channels), or call the model itself on normalised fields"
            )
        if isinstance(x, Mapping):
            return self._predict_named(x)
        x = np.asarray(x)
        normalised = self.statistics.normalise(x).astype(self.config.param_dtype)
        y = _evaluate(nnx.view(self, deterministic=True, raise_if_not_found=False), self._checked(normalised))
        dtype = x.dtype if x.dtype.kind == "f" else np.dtype(self.config.param_dtype)
        return self.statistics.denormalise(np.asarray(y)).astype(dtype)

    def _predict_named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        assert self.statistics is not None
        names, outputs = self.statistics.channels, self.statistics.output_channels
        missing, unknown = set(names) - set(fields), set(fields) - set(names)
        if not names or not outputs or missing or unknown:
            raise ValueError(
                f"fields by name: missing {sorted(missing)}, unknown {sorted(unknown)}; "
                f"the model's channels are {list(names)} -> {list(outputs)}"
            )
        y = self.predict(np.stack([np.asarray(fields[name]) for name in names], axis=-3))
        return {name: y[..., i, :, :] for i, name in enumerate(outputs)}

    def save_pretrained(self, folder: str | Path, **options: Any) -> Path:
        """Write the model; see `sfno_jax.models.pretrained.save_pretrained`."""
        from sfno_jax.models.pretrained import save_pretrained

        return save_pretrained(self, folder, **options)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None) -> Self:
        """Read a model of this class; see `sfno_jax.models.pretrained.from_pretrained`.

        Raises:
            ValueError: the saved model has another architecture.
        """
        from sfno_jax.models.pretrained import from_pretrained

        model = from_pretrained(source, revision=revision)
        if not isinstance(model, cls):
            raise ValueError(f"{source} holds an {type(model).__name__}, not an {cls.__name__}")
        return model

    def _checked(self, fields: Any) -> jax.Array:
        config = self.config
        want = (config.in_channels, config.nlat, config.nlon)
        x: jax.Array = real_array("x", fields)
        if x.ndim not in (3, 4) or x.shape[-3:] != want:
            raise ValueError(
                f"x has shape {x.shape}; expected (batch, in_channels={want[0]}, nlat={want[1]}, "
                f"nlon={want[2]}) or the same without batch"
            )
        if x.dtype != np.dtype(config.param_dtype):
            raise TypeError(
                f"x has dtype {x.dtype} but the weights are {config.param_dtype}; convert it with "
                f"x.astype('{config.param_dtype}') or build the model with param_dtype='{x.dtype}'"
            )
        return x


@nnx.jit
def _evaluate(model: FourierNeuralOperator, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x)
    return y


def _make_embedding(
    config: OperatorConfig, grid: str, dtype: Any, rngs: nnx.Rngs
) -> embeddings.FixedEmbedding | embeddings.LearnedEmbedding | embeddings.FrequencyEmbedding | None:
    assert isinstance(config, (SFNOConfig, FNOConfig))
    channels, nlat, nlon = config.embed_dim, config.nlat, config.nlon
    kind = config.position_embedding
    if kind == "sequence":
        return embeddings.FixedEmbedding(embeddings.sequence(channels, nlat, nlon), dtype)
    if kind == "spectral":
        return embeddings.FixedEmbedding(embeddings.spectral(channels, nlat, nlon, grid), dtype)
    if kind == "frequency":
        return embeddings.FrequencyEmbedding(channels, config.modes, std=0.02, dtype=dtype, rngs=rngs)
    if kind == "none":
        return None
    width = 1 if kind == "learnable lat" else nlon
    std = 0.02 if kind == "direct" else 0.0
    return embeddings.LearnedEmbedding((channels, nlat, width), std=std, dtype=dtype, rngs=rngs)


def _make_big_skip(config: OperatorConfig, dtype: Any, rngs: nnx.Rngs) -> PointwiseLinear | None:
    """Linear in makani; in torch-harmonics the identity unless the channels differ."""
    makani = config.variant == "makani"
    if not config.residual_prediction or (not makani and config.in_channels == config.out_channels):
        return None
    variance = 0.5 if makani else 1.0 / 3.0  # of torch's default, uniform on +-1/sqrt(in)
    return PointwiseLinear(
        config.in_channels,
        config.out_channels,
        std=math.sqrt(variance / config.in_channels),
        bias=False,
        dtype=dtype,
        rngs=rngs,
    )

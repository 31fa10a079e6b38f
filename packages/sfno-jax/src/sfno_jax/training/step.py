"""One optimiser step, and several of them in one compiled dispatch.

The loss of a window ``x_0 … x_n`` is that of the autoregressive prediction ``y_0 = x_0 + noise``,
``y_{k+1} = stabilise(y_k, model(y_k))`` against ``x_1 … x_n``, averaged over all k or taken at the
last. For n > 1 the states are recomputed in the backward pass (``jax.checkpoint``), so that memory
grows with one step and not with n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from sfno_jax.losses import SphereLoss
from sfno_jax.training.config import OptimizerConfig
from sfno_jax.training.stabiliser import Stabiliser

__all__ = ["ModelParts", "TrainState", "make_optimizer", "train_steps", "window_loss"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "random", "constants"],
    meta_fields=["graph"],
)
@dataclass(frozen=True)
class ModelParts:
    """A model taken apart: what is trained, its random streams, its tables, its structure.

    Attributes:
        graph: Structure (static).
        params: Trained weights.
        random: Random streams of dropout.
        constants: Everything else, such as transform tables; a jit argument, never a constant.
    """

    graph: Any
    params: Any
    random: Any
    constants: Any

    @classmethod
    def split(cls, model: nnx.Module, *, training: bool) -> ModelParts:
        """Take a model apart, in training or evaluation mode."""
        if training:
            model.train()  # type: ignore[no-untyped-call]
        else:
            model.eval()  # type: ignore[no-untyped-call]
        graph, *states = nnx.split(model, nnx.Param, nnx.RngState, ...)
        return cls(graph, *states)

    def merge(self) -> Any:
        """Put the model together again, from copies that belong to the present trace."""
        return nnx.merge(self.graph, self.params, self.random, self.constants, copy=True)

    def __call__(self, x: Array) -> tuple[Array, Any]:
        """Apply the model: output and advanced random streams."""
        model = self.merge()
        return model(x), nnx.state(model, nnx.RngState)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "random", "optimizer", "average"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState:
    """What changes during training: weights, random streams, optimiser, averaged weights."""

    params: Any
    random: Any
    optimizer: Any
    average: Any


@lru_cache(maxsize=16)  # one object per configuration, so that equal runs share a compilation
def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam or AdamW at learning rate 1; the step multiplies its updates by the actual rate.

    So the rate may follow a clock, a plateau or a schedule without another compilation.
    """
    moments = {"b1": config.beta1, "b2": config.beta2, "eps": config.eps}
    if config.name == "adamw":
        transform = optax.adamw(1.0, weight_decay=config.weight_decay, **moments)
    else:
        transform = optax.adam(1.0, **moments)
    if config.clip_norm > 0:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), transform)
    return transform


def window_loss(
    parts: ModelParts,
    loss: SphereLoss,
    stabiliser: Stabiliser | None,
    window: Array,
    *,
    score: str = "all",
    remat: bool = True,
) -> tuple[Array, Any]:
    """Loss of the autoregressive prediction along a window.

    Args:
        parts: The model.
        loss: Loss of one predicted state.
        stabiliser: Constraint on each output.
        window: ``(n_future + 1, batch, channel, nlat, nlon)``.
        score: ``"all"`` or ``"last"``.
        remat: Recompute states in the backward pass.

    Returns:
        Scalar loss and the advanced random streams.
    """
    n_future = window.shape[0] - 1

    def advance(carry: tuple[Array, Any], target: Array) -> tuple[tuple[Array, Any], Array]:
        state, random = carry
        prediction, random = ModelParts(parts.graph, parts.params, random, parts.constants)(state)
        if stabiliser is not None:
            prediction = stabiliser(state, prediction)
        return (prediction, random), loss(prediction, target)

    if n_future == 1:
        (_, random), value = advance((window[0], parts.random), window[1])
        return value, random
    step = jax.checkpoint(advance) if remat else advance
    (_, random), values = jax.lax.scan(step, (window[0], parts.random), window[1:])
    return (values[-1] if score == "last" else jnp.mean(values)), random


@partial(
    jax.jit,
    static_argnames=("optimizer", "graph", "score", "remat", "noise", "ema_decay", "mesh"),
    donate_argnames=("state",),
)
def train_steps(
    state: TrainState,
    constants: Any,
    loss: SphereLoss,
    stabiliser: Stabiliser | None,
    windows: Array,
    rates: Array,
    first_step: Array,
    key: Array,
    *,
    optimizer: optax.GradientTransformation,
    graph: Any,
    score: str,
    remat: bool,
    noise: float,
    ema_decay: float,
    mesh: Mesh | None = None,
) -> tuple[TrainState, Array, Array]:
    """Several optimiser steps in one ``lax.scan``.

    Args:
        state: Donated.
        constants: The model's tables.
        loss: Loss of one state.
        stabiliser: Constraint on the model's output, or None.
        windows: ``(step, n_future + 1, batch, channel, nlat, nlon)``.
        rates: Learning rate of each step ``(step,)``.
        first_step: Global number of the first step; noise depends on it and ``key`` alone.
        key: Random key of the run.
        optimizer: From :func:`make_optimizer`.
        graph: Structure of the model.
        score: See :func:`window_loss`.
        remat: See :func:`window_loss`.
        noise: Standard deviation added to the first state.
        ema_decay: 0 for no average.
        mesh: Devices over whose axis ``"batch"`` each batch is split, or None for one device.

    Returns:
        New state, losses ``(step,)``, gradient norms before clipping ``(step,)``.
    """
    fixed = (constants, loss, stabiliser)

    def differentiate(params: Any, random: Any, fixed: Any, window: Array) -> Any:
        constants, loss, stabiliser = fixed

        def objective(params: Any) -> tuple[Array, Any]:
            parts = ModelParts(graph, params, random, constants)
            return window_loss(parts, loss, stabiliser, window, score=score, remat=remat)

        return jax.value_and_grad(objective, has_aux=True)(params)

    if mesh is not None:
        differentiate = _over_devices(differentiate, mesh)

    def one(state: TrainState, item: tuple[Array, Array, Array]) -> tuple[TrainState, Any]:
        window, rate, number = item
        if noise > 0:
            drawn = jax.random.normal(jax.random.fold_in(key, number), window.shape[1:], window.dtype)
            window = window.at[0].add(noise * drawn)

        (value, random), gradient = differentiate(state.params, state.random, fixed, window)
        updates, moments = optimizer.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda p, u: p + rate.astype(p.dtype) * u, state.params, updates)
        average = state.average
        if ema_decay > 0:
            decay = jnp.minimum(ema_decay, (1.0 + number) / (10.0 + number))
            average = jax.tree.map(lambda a, p: a + (1 - decay).astype(p.dtype) * (p - a), average, params)
        new = TrainState(params, random, moments, average)
        return new, (value, optax.tree.norm(gradient))

    numbers = first_step + jnp.arange(windows.shape[0], dtype=jnp.int32)
    state, (losses, norms) = jax.lax.scan(one, state, (windows, rates, numbers))
    return state, losses, norms


def _over_devices(differentiate: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Give each device its part of the batch and average loss and gradient.

    Noise was drawn before for the whole batch; dropout, if any, repeats its mask on each device.
    """

    def local(params: Any, random: Any, fixed: Any, window: Array) -> Any:
        (value, random), gradient = differentiate(params, random, fixed, window)
        value, gradient = jax.lax.pmean((value, gradient), "batch")  # type: ignore[no-untyped-call]
        return (value, random), gradient

    whole = PartitionSpec()  # type: ignore[no-untyped-call]
    part = PartitionSpec(None, "batch")  # type: ignore[no-untyped-call]
    # custom kernels know nothing of varying axes, so the check is off and the average written out
    return jax.shard_map(local, mesh=mesh, in_specs=(whole, whole, whole, part), out_specs=whole, check_vma=False)

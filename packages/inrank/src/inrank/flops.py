r"""Floating-point operations and parameters of dense and low-rank weights, by arithmetic, without allocating anything.

A multiplication of a token by an m x n weight takes 2 m n operations, by factors of rank k 2 k (m + n): their quotient

.. math:: \rho = k (m + n) / (m n)

is also that of the parameters, and is 1 at the *break-even rank* m n / (m + n) — 0.8 d for the MLP of a transformer,
d / 2 for a square weight. A backward pass takes a product for the input's gradient and one for the weight's, so that
training is three times the forward pass. With W_0 kept and frozen (plain InRank) the forward pass is 1 + rho of the
dense one, and training (2 + 3 rho) / 3: no weight gradient of W_0. Biases, norms and softmax are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inrank.language.gpt import GPT2_SHAPES, GPTConfig

__all__ = [
    "BLOCK_MATRICES",
    "MLP_MATRICES",
    "LayerCost",
    "ModelCost",
    "break_even_rank",
    "gpt_cost",
    "gpt_shape",
    "layer_cost",
    "measured_flops",
]

BLOCK_MATRICES: tuple[str, ...] = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
"""The weights of a transformer block, by the names of `inrank.language.gpt`."""

MLP_MATRICES: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")
"""Those that the official release makes low rank."""


@dataclass(frozen=True)
class LayerCost:
    """One weight, dense or low rank.

    Attributes:
        shape: (out, in).
        rank: k, or None for a dense weight.
        keeps_dense: Whether W_0 is kept beside the factors.
        trained: Numbers in weights that are trained.
        frozen: Numbers in W_0, where it is kept.
        forward: Operations for one token.
        training: Forward and backward operations for one token.
    """

    shape: tuple[int, int]
    rank: int | None
    keeps_dense: bool
    trained: int
    frozen: int
    forward: int
    training: int

    @property
    def training_ratio(self) -> float:
        """Training operations in parts of the dense weight's."""
        return self.training / (6 * self.shape[0] * self.shape[1])


@dataclass(frozen=True)
class ModelCost:
    """A GPT, dense or with low-rank matrices.

    Attributes:
        parameters: Trained numbers; the head's weight is the token embedding's and counted once.
        frozen: Numbers of kept W_0.
        blocks: Forward operations for one token in the blocks' weights.
        head: In the tied head.
        attention: In the products of queries with keys and of weights with values, mean over a context, causal.
        training: Forward and backward operations for one token: weights, head and attention.
        weights_training: The same without the attention products: what the paper's time figures correspond to.
    """

    parameters: int
    frozen: int
    blocks: int
    head: int
    attention: int
    training: int
    weights_training: int


def break_even_rank(m: int, n: int) -> float:
    """Rank m n / (m + n) from which factors cost as much as the dense weight.

    Raises:
        ValueError: A size below 1.
    """
    _positive(m=m, n=n)
    return m * n / (m + n)


def layer_cost(m: int, n: int, rank: int | None = None, *, keeps_dense: bool = False) -> LayerCost:
    """Parameters and operations of an m x n weight.

    Args:
        m: Rows (out).
        n: Columns (in).
        rank: Directions that are computed, buffer included; None: dense.
        keeps_dense: Plain InRank, with W_0 beside the factors.

    Raises:
        ValueError: A size below 1, a rank outside 0..min(m, n), or `keeps_dense` without a rank.
    """
    _positive(m=m, n=n)
    dense = m * n
    if rank is None:
        if keeps_dense:
            raise ValueError("keeps_dense is True without a rank; a dense weight has no factors beside it")
        return LayerCost((m, n), None, False, dense, 0, 2 * dense, 6 * dense)
    if not 0 <= rank <= min(m, n):
        raise ValueError(f"rank is {rank}; a {m} x {n} weight has ranks 0..{min(m, n)}")
    factors = rank * (m + n)
    kept = dense if keeps_dense else 0
    return LayerCost((m, n), rank, keeps_dense, factors, kept, 2 * (factors + kept), 6 * factors + 4 * kept)


def gpt_shape(name: str) -> GPTConfig:
    """The released shape ``small``, ``medium``, ``large`` or ``xl``, with or without ``gpt2-`` before it.

    Raises:
        ValueError: Another name.
    """
    short = name.lower().removeprefix("gpt2").lstrip("-_") or "small"
    if short not in GPT2_SHAPES:
        raise ValueError(f"no GPT-2 shape {name!r}; known: {', '.join(f'gpt2-{known}' for known in GPT2_SHAPES)}")
    return GPT2_SHAPES[short]


def gpt_cost(
    config: GPTConfig,
    rank: int | None = None,
    *,
    matrices: Sequence[str] = MLP_MATRICES,
    keeps_dense: bool = False,
    tokens: int | None = None,
) -> ModelCost:
    """Parameters and operations of a GPT whose named matrices have a rank.

    Args:
        config: Its shape.
        rank: Directions that are computed; None: dense.
        matrices: Which weights of each block have that rank.
        keeps_dense: Whether their W_0 is kept.
        tokens: Length of a sequence, which the attention products depend on; default: the context.

    Raises:
        ValueError: An unknown matrix, or a rank that does not fit.
    """
    d, length = config.width, config.context if tokens is None else tokens
    _positive(tokens=length)
    shapes = {"attn.qkv": (3 * d, d), "attn.proj": (d, d), "mlp.fc1": (4 * d, d), "mlp.fc2": (d, 4 * d)}
    for name in matrices:
        if name not in shapes:
            raise ValueError(f"no matrix {name!r} in a block; known: {', '.join(shapes)}")
    chosen = matrices if rank is not None else ()
    layers = [
        layer_cost(m, n, rank, keeps_dense=keeps_dense) if name in chosen else layer_cost(m, n)
        for name, (m, n) in shapes.items()
    ]
    biases_and_norms = sum(m for m, _ in shapes.values()) + 4 * d
    blocks = config.layers * sum(layer.forward for layer in layers)
    head = 2 * config.vocabulary * d
    attention = config.layers * 2 * d * (length + 1)  # q k^T and the mean over values: 4 d for each of (length + 1) / 2
    weights = config.layers * sum(layer.training for layer in layers) + 3 * head
    return ModelCost(
        parameters=(config.vocabulary + config.context + 2) * d
        + config.layers * (sum(layer.trained for layer in layers) + biases_and_norms),
        frozen=config.layers * sum(layer.frozen for layer in layers),
        blocks=blocks,
        head=head,
        attention=attention,
        training=weights + 3 * attention,
        weights_training=weights,
    )


def measured_flops(step: Callable[[], Any]) -> int:
    """Operations of what a function calls, counted by torch as it runs (`torch.utils.flop_counter`).

    Args:
        step: Such as a forward and backward pass.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def _positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")

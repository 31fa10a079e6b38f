"""GPT-2 (Radford et al. 2019) in plain torch, with the names and the initialization that the paper trains with.

A block is x + attention(norm1 x), then x + mlp(norm2 x); the head shares its weight with the token embedding. The
linear layers are called ``attn.qkv``, ``attn.proj``, ``mlp.fc1`` and ``mlp.fc2``, so that ``inrank.wrap`` finds them
by name.

Initialization: all weights from N(0, 0.02^2), those that end a residual branch (``proj`` and ``fc2``) from
N(0, (0.02 / sqrt(2 layers))^2), biases 0. Optionally attention is scaled by 1 / (layer + 1) too, as the authors' runs
have it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "GPT2_SHAPES", "Cache", "GPTConfig", "parameter_count"]

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each block, each of shape (batch, heads, tokens, width / heads)."""


@dataclass(frozen=True)
class GPTConfig:
    """Shape of a GPT.

    Attributes:
        vocabulary: Number of tokens.
        context: Most tokens it sees at once.
        layers: Number of blocks.
        heads: Attention heads, a divisor of the width.
        width: Size of the residual stream; the mlp is four times as wide.
        dropout: On embeddings, attention and residual branches.
        scale_by_layer: Attention also divided by layer + 1.
        init_std: Standard deviation of the initial weights; GPT-2's 0.02 suits a width of about 768, and
            0.02 sqrt(768 / width) others.
    """

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0
    scale_by_layer: bool = False
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width {self.width} and {self.heads} heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 < self.init_std < math.inf:
            raise ValueError(f"init_std must be positive and finite, got {self.init_std}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


GPT2_SHAPES = {
    "small": GPTConfig(layers=12, heads=12, width=768),
    "medium": GPTConfig(layers=24, heads=16, width=1024),
    "large": GPTConfig(layers=36, heads=20, width=1280),
    "xl": GPTConfig(layers=48, heads=25, width=1600),
}
"""The released sizes of GPT-2: 124.4, 354.8, 774.0 and 1557.6 million parameters."""


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.scale = 1.0 / math.sqrt(config.width // config.heads)
        if config.scale_by_layer:
            self.scale /= layer + 1
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(batch, tokens, width), after the `past` of earlier tokens -> the same shape, and keys and values."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        # Without a past all tokens look back only; with one, tokens come one by one and may look at everything.
        y = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=past is None, scale=self.scale
        )
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width)), (k, v)


class MLP(nn.Module):
    """Two linear layers with a GELU (its tanh form, as in GPT-2) between them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 4 * config.width)
        self.fc2 = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> (batch, tokens, width)."""
        y: Tensor = self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))
        return y


class Block(nn.Module):
    """Attention and mlp, each on the normed stream and added to it."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config, layer)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(batch, tokens, width) -> the same shape, and the block's keys and values."""
        y, present = self.attn(self.norm1(x), past)
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.norm2(x))), present


class GPT(nn.Module):
    """A GPT-2-like language model.

    Args:
        config: Its shape.
        generator: Of the initial weights; torch's global one when left out.
    """

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        if self.token_embedding.weight.device.type != "meta":
            self._initialize(generator)

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator | None) -> None:
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                std = self.config.init_std
                if name.endswith(("attn.proj", "mlp.fc2")):
                    std /= math.sqrt(2 * self.config.layers)
                module.weight.normal_(0.0, std, generator=generator)
            if isinstance(module, nn.Linear):
                module.bias.zero_()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits of the next token, or its loss.

        Args:
            tokens: (batch, tokens), int64.
            targets: The tokens that follow, of the same shape.

        Returns:
            Logits of shape (batch, tokens, vocabulary); with targets their mean cross-entropy [nats], a scalar.

        Raises:
            ValueError: There are more tokens than the context.
        """
        logits, _ = self.extend(tokens)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def extend(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits of tokens that follow those already in a cache, and the cache with them.

        Args:
            tokens: (batch, tokens); a single token when there is a cache.
            cache: What the last call returned.

        Raises:
            ValueError: There would be more tokens than the context, or several after a cache.
        """
        past = cache[0][0].shape[2] if cache else 0
        end = past + tokens.shape[1]
        if end > self.config.context:
            raise ValueError(
                f"tokens must be at most {self.config.context} (the context), got {end}: cut the front off"
            )
        if past and tokens.shape[1] != 1:
            raise ValueError(f"tokens after a cache must come one by one, got {tokens.shape[1]}")
        positions = torch.arange(past, end, device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        present: Cache = []
        for index, block in enumerate(self.blocks):
            x, pair = block(x, cache[index] if cache else None)
            present.append(pair)
        return functional.linear(self.norm(x), self.token_embedding.weight), present


def parameter_count(model: nn.Module) -> int:
    """Numbers that a model stores as weights: parameters, trained or not, and a kept W_0; shared ones once."""
    stored = {id(parameter): parameter.numel() for parameter in model.parameters()}
    stored |= {id(buffer): buffer.numel() for name, buffer in model.named_buffers() if name.endswith("weight0")}
    return sum(stored.values())

"""Three small networks for 16 x 16 digits: a multilayer perceptron, a convolutional network, a vision transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from inrank.experiments.digits import SIZE

__all__ = ["NETWORKS", "VisionTransformer", "make_network"]


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels, two blocks with attention (Dosovitskiy et al. 2021), mean over patches.

    Args:
        width: Of the residual stream.
        blocks: Number of them.
    """

    def __init__(self, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn((SIZE // 4) ** 2, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 16, 16) -> logits (batch, 10)."""
        x = self.patches(images).flatten(2).mT + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (SIZE // 4) ** 2, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": _mlp, "cnn": _cnn, "vit": VisionTransformer}
"""By name."""


def make_network(name: str, *, seed: int = 0) -> nn.Module:
    """A new network with torch's default initialization; torch's global generator is left as it was.

    Args:
        name: One of `NETWORKS`.
        seed: Of the weights.

    Raises:
        ValueError: Another name.
    """
    if name not in NETWORKS:
        raise ValueError(f"no network {name!r}; known: {', '.join(NETWORKS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()

"""Handwriting-like digits drawn from 5 x 7 glyphs: no download, any number of them."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["SIZE", "glyph_digits", "read_digits"]

SIZE = 16
"""Pixels of a side."""

_GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def glyph_digits(count: int, *, noise: float = 0.15, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Digits that are turned, sheared, scaled, shifted and noisy.

    Args:
        count: How many.
        noise: Deviation of Gaussian noise; ink is 1, paper 0.
        seed: Of everything.

    Returns:
        Images (count, 1, 16, 16), with mean 0 and deviation 1 over all, and labels (count,), int64.

    Raises:
        ValueError: A count below 1, or noise below 0.
    """
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    if not (noise >= 0 and math.isfinite(noise)):
        raise ValueError(f"noise is {noise}; it must be 0 or more")
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    turn, shear, scale = uniform(-0.25, 0.25), uniform(-0.3, 0.3), uniform(0.85, 1.25)
    across, down = uniform(-0.3, 0.3), uniform(-0.25, 0.25)
    cos, sin = turn.cos() * scale, turn.sin() * scale
    rows = (torch.stack([cos * 1.6, cos * shear - sin, across], 1), torch.stack([sin, cos + sin * shear, down], 1))
    grid = functional.affine_grid(torch.stack(rows, 1), [count, 1, SIZE, SIZE], align_corners=False)
    bitmaps = torch.tensor([[[float(dot) for dot in row] for row in glyph.split()] for glyph in _GLYPHS])[:, None]
    bitmaps = functional.pad(bitmaps, (1, 1, 1, 1))
    images = functional.grid_sample(bitmaps[labels], grid, align_corners=False)
    images = images + noise * torch.randn(images.shape, generator=generator)
    return (images - images.mean()) / images.std(), labels


def read_digits(path: str | Path, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Digits of a file, in random order.

    Args:
        path: A npz file with images ``x`` (count, height, width), grey, and labels ``y`` (count,) in 0..9.
        seed: Of the order.

    Returns:
        As `glyph_digits`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = file["x"], file["y"]
    except (KeyError, zipfile.BadZipFile, EOFError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a npz file with arrays x and y: {error}") from error
    if x.ndim != 3 or y.shape != x.shape[:1] or len(y) < 2 or int(y.min()) < 0 or int(y.max()) > 9:
        raise ValueError(
            f"{path} has x {x.shape} and y {y.shape}; expected images (count, height, width) and labels 0..9"
        )
    order = np.random.default_rng(seed).permutation(len(y))
    images = torch.from_numpy(x[order].astype(np.float32))[:, None]
    images = functional.interpolate(images, (SIZE, SIZE), mode="bilinear", antialias=True)
    return (images - images.mean()) / images.std(), torch.from_numpy(y[order].astype(np.int64))

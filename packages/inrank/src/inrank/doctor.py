"""What is installed and what works: facts about this machine, and known answers recomputed."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from inrank.config import InRankConfig
from inrank.criteria import explained_variance_ratio
from inrank.layers import InRankLinear
from inrank.null_model import null_rank
from inrank.spectrum import product_singular_values

__all__ = ["Check", "facts", "self_check"]

_OPTIONAL = {
    "matplotlib": "figures: pip install 'inrank[plots]'",
    "transformers": "Hugging Face models: pip install 'inrank[transformers]'",
    "tokenizers": "byte-pair encodings: pip install 'inrank[transformers]'",
    "accelerate": "several devices: pip install 'inrank[transformers]'",
    "galore_torch": "the GaLore baseline: pip install galore-torch",
}


@dataclass(frozen=True)
class Check:
    """A known answer recomputed.

    Attributes:
        name: What was computed.
        error: Distance from the answer.
        tolerance: Largest that passes.
    """

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return self.error <= self.tolerance


def facts() -> dict[str, Any]:
    """Versions, devices and options, by name."""
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found: dict[str, Any] = {
        "inrank": _version("inrank") or "from source, not installed",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "devices": ", ".join(["cpu", *devices]),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    for module, use in _OPTIONAL.items():
        found[module] = (_version(module.replace("_", "-")) or "yes") if find_spec(module) else f"missing ({use})"
    return found


def self_check() -> list[Check]:
    """Recompute a few known answers; takes a second."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(1, 60, 5, generator=generator, dtype=torch.float64)
    v = torch.randn(1, 5, 40, generator=generator, dtype=torch.float64)
    dense = torch.linalg.svdvals(u @ v)
    spectrum = (product_singular_values(u, v) - dense).abs().max() / dense.max()
    # four equal values among eight, the first two of which are kept: the variance falls from 8/7 to 6/7
    ratio = explained_variance_ratio(torch.tensor([2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64), 2)
    layer = InRankLinear(32, 48, config=InRankConfig(mode="full", rank=2, buffer=4), dtype=torch.float64)
    with torch.no_grad():
        layer.u.normal_(generator=generator)
    x = torch.randn(7, 32, generator=generator, dtype=torch.float64)
    before = layer(x)
    layer.resize(6)
    return [
        Check("singular values of a product without the product", float(spectrum), 1e-12),
        Check("explained ratio of a known spectrum", abs(float(ratio) - 0.25), 1e-12),
        Check("growth leaves the function unchanged", float((layer(x) - before).abs().max().detach()), 0.0),
        Check(
            "null rank of the official rule, 3072 x 768 (255 published as 254)",
            abs(null_rank(3072, 768).rank - 255),
            5.0,
        ),
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

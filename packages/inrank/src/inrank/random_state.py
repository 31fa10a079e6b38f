"""States of the generators that a training loop draws from, as one safetensors blob a process."""

from __future__ import annotations

import json
import random

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from inrank.distributed import process_count

__all__ = ["gather_random_states", "pack_random_state", "unpack_random_state"]


def pack_random_state() -> bytes:
    """States of torch's generators (of the CPU and, where it is in use, the current GPU), numpy's and Python's."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - others' draws
    tensors = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        tensors["cuda"] = torch.cuda.get_rng_state()
    rest = {
        "python": [version, gauss],
        "numpy": [kind, int(position), int(has_gauss), float(cached)],
    }
    return safetensors.torch.save(tensors, metadata={"rest": json.dumps(rest)})


def unpack_random_state(blob: bytes) -> None:
    """Put this process's generators where `pack_random_state` found them."""
    tensors = safetensors.torch.load(blob)
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    rest = json.loads(header["__metadata__"]["rest"])
    torch.set_rng_state(tensors["torch"])
    version, gauss = rest["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    kind, position, has_gauss, cached = rest["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))  # noqa: NPY002
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def gather_random_states() -> list[bytes]:
    """Every process's state, by rank; all processes have to call this."""
    own = pack_random_state()
    count = process_count()
    if count == 1:
        return [own]
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    length = torch.tensor([len(own)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(count)]
    dist.all_gather(lengths, length)
    longest = max(int(each) for each in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    blobs: list[Tensor] = [torch.zeros_like(padded) for _ in range(count)]
    dist.all_gather(blobs, padded)
    return [bytes(blob[: int(n)].cpu().numpy().tobytes()) for blob, n in zip(blobs, lengths, strict=True)]

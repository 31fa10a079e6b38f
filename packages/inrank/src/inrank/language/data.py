"""Batches of tokens as a function of how many sequences have been seen: nothing to save, so resuming is exact.

A stream of tokens is cut into sequences of the context's length that do not overlap. Every epoch goes through all of
them in an order of its own, drawn from the seed and the number of the epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inrank.language import corpus
from inrank.language.presets import DataConfig
from inrank.language.tokenizers import Tokenizer, load_tokenizer, train_bpe

__all__ = ["TokenWindows", "mixed_seed", "read_text", "tokenizer_for"]

_LARGEST = 2**63 - 1


class TokenWindows:
    """Sequences of a stream of tokens.

    Args:
        tokens: The stream, shape (tokens,), int64.
        context: Length of a sequence.
        seed: Of the order.

    Raises:
        ValueError: The stream is shorter than one sequence and the token after it.
    """

    def __init__(self, tokens: Tensor, context: int, seed: int = 0) -> None:
        if len(tokens) <= context:
            raise ValueError(
                f"the text has {len(tokens)} tokens, a sequence and its next token need {context + 1}: give more text "
                "or a shorter model.context"
            )
        self.tokens, self.context, self.seed = tokens, context, seed
        self.windows = (len(tokens) - 1) // context
        self._epoch = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def batch(self, position: int, size: int) -> tuple[Tensor, Tensor]:
        """The sequences number position, …, position + size - 1 of training.

        Returns:
            Tokens and the tokens that follow them, each of shape (size, context).
        """
        starts = [self._start(number) for number in range(position, position + size)]
        return self._cut(torch.tensor(starts))

    def evenly(self, size: int) -> tuple[Tensor, Tensor]:
        """At most `size` sequences spread evenly over the stream, always the same: for validation."""
        count = min(size, self.windows)
        return self._cut(torch.linspace(0, self.windows - 1, count).long() * self.context)

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.windows)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
            slack = (len(self.tokens) - 1) % self.context
            shift = int(torch.randint(slack + 1, (), generator=generator))
            self._starts = torch.randperm(self.windows, generator=generator) * self.context + shift
            self._epoch = epoch
        return int(self._starts[index])

    def _cut(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.tokens[starts[:, None] + torch.arange(self.context + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def mixed_seed(*numbers: int) -> int:
    """A seed from several numbers, such as (seed, step): each tuple its own stream, the same on every machine."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finalizer of splitmix64 (Steele et al. 2014), once for each number.
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state & _LARGEST


def read_text(config: DataConfig, split: str) -> str:
    """The text that a configuration asks for.

    Args:
        config: Its ``[data]`` table.
        split: "train" or "validation"; "test" too where the source has one.

    Raises:
        ValueError: The source has no such split.
        FileNotFoundError: A file is missing.
    """
    if config.source == "sotu":
        return corpus.load(split)
    if config.source == "wikitext":
        return corpus.read_wikitext(config.path[0], split)
    return corpus.read_texts(config.path, split, config.validation)


def tokenizer_for(config: DataConfig) -> Tokenizer:
    """The tokenizer that a configuration asks for; "bpe" is learned from its training split.

    Raises:
        ImportError: It needs the extra ``transformers``.
    """
    if config.tokenizer == "bpe":
        return train_bpe(read_text(config, "train"), config.vocabulary)
    return load_tokenizer(config.tokenizer)

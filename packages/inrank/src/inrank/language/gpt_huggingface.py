"""The same shapes as Hugging Face's GPT2LMHeadModel, called like `inrank.language.gpt.GPT`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from inrank.language.gpt import GPTConfig

__all__ = ["HuggingFaceGPT"]


class HuggingFaceGPT(nn.Module):
    """A GPT2LMHeadModel with random weights; its ``Conv1D`` layers are what `inrank.wrap` then replaces.

    Args:
        config: Its shape.
        seed: Of the initial weights, which transformers draws from torch's global generator; that one is put back.

    Raises:
        ImportError: The extra ``transformers`` is not installed.
    """

    def __init__(self, config: GPTConfig, seed: int) -> None:
        super().__init__()
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ModuleNotFoundError as error:
            raise ImportError("transformers is not installed; `pip install 'inrank[transformers]'` has it") from error
        self.config = config
        shape = GPT2Config(
            vocab_size=config.vocabulary,
            n_positions=config.context,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            initializer_range=config.init_std,
            scale_attn_by_inverse_layer_idx=config.scale_by_layer,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.gpt2: Any = GPT2LMHeadModel(shape)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits (batch, tokens, vocabulary); with targets their mean cross-entropy [nats].

        Args:
            tokens: (batch, tokens), int64.
            targets: The tokens that follow, of the same shape.
        """
        logits: Tensor = self.gpt2(tokens, use_cache=False).logits
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

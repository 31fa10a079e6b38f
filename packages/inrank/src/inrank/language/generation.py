"""Text from a trained model: token by token, from the softmax of its logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from inrank.language.gpt import GPT, Cache
from inrank.language.tokenizers import Tokenizer

__all__ = ["generate", "sample_token"]


def sample_token(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, generator: torch.Generator | None = None
) -> int:
    """Draw a token from softmax(logits / temperature).

    Args:
        logits: Of shape (vocabulary,).
        temperature: 0 takes the likeliest.
        top_k: Only the likeliest k; 0 is all.
        generator: Of the draw, on the CPU.

    Raises:
        ValueError: Temperature or top_k is negative, or temperature is not finite.
        FloatingPointError: Logits are not finite.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must not be negative, nor nan or inf, got {temperature}; 0 takes the likeliest")
    if top_k < 0:
        raise ValueError(f"top_k must not be negative, got {top_k}; 0 considers all tokens")
    logits = logits.detach().double().cpu()
    if not torch.isfinite(logits).all():
        raise FloatingPointError("logits are not finite: the model's weights are broken")
    if temperature == 0:
        return int(logits.argmax())
    values, tokens = logits.topk(min(top_k or len(logits), len(logits)))
    drawn = torch.multinomial(torch.softmax(values / temperature, 0), 1, generator=generator)
    return int(tokens[drawn])


@torch.no_grad()
def generate(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int = 200,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
    cache: bool = True,
) -> str:
    """Continue a text.

    A full context drops its older half, so that the cache is rebuilt once in a half context only.

    Args:
        model: A `GPT`, or anything that gives logits of shape (batch, tokens, vocabulary) and has ``config.context``.
        tokenizer: What it was trained with.
        prompt: What is continued; a full stop and a space when empty.
        tokens: How many to add.
        temperature: Of the softmax; 0 always takes the likeliest token.
        top_k: Only the likeliest k are drawn; 0 is all.
        seed: Same seed, same text.
        cache: Keep keys and values of earlier tokens (`GPT` only); the text is the same without, but slower.

    Returns:
        Prompt and continuation.

    Raises:
        ValueError: An argument is out of range.
    """
    if tokens < 0:
        raise ValueError(f"tokens must not be negative, got {tokens}")
    sample_token(torch.zeros(1), temperature, top_k)
    context: int = model.config.context  # type: ignore[assignment,union-attr]
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    numbers: list[int] = tokenizer.encode(prompt or ". ").tolist()
    start = len(numbers)
    window = numbers[-context:]
    training = model.training
    model.eval()
    state: Cache | None = None
    for _ in range(tokens):
        if len(window) > context:
            window, state = window[-(context // 2 or 1) :], None
        if cache and isinstance(model, GPT):
            fresh = window if state is None else window[-1:]
            logits, state = model.extend(torch.tensor([fresh], device=device), state)
        else:
            logits = model(torch.tensor([window], device=device))
        token = sample_token(logits[0, -1], temperature, top_k, generator)
        numbers.append(token)
        window.append(token)
    model.train(training)
    return prompt + tokenizer.decode(numbers[start:])

"""Generation: seeded, the same with and without cache, limited to the likeliest."""

import pytest
import torch

from inrank.language.generation import generate, sample_token
from inrank.language.gpt import GPT, GPTConfig
from inrank.language.tokenizers import ByteTokenizer


@pytest.fixture(scope="module")
def model():
    made = GPT(GPTConfig(256, 16, 2, 2, 16), torch.Generator().manual_seed(0))
    for parameter in made.parameters():
        parameter.data.mul_(8)
    return made


def test_cache_changes_nothing_even_beyond_the_context(model):
    texts = [generate(model, ByteTokenizer(), "The state", 60, seed=3, cache=cache) for cache in (True, False)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("The state")
    assert model.training


def test_seed_decides(model):
    one, same, other = (generate(model, ByteTokenizer(), "a", 30, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_likeliest_token():
    logits = torch.tensor([0.0, 3.0, 2.0, -1.0])
    generator = torch.Generator().manual_seed(0)
    assert sample_token(logits, temperature=0.0) == 1
    assert {sample_token(logits, 1.0, 1, generator) for _ in range(20)} == {1}
    assert {sample_token(logits, 1.0, 2, generator) for _ in range(50)} == {1, 2}
    drawn = torch.tensor([sample_token(logits, 2.0, 0, generator) for _ in range(4000)])
    expected = torch.softmax(logits / 2, 0)
    assert torch.allclose(drawn.bincount(minlength=4) / 4000, expected, atol=0.03)
    assert not torch.allclose(drawn.bincount(minlength=4) / 4000, torch.softmax(logits, 0), atol=0.03)


def test_long_and_empty_prompts(model):
    assert generate(model, ByteTokenizer(), "x" * 100, 3).startswith("x" * 100)
    assert len(generate(model, ByteTokenizer(), "", 1, temperature=0)) >= 1
    assert generate(model, ByteTokenizer(), "abc", 0) == "abc"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature must not be negative, nor nan or inf, got -1.0"),
        ({"temperature": float("nan")}, "temperature must not be negative, nor nan or inf, got nan"),
        ({"temperature": float("inf")}, "got inf"),
        ({"top_k": -1}, "top_k must not be negative, got -1"),
        ({"tokens": -1}, "tokens must not be negative, got -1"),
    ],
)
def test_bad_input(model, values, message):
    with pytest.raises(ValueError, match=message):
        generate(model, ByteTokenizer(), "a", **values)


def test_broken_weights():
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        sample_token(torch.tensor([float("nan"), 0.0]))

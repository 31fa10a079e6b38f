"""The GPT: GPT-2's parameter counts, its logits through Hugging Face's code, causality, and the cache."""

import math

import pytest
import torch
from torch import nn

from inrank.language.gpt import GPT, GPT2_SHAPES, GPTConfig, parameter_count
from inrank.language.gpt_huggingface import HuggingFaceGPT

SMALL = GPTConfig(vocabulary=50, context=12, layers=2, heads=2, width=16)


def gpt(config=SMALL, seed=0):
    return GPT(config, torch.Generator().manual_seed(seed)).eval()


@pytest.mark.parametrize(
    ("size", "count"), [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)]
)
def test_parameter_counts_are_those_of_gpt2(size, count, monkeypatch):
    monkeypatch.setattr(nn.Embedding, "reset_parameters", lambda _: None)  # on "meta" it would import for seconds
    with torch.device("meta"):
        assert parameter_count(GPT(GPT2_SHAPES[size])) == count


def copied_from(theirs, config):
    """Our model with the weights of a GPT2LMHeadModel."""
    ours, state = gpt(config), {}
    names = {"ln_1": "norm1", "ln_2": "norm2", "attn.c_attn": "attn.qkv", "attn.c_proj": "attn.proj"}
    names |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2", "wte": "token_embedding", "wpe": "position_embedding"}
    names |= {"ln_f": "norm", "transformer.h.": "blocks.", "transformer.": ""}
    for key, value in theirs.gpt2.state_dict().items():
        if key == "lm_head.weight":
            continue
        name = key
        for old, new in names.items():
            name = name.replace(old, new)
        # their Conv1D holds its weight as (in, out)
        state[name] = value.T if ".c_" in key and key.endswith("weight") else value
    ours.load_state_dict(state)
    return ours


@pytest.mark.parametrize("scaled", [False, True])
def test_logits_are_those_of_hugging_face(scaled):
    config = GPTConfig(vocabulary=50, context=12, layers=2, heads=2, width=16, scale_by_layer=scaled)
    theirs = HuggingFaceGPT(config, seed=1).eval()
    for parameter in theirs.parameters():
        parameter.data.mul_(10)  # so that attention is far from uniform
    ours = copied_from(theirs, config)
    tokens = torch.arange(24).reshape(2, 12) % 50
    assert torch.allclose(ours(tokens), theirs(tokens), atol=1e-4)
    assert torch.allclose(ours(tokens, tokens), theirs(tokens, tokens), atol=1e-4)
    ours.blocks[1].attn.scale *= 1.1
    assert not torch.allclose(ours(tokens), theirs(tokens), atol=1e-4)


def test_initialization_is_gpt2s():
    model = gpt(GPTConfig(vocabulary=300, context=16, layers=8, heads=2, width=64))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and parameter.numel() > 4000:
            residual = name.endswith(("attn.proj.weight", "mlp.fc2.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / (4.0 if residual else 1.0), rel=0.1), name
        elif name.endswith("bias"):
            assert not parameter.any()
    other = gpt(GPTConfig(vocabulary=300, context=16, layers=8, heads=2, width=64))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert model(torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, 16, dtype=torch.int64)).item() == pytest.approx(
        math.log(300), rel=0.1
    )


def test_later_tokens_change_nothing_before():
    model = gpt()
    tokens = torch.arange(12)[None]
    changed = tokens.clone()
    changed[0, 7] = 40
    assert torch.equal(model(tokens)[:, :7], model(changed)[:, :7])
    assert not torch.allclose(model(tokens)[:, 7], model(changed)[:, 7])


def test_cache_gives_the_same_logits():
    model = gpt()
    tokens = torch.arange(12)[None]
    whole = model(tokens)
    logits, cache = model.extend(tokens[:, :5])
    pieces = [logits]
    for at in range(5, 12):
        logits, cache = model.extend(tokens[:, at : at + 1], cache)
        pieces.append(logits)
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-5)


def test_dropout_acts_in_training_only():
    model = GPT(GPTConfig(vocabulary=50, context=12, layers=1, heads=2, width=16, dropout=0.5))
    tokens = torch.arange(12)[None]
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_names_are_those_that_wrap_is_told():
    names = {name for name, module in gpt().named_modules() if isinstance(module, nn.Linear)}
    assert {name.split(".", 2)[2] for name in names} == {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 10, "heads": 3}, "multiple of heads, got width 10 and 3 heads"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_shapes(values, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**values)


def test_too_many_tokens():
    model = gpt()
    with pytest.raises(ValueError, match=r"at most 12 \(the context\), got 13"):
        model(torch.zeros(1, 13, dtype=torch.int64))
    _, cache = model.extend(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="one by one, got 2"):
        model.extend(torch.zeros(1, 2, dtype=torch.int64), cache)

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inrank.config import InRankConfig
from inrank.flops import (
    BLOCK_MATRICES,
    break_even_rank,
    gpt_cost,
    gpt_shape,
    layer_cost,
    measured_flops,
)
from inrank.language.gpt import GPT, GPTConfig
from inrank.layers import InRankEfficientLinear, InRankLinear

# Published parameters [million] at the published ranks, and the quotient of operations in weights, head included.
TABLE = {
    "small": (254, 124.4, 91.2, 0.73),
    "medium": (287, 354.8, 224.0, 0.63),
    "large": (313, 774.0, 446.4, 0.58),
}


@pytest.mark.parametrize("size", TABLE)
def test_golden_parameters_and_operations(size):
    rank, before, after, ratio = TABLE[size]
    full, low = gpt_cost(gpt_shape(size)), gpt_cost(gpt_shape(f"gpt2-{size}"), rank)
    assert round(full.parameters / 1e6, 1) == before
    assert round(low.parameters / 1e6, 1) == after
    assert round(low.weights_training / full.weights_training, 2) == ratio
    # the attention products do not shrink: with them the quotient is 0.02 larger
    assert 0.015 < low.training / full.training - low.weights_training / full.weights_training < 0.03


@pytest.mark.parametrize("size", TABLE)
def test_golden_would_fail_on_a_perturbed_rank(size):
    rank, _, after, _ = TABLE[size]
    assert round(gpt_cost(gpt_shape(size), rank + 3).parameters / 1e6, 1) != after


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_parameters_are_the_model_s(size):
    with torch.device("meta"):
        model = GPT(gpt_shape(size))
    assert gpt_cost(gpt_shape(size)).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("rank", "keeps_dense"), [(None, False), (5, False), (5, True)])
def test_operations_and_parameters_are_those_counted_by_torch(rank, keeps_dense):
    config = GPTConfig(vocabulary=32, context=16, layers=2, heads=2, width=24)
    model = GPT(config, torch.Generator().manual_seed(0))
    if rank is not None:
        settings = InRankConfig(rank=rank, buffer=0, init="orthogonal" if not keeps_dense else "zero")
        kind = InRankLinear if keeps_dense else InRankEfficientLinear
        for block in model.blocks:
            for part, name in (("mlp", "fc1"), ("mlp", "fc2"), ("attn", "qkv"), ("attn", "proj")):
                old = getattr(getattr(block, part), name)
                setattr(getattr(block, part), name, kind.from_dense(old, settings))
    cost = gpt_cost(config, rank, matrices=BLOCK_MATRICES, keeps_dense=keeps_dense)
    tokens = torch.zeros(3, 16, dtype=torch.int64)
    counted = measured_flops(lambda: model(tokens, tokens).backward())
    # torch counts the whole square of causal attention, and 2.5 times that backward, where the scores are recomputed
    attention = 3 * 16 * 2 * 4 * 16 * 24
    products = counted - 3 * 16 * cost.weights_training
    assert products == attention * 7 // 2
    assert sum(p.numel() for p in model.parameters()) == cost.parameters
    kept = sum(b.numel() for n, b in model.named_buffers() if n.endswith("weight0"))
    assert kept == cost.frozen


@given(m=st.integers(1, 500), n=st.integers(1, 500), data=st.data())
def test_break_even(m, n, data):
    rank = data.draw(st.integers(0, min(m, n)))
    dense, low, kept = layer_cost(m, n), layer_cost(m, n, rank), layer_cost(m, n, rank, keeps_dense=True)
    assert (low.training <= dense.training) == (rank <= break_even_rank(m, n))
    assert low.training_ratio == pytest.approx(low.trained / dense.trained)
    assert kept.training_ratio == pytest.approx((2 + 3 * low.training_ratio) / 3)
    assert (kept.frozen, kept.trained) == (m * n, low.trained)
    assert (dense.training, dense.forward) == (3 * dense.forward, 2 * m * n)


def test_published_break_even_points():
    assert break_even_rank(4 * 768, 768) == pytest.approx(0.8 * 768)
    assert break_even_rank(768, 768) == 384
    assert layer_cost(3072, 768, 256).training_ratio == pytest.approx(1.25 / 3)
    assert layer_cost(3072, 768, 256, keeps_dense=True).training_ratio == pytest.approx(1.08, abs=5e-3)


def test_measured_flops_of_one_layer():
    layer = nn.Linear(8, 4, bias=False)
    assert measured_flops(lambda: layer(torch.ones(5, 8))) == 5 * layer_cost(4, 8).forward


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: break_even_rank(0, 3), "m is 0"),
        (lambda: layer_cost(4, 4, 5), r"rank is 5; a 4 x 4 weight has ranks 0\.\.4"),
        (lambda: layer_cost(4, 4, keeps_dense=True), "keeps_dense is True without a rank"),
        (lambda: gpt_shape("gpt3"), "no GPT-2 shape 'gpt3'; known: gpt2-small"),
        (lambda: gpt_cost(gpt_shape("small"), 9, matrices=("fc1",)), "no matrix 'fc1' in a block; known: attn.qkv"),
        (lambda: gpt_cost(gpt_shape("small"), 900), "rank is 900"),
        (lambda: gpt_cost(gpt_shape("small"), tokens=0), "tokens is 0"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(ValueError, match=said):
        call()

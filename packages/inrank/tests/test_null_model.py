import json
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

from inrank.config import InRankConfig
from inrank.criteria import needed_rank, official_rank
from inrank.layers import InRankEfficientLinear
from inrank.null_model import GPT2_MLP_SHAPES, PUBLISHED_RANKS, mean_null_rank, null_rank, null_ranks

GOLDEN = json.loads((Path(__file__).parent / "golden" / "null_ranks.json").read_text())
EIGHT = InRankConfig.official(threshold=0.8)


def _golden_mean(size: str) -> float:
    return statistics.fmean(r for key, ranks in GOLDEN.items() if key.startswith(f"{size}_") for r in ranks)


@pytest.fixture(scope="module")
def found():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {size: mean_null_rank(GPT2_MLP_SHAPES[size], seeds=(0,)) for size in ("small", "medium", "large")}
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_the_published_rank_table_without_training(found, size):
    mean, layers = found[size]
    assert mean == pytest.approx(_golden_mean(size), rel=0.01)
    assert mean == pytest.approx(PUBLISHED_RANKS[size, 0.9], rel=0.01)
    for layer in layers:
        golden = GOLDEN[f"{size}_{layer.shape[0]}x{layer.shape[1]}"]
        assert min(abs(layer.rank - rank) for rank in golden) <= 3
        assert 12 <= layer.checks <= 16


def test_golden_would_fail_on_a_perturbed_value(found):
    for size in ("small", "medium", "large"):
        assert found[size][0] != pytest.approx(_golden_mean(size) * 1.02, rel=0.01)


def test_golden_sequence(found):
    sequence = found["small"][1][0].sequence
    assert len(sequence) == pytest.approx(len(GOLDEN["sequence_small_seed0"]), abs=1)
    for rank, golden in zip(sequence, GOLDEN["sequence_small_seed0"], strict=False):
        assert abs(rank - golden) <= 3


def test_golden_threshold_08():
    mean, _ = mean_null_rank(GPT2_MLP_SHAPES["small"], EIGHT, seeds=(0,))
    assert mean == pytest.approx(GOLDEN["threshold_0.8_small"], abs=3)


def test_the_fast_way_is_the_rule_on_the_dense_product():
    """Cholesky factors of the leading directions against an SVD of U V itself."""
    config = InRankConfig.official(buffer=6, rank=3)
    result = null_rank(40, 64, config, seed=5)
    generator = torch.Generator().manual_seed(5)
    u = torch.empty(40, 20, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    v = torch.empty(20, 64, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    sequence = [3]
    while True:
        k = sequence[-1] + 6
        rank = official_rank(torch.linalg.svdvals(u[:, :k] @ v[:k]), sequence[-1], 6, 20, 0.9)
        if rank == sequence[-1]:
            break
        sequence.append(rank)
    assert result.sequence == tuple(sequence)
    assert len(sequence) > 2


@pytest.mark.parametrize("criterion", ["variance", "energy", "stable", "entropy"])
def test_without_training_the_update_is_zero_and_the_rank_stays(criterion):
    config = InRankConfig(criterion=criterion)
    assert null_rank(48, 32, config).sequence == (2,)
    product = InRankConfig(criterion=criterion, spectrum="product")
    assert null_rank(48, 32, product).rank > 2  # the same rule on U V reads the initialization


@pytest.mark.parametrize("init", ["official", "orthogonal", "spectral"])
@pytest.mark.parametrize("criterion", ["variance", "energy", "stable"])
def test_product_rule_is_what_a_new_layer_does(init, criterion):
    config = InRankConfig(init=init, spectrum="product", criterion=criterion, rank=1, buffer=19, max_rank=1.0)
    layers = [InRankEfficientLinear(48, 64, config=config, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    for layer in layers:
        wanted = needed_rank(layer.singular_values(), criterion, config.threshold)
        assert abs(null_rank(64, 48, config).rank - min(wanted, layer.active)) <= 1


def test_zero_initialization_has_nothing_to_grow():
    assert null_rank(32, 24, InRankConfig(init="zero", spectrum="product")).rank == 2


def test_null_column_of_a_model():
    official = InRankConfig.official(buffer=4)
    model = nn.Sequential(
        InRankEfficientLinear(32, 32, config=official),
        nn.ReLU(),
        InRankEfficientLinear(32, 32, config=official),
        InRankEfficientLinear(32, 16, config=InRankConfig()),
        nn.Linear(16, 4),
    )
    ranks = null_ranks(model, seed=1)
    assert ranks == {"0": null_rank(32, 32, official, seed=1).rank, "2": ranks["0"], "3": 2}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: null_rank(0, 5), "the shape is 0 x 5"),
        (lambda: null_rank(64, 64), r"no room for rank 2 \+ buffer 100: the limit is 32"),
        (lambda: null_rank(64, 64, InRankConfig.official(buffer=0)), "no candidate rank"),
        (lambda: mean_null_rank([]), "given 0 shapes and 2 seeds"),
        (lambda: mean_null_rank([(4, 4)], seeds=()), "given 1 shapes and 0 seeds"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(ValueError, match=said):
        call()

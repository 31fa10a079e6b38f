"""Initial factors: norms, spectra, reproducibility; directions that can learn."""

import math

import pytest
import torch

from inrank import InRankConfig, InRankEfficientLinear
from inrank.initialization import derived_generator, fresh_directions, initial_factors, orthonormal_rows


def _dense(groups: int = 1, m: int = 96, n: int = 64, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.empty(groups, m, n, dtype=dtype).uniform_(-1, 1, generator=generator) / math.sqrt(n)


@pytest.mark.parametrize("init", ["orthogonal", "spectral"])
@pytest.mark.parametrize(("m", "n"), [(96, 64), (64, 96), (50, 50)])
def test_the_product_has_the_norm_of_the_dense_weight(init: str, m: int, n: int) -> None:
    dense = _dense(2, m, n)
    for rank in (1, 8, 50):
        u, v = initial_factors(init, dense, rank, generator=torch.Generator().manual_seed(1))
        assert u.shape == (2, m, rank)
        assert v.shape == (2, rank, n)
        torch.testing.assert_close(torch.linalg.matrix_norm(u @ v), torch.linalg.matrix_norm(dense))
        torch.testing.assert_close(u.norm(dim=-2), v.norm(dim=-1))  # balanced


@pytest.mark.parametrize("rank", [8, 32, 98])
def test_outputs_keep_the_spread_of_a_dense_layer(rank: int) -> None:
    # white inputs: E |W x|^2 = |W|_F^2, so the norm is what matters; the official product is far smaller
    torch.manual_seed(0)
    dense = torch.nn.Linear(192, 384, bias=False)
    x = torch.randn(512, 192)
    spread = {}
    for init in ("spectral", "orthogonal", "official"):
        config = InRankConfig(rank=rank, buffer=0, init=init, max_rank=1.0)
        spread[init] = InRankEfficientLinear.from_dense(dense, config)(x).std().item()
    expected = dense(x).std().item()
    assert spread["spectral"] == pytest.approx(expected, rel=0.06)
    assert spread["orthogonal"] == pytest.approx(expected, rel=0.06)
    assert spread["official"] < 0.5 * expected
    # 1 / (3 sqrt n) sqrt(k / R) per entry
    predicted = math.sqrt(192) / (3 * math.sqrt(192)) * math.sqrt(rank / 192)
    assert spread["official"] == pytest.approx(predicted, rel=0.1)


def test_spectral_has_the_leading_singular_vectors() -> None:
    for shape in ((96, 64), (64, 96)):
        dense = _dense(1, *shape)
        u, v = initial_factors("spectral", dense, 5)
        left, s, right = torch.linalg.svd(dense[0], full_matrices=False)
        best = (left[:, :5] * s[:5]) @ right[:5]
        torch.testing.assert_close((u @ v)[0] / (u @ v).norm(), best / best.norm(), rtol=1e-9, atol=1e-12)


def test_scale_multiplies_the_product() -> None:
    for init in ("official", "orthogonal", "spectral"):
        one, four = (
            initial_factors(init, _dense(), 4, scale=scale, generator=torch.Generator().manual_seed(2))
            for scale in (1.0, 4.0)
        )
        torch.testing.assert_close(4 * one[0] @ one[1], four[0] @ four[1])


@pytest.mark.parametrize("init", ["orthogonal", "spectral"])
def test_no_direction_is_dead(init: str) -> None:
    # a weight of low rank, a zero weight: where U and V are both zero nothing would ever move
    low = torch.zeros(2, 20, 12, dtype=torch.float64)
    low[0, 3, 4] = 2.0
    u, v = initial_factors(init, low, 5, generator=torch.Generator().manual_seed(0))
    assert bool((v.norm(dim=-1) > 1e-3).all())
    assert float(u[1].abs().max()) == 0  # the zero weight stays a zero function
    torch.testing.assert_close(torch.linalg.matrix_norm(u @ v), torch.tensor([2.0, 0.0], dtype=torch.float64))


def test_zero_starts_at_zero_with_orthonormal_rows() -> None:
    u, v = initial_factors("zero", _dense(2), 6, generator=torch.Generator().manual_seed(0))
    assert float(u.abs().max()) == 0
    torch.testing.assert_close(v @ v.mT, torch.eye(6, dtype=torch.float64).expand(2, 6, 6))


def test_fresh_directions_are_orthonormal_to_the_old_ones() -> None:
    v = orthonormal_rows(
        (2, 5, 20), generator=torch.Generator().manual_seed(0), dtype=torch.float64, device=torch.device("cpu")
    )
    for added in (1, 6, 15):
        fresh = fresh_directions(3 * v, added, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(fresh @ v.mT, torch.zeros(2, added, 5, dtype=torch.float64), atol=1e-12, rtol=0)
        torch.testing.assert_close(fresh @ fresh.mT, 9 * torch.eye(added, dtype=torch.float64).expand(2, added, added))
    assert fresh_directions(
        v.new_zeros(1, 0, 4), 4, generator=torch.Generator().manual_seed(1)
    ).norm() == pytest.approx(2)


def test_seeds() -> None:
    for init in ("official", "orthogonal", "zero"):
        a, b, c = (initial_factors(init, _dense(), 4, generator=torch.Generator().manual_seed(s))[1] for s in (3, 3, 4))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    draws = {
        torch.randn(1, generator=derived_generator(*p)).item() for p in ((0, "a"), (0, "b"), (1, "a"), (0, "a", 2))
    }
    assert len(draws) == 4
    assert torch.randn(1, generator=derived_generator(0, "a")) == torch.randn(1, generator=derived_generator(0, "a"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: initial_factors("xavier", _dense(), 4), "unknown initialization 'xavier'"),
        (lambda: initial_factors("zero", _dense(), 65), "rank is 65"),
        (lambda: fresh_directions(torch.ones(1, 3, 5), 3), "room for 2"),
    ],
)
def test_bad_input(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()

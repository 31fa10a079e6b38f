"""Criteria: golden values of the paper's ratio, and the properties every criterion has."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inrank.criteria import (
    RULES,
    energy_ratio,
    entropy_rank,
    explained_variance_ratio,
    needed_rank,
    numerical_rank,
    official_rank,
    stable_rank,
)

GOLDEN = np.load(Path(__file__).parent / "golden" / "explained_variance.npz")
DEFINED = [i for i in range(9) if np.isfinite(GOLDEN["explained"][i]).all()]

spectra = st.lists(st.floats(0.0, 1e6, allow_subnormal=False), min_size=1, max_size=12).map(
    lambda values: torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
)


@pytest.mark.parametrize("row", DEFINED)
def test_explained_variance_is_the_official_one(row: int) -> None:
    s = torch.from_numpy(GOLDEN["s"][row])
    np.testing.assert_allclose(explained_variance_ratio(s).numpy(), GOLDEN["explained"][row], rtol=1e-5, atol=1e-6)
    for k in GOLDEN["r"]:
        assert explained_variance_ratio(s, int(k)) == explained_variance_ratio(s)[int(k)]


def test_a_perturbed_spectrum_is_told_apart() -> None:
    s = torch.from_numpy(GOLDEN["s"][0]).clone()
    s[1] *= 1.001
    assert not np.allclose(explained_variance_ratio(s).numpy(), GOLDEN["explained"][0], rtol=1e-5)


def test_spectra_without_variance_are_defined() -> None:
    assert explained_variance_ratio(torch.zeros(4)).tolist() == [1.0] * 5
    assert explained_variance_ratio(torch.ones(4)).tolist() == [0.0, -math.inf, -math.inf, -math.inf, 1.0]
    nearly = torch.tensor([1.0, 1.0, 1.0, 1.0 - 1e-15], dtype=torch.float64)
    ratios = explained_variance_ratio(nearly)
    assert ratios[0] == 0
    assert ratios[-1] == 1
    assert bool((ratios[1:-1] < -1e3).all())
    # values whose squares underflow
    tiny = torch.tensor([3e-170, 1e-170, 0.0], dtype=torch.float64)
    torch.testing.assert_close(explained_variance_ratio(tiny), explained_variance_ratio(tiny * 1e170))


@settings(max_examples=60, deadline=None)
@given(spectra)
def test_explained_variance_is_the_definition(s: Tensor) -> None:
    if len(s) < 2 or float(s.std()) < 1e-3 * float(s[0]):
        return
    for k in range(len(s) + 1):
        tail = s.clone()
        tail[:k] = 0
        expected = 1 - float(tail.var()) / float(s.var())
        assert float(explained_variance_ratio(s, k)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(spectra, st.floats(1e-3, 1e3))
def test_ranks_are_ranks_and_do_not_depend_on_scale(s: Tensor, factor: float) -> None:
    for criterion in RULES:
        rank = needed_rank(s, criterion, 0.9)
        assert 0 <= rank <= len(s)
        assert (rank == 0) == (float(s[0]) == 0)
        if criterion != "variance":  # whose curve is not monotone: ties may tip
            assert abs(needed_rank(s * factor, criterion, 0.9) - rank) <= 1
    energies = energy_ratio(s)
    assert float(energies[-1]) == 1.0
    assert bool((energies.diff() >= -1e-12).all())
    assert float(stable_rank(s)) <= float(entropy_rank(s)) ** 2 + 1e-6


def test_by_hand() -> None:
    s = torch.tensor([3.0, 4.0, 0.0]).sort(descending=True)[0]
    assert energy_ratio(s).tolist() == pytest.approx([0, 16 / 25, 1, 1])
    assert float(stable_rank(s)) == pytest.approx(25 / 16)
    assert float(entropy_rank(torch.ones(5))) == pytest.approx(5)
    assert int(numerical_rank(s)) == 2
    assert int(numerical_rank(s, tolerance=0.8)) == 1
    assert needed_rank(torch.ones(5), "stable", 0.9) == 5
    assert needed_rank(torch.tensor([1.0, 0.0, 0.0]), "variance", 0.9) == 1
    assert needed_rank(torch.tensor([[1.0, 0, 0], [1.0, 1.0, 0]]), "energy", 0.9) == 2
    assert needed_rank(torch.zeros(3), "variance", 0.9) == 0
    assert float(stable_rank(torch.zeros(3))) == float(entropy_rank(torch.zeros(3))) == 0


def test_official_rule_saturates() -> None:
    # golden rank_trace_cap of the specification: alpha = .999 is never met below R - b - 1
    s = torch.linspace(1.0, 0.1, 16)
    assert official_rank(s, 2, 4, 9, 0.999) == 4
    assert official_rank(s, 2, 4, 16, 0.999) == 5  # at most b - 1 more at a time
    assert official_rank(torch.tensor([5.0, 4.0] + [0.0] * 14), 1, 4, 16, 0.9) == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: official_rank(torch.ones(8), 2, 0, 8, 0.9), ValueError, "no candidate"),
        (lambda: official_rank(torch.ones(8), 6, 2, 8, 0.9), ValueError, "no candidate"),
        (lambda: needed_rank(torch.ones(8), "nuclear", 0.9), ValueError, "unknown criterion 'nuclear'"),
        (lambda: needed_rank(torch.tensor([math.nan, 0]), "energy", 0.9), FloatingPointError, "not finite"),
        (lambda: explained_variance_ratio(torch.ones(3), 4), ValueError, "k is 4"),
        (lambda: energy_ratio(torch.ones(3), -1), ValueError, "k is -1"),
        (lambda: energy_ratio(torch.ones(())), ValueError, "shape"),
        (lambda: stable_rank(torch.ones(2, 0)), ValueError, "shape"),
    ],
)
def test_bad_input(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()

"""The configuration: defaults that resolve, values that are refused by name."""

import dataclasses
import json
from typing import Any

import pytest

from inrank import InRankConfig


def test_auto_resolves_by_mode() -> None:
    assert (InRankConfig().resolved_init, InRankConfig().resolved_spectrum) == ("spectral", "update")
    assert InRankConfig(mode="full").resolved_init == "zero"
    official = InRankConfig.official()
    assert (official.resolved_init, official.resolved_spectrum) == ("official", "product")
    assert (official.rank, official.buffer, official.threshold, official.max_rank) == (2, 100, 0.9, 0.5)
    assert InRankConfig.official(threshold=0.8).threshold == 0.8
    assert InRankConfig(init="orthogonal", spectrum="product").resolved_spectrum == "product"


def test_sizes() -> None:
    config = InRankConfig(buffer=0.125, max_rank=0.5)
    assert (config.buffer_of(64), config.buffer_of(3), config.max_rank_of(65), config.max_rank_of(1)) == (8, 1, 32, 1)
    assert InRankConfig(buffer=7, max_rank=100).max_rank_of(64) == 64
    assert InRankConfig(buffer=0.0).buffer_of(64) == 0
    assert InRankConfig(max_rank=1.0).max_rank_of(64) == 64


def test_json_round_trip() -> None:
    config = InRankConfig(mode="full", buffer=5, max_rank=0.25, pad_to=8, criterion="energy")
    assert InRankConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rank = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": 2.5}, "rank is 2.5; it must be int"),
        ({"rank": True}, "rank is True"),
        ({"buffer": -1}, "buffer is -1"),
        ({"buffer": 1.0}, "buffer is 1.0"),
        ({"buffer": "many"}, "buffer is 'many'"),
        ({"max_rank": 1.5}, "max_rank is 1.5"),
        ({"max_rank": 0.0}, "max_rank is 0.0"),
        ({"max_rank": -2}, "max_rank is -2"),
        ({"check_every": 0}, "check_every is 0"),
        ({"pad_to": 0}, "pad_to is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"init_scale": float("inf")}, "init_scale is inf"),
        ({"init_scale": -1.0}, "init_scale is -1.0"),
        ({"mode": "both"}, "mode is 'both'; known: 'efficient', 'full'"),
        ({"criterion": "nuclear"}, "criterion is 'nuclear'"),
        ({"storage": "disk"}, "storage is 'disk'"),
        ({"shrink": 1}, "shrink is 1"),
        ({"strict": True}, "strict is the official release"),
        ({"strict": True, "storage": "reserve", "mode": "full"}, "strict is the official release"),
        ({"rnk": 2}, "unknown key 'rnk'"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InRankConfig.from_dict(changes)

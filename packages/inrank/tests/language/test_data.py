"""Batches: every sequence once in an epoch, and a function of position and seed alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inrank.language.data import TokenWindows, mixed_seed, read_text, tokenizer_for
from inrank.language.presets import DataConfig


@settings(max_examples=30, deadline=None)
@given(length=st.integers(9, 200), context=st.integers(1, 8), seed=st.integers(0, 5))
def test_an_epoch_holds_every_sequence_once(length, context, seed):
    windows = TokenWindows(torch.arange(length), context, seed)
    tokens, targets = windows.batch(windows.windows, windows.windows)  # the second epoch
    assert torch.equal(targets, tokens + 1)
    assert len(tokens.unique()) == tokens.numel() == windows.windows * context
    assert targets.max() < length


def test_batches_depend_on_position_and_seed_only():
    stream = torch.arange(1000)
    windows = TokenWindows(stream, 7, seed=3)
    later = windows.batch(200, 5)
    windows.batch(0, 5)
    assert torch.equal(windows.batch(200, 5)[0], later[0])
    assert torch.equal(TokenWindows(stream, 7, seed=3).batch(200, 5)[0], later[0])
    assert not torch.equal(TokenWindows(stream, 7, seed=4).batch(200, 5)[0], later[0])
    assert not torch.equal(windows.batch(0, 142)[0], windows.batch(142, 142)[0])


def test_validation_is_spread_and_fixed():
    windows = TokenWindows(torch.arange(1000), 10, seed=3)
    tokens, targets = windows.evenly(4)
    assert tokens[:, 0].tolist() == [0, 320, 650, 980]
    assert torch.equal(targets, tokens + 1)
    assert len(windows.evenly(10_000)[0]) == windows.windows == 99


def test_short_text_is_refused():
    with pytest.raises(ValueError, match="has 8 tokens, a sequence and its next token need 9"):
        TokenWindows(torch.arange(8), 8)


def test_seeds_are_mixed():
    seeds = {mixed_seed(a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mixed_seed(1, 2) != mixed_seed(2, 1)


def test_local_text_is_read(tmp_path):
    (tmp_path / "t.txt").write_text("a b c d " * 100)
    config = DataConfig(source="text", path=(str(tmp_path),), tokenizer="bpe", vocabulary=260)
    assert read_text(config, "train") + read_text(config, "validation") == "a b c d " * 100
    assert tokenizer_for(config).vocabulary <= 260
    (tmp_path / "wiki.valid.raw").write_text("w")
    assert read_text(DataConfig(source="wikitext", path=(str(tmp_path),)), "validation") == "w"

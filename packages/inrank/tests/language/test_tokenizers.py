"""Tokenizers: known tokens, and any text survives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inrank.language.tokenizers import ByteTokenizer, gpt2_tokenizer, load_tokenizer, train_bpe

TEXT = "the state of the union is strong, and the people of the union are free. " * 40


@pytest.fixture(scope="module")
def gpt2():
    return gpt2_tokenizer()


def test_gpt2_gives_the_known_tokens(gpt2):
    assert gpt2.vocabulary == 50257
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.encode("Hello World").tolist() != [15496, 995]


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_bytes_survive(text):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(text)
    assert tokens.dtype == torch.int64
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens.tolist()) == text


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_gpt2_text_survives(gpt2, text):
    assert gpt2.decode(gpt2.encode(text).tolist()) == text


def test_bpe_is_learned_saved_and_the_same_again(tmp_path):
    tokenizer = train_bpe(TEXT, 280)
    assert tokenizer.vocabulary <= 280
    tokens = tokenizer.encode(TEXT)
    assert len(tokens) < len(TEXT)
    assert torch.equal(train_bpe(TEXT, 280).encode(TEXT), tokens)
    tokenizer.save(tmp_path)
    again = load_tokenizer("bpe", tmp_path)
    assert torch.equal(again.encode(TEXT), tokens)
    assert again.decode(tokens.tolist()) == TEXT


def test_long_text_is_encoded_in_pieces_that_change_nothing(gpt2, monkeypatch):
    whole = gpt2.encode(TEXT)
    monkeypatch.setattr("inrank.language.tokenizers._CHUNK", 100)
    assert torch.equal(gpt2.encode(TEXT), whole)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: train_bpe(TEXT, 256), ValueError, "more than the 256 bytes, got 256"),
        (lambda p: load_tokenizer("words"), ValueError, "one of bytes, gpt2, bpe, got 'words'"),
        (lambda p: load_tokenizer("bpe"), ValueError, "read from a folder"),
        (lambda p: load_tokenizer("bpe", p), FileNotFoundError, "no tokenizer.json"),
    ],
)
def test_bad_input(tmp_path, call, kind, message):
    with pytest.raises(kind, match=message):
        call(tmp_path)

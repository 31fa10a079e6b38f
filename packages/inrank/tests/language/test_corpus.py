"""The embedded corpus, its split, and readers of local text."""

import json
import lzma

import pytest

from inrank.language import corpus


def test_addresses_are_all_there_in_order():
    given = corpus.addresses()
    years = [address.year for address in given]
    assert (len(given), years[0], years[-1]) == (233, 1790, 2021)
    assert years == sorted(years)
    assert given[0].president == "George Washington"
    assert given[0].text.startswith("Fellow-Citizens of the Senate")
    assert sum(len(address.text.encode()) for address in given) == pytest.approx(10.76e6, rel=1e-3)


def test_splits_are_disjoint_in_time(monkeypatch):
    given = corpus.addresses()
    monkeypatch.setattr(corpus, "addresses", lambda: given)
    train, validation, test = (corpus.load(split) for split in ("train", "validation", "test"))
    assert len(train) > 9.9e6
    assert 0.3e6 < len(validation) < 0.5e6
    assert 0.3e6 < len(test) < 0.5e6
    last = next(a.text for a in given if a.year == 1999)
    first = next(a.text for a in given if a.year == 2000)
    assert train.endswith(last)
    assert validation.startswith(first)
    assert first not in train


def test_pack_makes_what_is_read(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1790_a.json").write_text(json.dumps({"year": 1790, "name": "A", "text": ""}))
    (tmp_path / "data" / "1790_a.txt").write_text("Fellow citizens: é.\n", encoding="utf-8")
    assert lzma.decompress(corpus.pack(tmp_path)).decode() == "1790\tA\tFellow citizens: é.\n"
    (tmp_path / "data" / "1790_a.txt").write_text("one\ntwo", encoding="utf-8")
    with pytest.raises(ValueError, match="1790_a has a tab or a line break"):
        corpus.pack(tmp_path)


def test_local_texts_are_split_at_the_end(tmp_path):
    (tmp_path / "b.txt").write_text("b" * 60)
    (tmp_path / "a.txt").write_text("a" * 38)
    train = corpus.read_texts([tmp_path], "train", 0.2)
    validation = corpus.read_texts([tmp_path], "validation", 0.2)
    assert train + validation == "a" * 38 + "\n\n" + "b" * 60
    assert len(validation) == 20


def test_wikitext_has_its_real_validation_split(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.raw").write_text(f" = {part} = \n")
    assert corpus.read_wikitext(tmp_path, "validation") == " = valid = \n"
    assert corpus.read_wikitext(tmp_path, "test") == " = test = \n"


def _latin(folder):
    file = folder / "latin.txt"
    file.write_bytes("caf\xe9 noir".encode("latin-1"))
    return file


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: corpus.load("valid"), ValueError, "train, validation, test, got 'valid'"),
        (lambda p: corpus.read_texts([p / "no"], "train"), FileNotFoundError, "no text at"),
        (lambda p: corpus.read_texts([p], "train"), ValueError, "no text in"),
        (lambda p: corpus.read_texts([_latin(p)], "train"), ValueError, r"latin\.txt is not UTF-8 text \(byte 3: "),
        (lambda p: corpus.read_texts([p], "test"), ValueError, "got 'test'"),
        (lambda p: corpus.read_texts([p], "train", 1.0), ValueError, r"validation must be in \(0, 1\), got 1.0"),
        (lambda p: corpus.read_wikitext(p, "train"), FileNotFoundError, "no wiki.train.raw"),
        (corpus.pack, ValueError, "no addresses in"),
    ],
)
def test_bad_input(tmp_path, call, kind, message):
    with pytest.raises(kind, match=message):
        call(tmp_path)

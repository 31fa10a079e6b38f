"""Nested tables, as from TOML or JSON, checked and made into dataclasses; errors name the dotted key."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from inrank.config import InRankConfig

__all__ = ["ConfigError", "convert_table", "named_table", "one_of", "require"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key."""


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with a message unless a condition holds."""
    if not condition:
        raise ConfigError(message)


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise a ConfigError, with the nearest word, unless a value is among those that are allowed."""
    if value not in allowed:
        raise ConfigError(f"{key} = {value!r} is unknown{_near(value, allowed)}; choose one of {', '.join(allowed)}")


def _near(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


@contextmanager
def named_table(table: str) -> Iterator[None]:
    """Turns a ValueError inside into a ConfigError that names the table."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{table}.{error}") from error


def _convert(value: Any, kind: Any, key: str) -> Any:
    """``value`` as ``kind``, or a ConfigError that names ``key``."""
    if kind is InRankConfig:
        _expect(isinstance(value, Mapping), key, value, "a table")
        require("mode" not in value, f"{key}.mode follows from method.name; leave it out")
        with named_table(key):
            return InRankConfig.from_dict(dict(value))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return convert_table(value, kind, key)
    if typing.get_origin(kind) is tuple:
        _expect(isinstance(value, (list, tuple)), key, value, "a list")
        (item,) = {argument for argument in typing.get_args(kind) if argument is not Ellipsis}
        return tuple(_convert(part, item, f"{key}.{index}") for index, part in enumerate(value))
    if isinstance(kind, types.UnionType) or kind is float:
        _expect(isinstance(value, (int, float)) and type(value) is not bool, key, value, "a number")
        return float(value) if kind is float else value
    _expect(type(value) is kind, key, value, {int: "an integer", bool: "true or false"}.get(kind, "a string"))
    return value


def _expect(condition: bool, key: str, value: Any, expected: str) -> None:
    require(condition, f"{key} must be {expected}, got {value!r}")


def convert_table(value: Any, kind: type, key: str) -> Any:
    """A table as a dataclass.

    Args:
        value: Of the table.
        kind: The dataclass; its fields' types say what is expected.
        key: Dotted key of the table, for messages.

    Raises:
        ConfigError: An unknown key, a wrong type or a bad value.
    """
    _expect(isinstance(value, Mapping), key, value, "a table")
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    for name in value:
        if name not in known:
            raise ConfigError(f"unknown key {prefix}{name}{_near(name, known)}; known here: {', '.join(known)}")
    return kind(**{name: _convert(item, hints[name], prefix + name) for name, item in value.items()})

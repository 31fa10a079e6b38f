"""Which modules of a model are meant: by name, regular expression or type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

__all__ = ["ALL_LINEAR", "Pattern", "Patterns", "as_patterns", "matches", "no_match_message", "plain_name"]

Pattern = str | re.Pattern[str] | type[nn.Module]
Patterns = Pattern | Iterable[Pattern]

ALL_LINEAR = "all-linear"

# What wrappers of a model put into the names of its modules.
_WRAPPER_PARTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_MOST_CANDIDATES = 24


def as_patterns(patterns: Patterns) -> tuple[Pattern, ...]:
    """One pattern or several as a tuple.

    Raises:
        TypeError: If one is neither a string, a compiled regular expression nor a module type.
    """
    several = tuple(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else (patterns,)
    for pattern in several:
        is_module = isinstance(pattern, type) and issubclass(pattern, nn.Module)
        if not (isinstance(pattern, str | re.Pattern) or is_module):
            raise TypeError(
                f"a pattern is a name, a regular expression or a subclass of nn.Module; given {pattern!r} "
                f"of type {type(pattern).__name__}"
            )
    return several


def matches(pattern: Pattern, name: str, module: nn.Module) -> bool:
    r"""Whether a pattern means a module.

    Args:
        pattern: A string is the full name (``"h.0.mlp.c_fc"``), the end of one after a dot (``"mlp.c_fc"``,
            ``"c_fc"``), or a regular expression for the whole name (``r"h\.\d+\.mlp\..*"``, `re.fullmatch`).
            A compiled expression is looked for anywhere in the name (`re.search`). A type matches its instances.
        name: Of the module.
        module: The module.

    Raises:
        ValueError: If a string that is no name is no regular expression either.
    """
    if isinstance(pattern, type):
        return isinstance(module, pattern)
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    if name == pattern or name.endswith("." + pattern):
        return True
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ValueError(f"{pattern!r} is neither the name of a module nor a regular expression: {error}") from error


def plain_name(name: str) -> str:
    """A module's name without what torch.compile, FSDP and activation checkpointing put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def no_match_message(argument: str, unmatched: Sequence[object], candidates: Mapping[str, nn.Module]) -> str:
    """What to say where patterns match nothing: the candidates, blocks that repeat only once."""
    kinds: dict[str, list[str]] = {}
    for name, module in candidates.items():
        kinds.setdefault(f"{re.sub(r'[0-9]+', '*', name)} ({type(module).__name__})", []).append(name)
    lines = [kind if len(names) == 1 else f"{kind} x {len(names)}" for kind, names in kinds.items()]
    if len(lines) > _MOST_CANDIDATES:
        lines = [*lines[:_MOST_CANDIDATES], f"and {len(lines) - _MOST_CANDIDATES} more"]
    asked = ", ".join(map(repr, unmatched)) or "(all)"
    listed = "; candidates: " + ", ".join(lines) if lines else "; the model has no layer that can be replaced"
    return f"{argument} {asked} matches no layer{listed}"

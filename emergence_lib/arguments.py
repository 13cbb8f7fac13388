"""Typed values from the text of a command line: ``-p row_weight 3`` into a field of a dataclass.

Only the type is checked here; whether a value is in range is the dataclass's own business, so that
the command line, a notebook and a Python caller meet the same message.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from emergence_lib.errors import ParameterError

DESCRIPTIONS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
}


def field_types(cls: type, without: Iterable[str] = ()) -> dict[str, Any]:
    """Name and type of every field that a caller of the dataclass `cls` may give."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init and f.name not in without}


def describe_type(hint: Any) -> str:
    """A type in words: "an integer or none"."""
    if _is_tuple(hint):
        members = get_args(hint)
        count = "" if members[-1] is Ellipsis else f"{len(members)} "
        return f"{count}values separated by commas, each {describe_type(members[0])}"
    return " or ".join(
        DESCRIPTIONS[member] if member in DESCRIPTIONS else describe_type(member)
        for member in _members(hint)
    )


def parse_value(parameter: str, text: str, hint: Any) -> Any:
    """`text` as a value of the type `hint`: int, float, bool, str, None, tuples and unions of them.

    Raises:
        ParameterError: the text is no value of this type.
    """
    # "attention,attention" is a tuple and "attention" a name where both are allowed.
    members = sorted(_members(hint), key=lambda m: _is_tuple(m) != ("," in text))
    for member in members:
        try:
            return _convert(text, member)
        except ValueError:
            continue
    raise ParameterError(parameter, text, describe_type(hint))


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; a plain type is its only one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _convert(text: str, kind: Any) -> Any:
    """`text` as one plain type or tuple. Raises ValueError where it is not."""
    text = text.strip()
    if kind is type(None):
        if text.lower() != "none":
            raise ValueError
        return None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if _is_tuple(kind):
        parts, members = text.split(","), get_args(kind)
        if members[-1] is Ellipsis:
            members = members[:1] * len(parts)
        return tuple(_convert(part, member) for part, member in zip(parts, members, strict=True))
    return kind(text)

"""The texts of errors of the configuration: where a value stands, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonet.rules.limits import Location

SHARED = "where many tasks share a process"

_MAPPINGS = ("model_type", "model_attributes_type", "dataclass_type", "dict_type")
_FLAGS = ("bool_type", "bool_parsing")
_WHOLE = ("int_type", "int_parsing", "int_from_float")
_NUMBERS = ("float_type", "float_parsing")


def value_reason(details: Mapping[str, Any], unit: str = "") -> str:
    """Describe an error of pydantic, without repeating the value.

    Args:
        details: one of `pydantic.ValidationError.errors`.
        unit: the unit of a number, to append to "number".

    Example:
        >>> value_reason({"type": "string_type", "msg": "", "loc": (), "input": 5})
        'must be text, not a number: write it in quotes'
    """
    kind, value = details["type"], details.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "string_type":
        return _text_wanted(value)
    if kind in _MAPPINGS:
        return _mapping_wanted(value)
    if kind == "list_type":
        return f"must be a list, not {_kind(value)}"
    if kind in _FLAGS:
        return f"must be true or false{', without quotes' if isinstance(value, str) else ''}"
    if kind in (*_WHOLE, *_NUMBERS):
        of = "whole number" if kind in _WHOLE else "number"
        bare = ", without unit or quotes" if isinstance(value, str) else ""
        return f"must be a {of}{unit}{bare}"
    if kind == "string_too_short" and value == "":
        return "must not be empty"
    message = str(details["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.replace("Input should be", "must be").replace("Input should", "must")


def _text_wanted(value: object) -> str:
    if isinstance(value, bool):
        return (
            "must be text: YAML reads yes, no, on, off, true and false without quotes as true or"
            " false: write it in quotes"
        )
    if isinstance(value, int | float | date):
        return f"must be text, not {_kind(value)}: write it in quotes"
    return f"must be text, not {_kind(value)}"


def _mapping_wanted(value: object) -> str:
    if value is None:
        return "must be a mapping; write {} for an empty one"
    return f"must be a mapping, lines of 'key: value', not {_kind(value)}"


def _kind(value: object) -> str:
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return "a date" if isinstance(value, date) else kinds.get(type(value), "another value")


def dotted(location: Location) -> str:
    """Return a path in the document as text.

    >>> dotted(("common", "periodic-tasks", "Sweep", 0, "args"))
    'common.periodic-tasks.Sweep[0].args'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text

"""Error messages for invalid values in the configuration file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

_MAPPINGS = ("model_type", "model_attributes_type", "dataclass_type", "dict_type")
_FLAGS = ("bool_type", "bool_parsing")
_WHOLE = ("int_type", "int_parsing", "int_from_float")
_NUMBERS = ("float_type", "float_parsing")
_LONGEST_ADVICE = 80


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
    said = str(details["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return said.replace("Input should be", "must be").replace("Input should", "must")


def place_reason(location: Sequence[Any], details: Mapping[str, Any]) -> str:
    """Like `value_reason`, with advice that depends on the place in the file.

    >>> place_reason(("vos",), {"type": "list_type", "msg": "", "loc": (), "input": "lhcb"})
    'must be a list: write [lhcb]'
    """
    kind, value = details["type"], details.get("input")
    advice = ""
    match tuple(location):
        case ("ceilings", *_) if kind == "greater_than_equal":
            return (
                "must be at least 1; leave it out to have no ceiling. To stop a class, pause it: "
                "task-run pause --help"
            )
        case ("vos",) if kind == "list_type":
            return _vos_wanted(value)
        case (_, *_, "periodic-tasks", _) if kind == "list_type":
            return _entries_wanted(value)
        case (_, *_, "periodic-tasks", _, _, "schedule") if kind in _MAPPINGS:
            advice = _schedule_wanted(value)
        case (_, *_, "tasks", _, "retry-policy") if kind in _MAPPINGS and isinstance(value, str):
            advice = f"{{class: {value}}}"
        case (
            *above,
            "soft-timeout" | "hard-timeout" | "cpu-limit" | "jitter" | "misfire-grace" | "interval",
        ) if "args" not in above:
            return value_reason(details, " of seconds, such as 60")
    if advice and len(advice) <= _LONGEST_ADVICE:
        return f"must be a mapping: write {advice}"
    return value_reason(details)


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


def _vos_wanted(value: object) -> str:
    if isinstance(value, str):
        return f"must be a list: write [{value:.{_LONGEST_ADVICE}}]"
    return "must be a list, such as [lhcb, gridpp]; write [] for an empty one"


def _entries_wanted(value: object) -> str:
    if isinstance(value, dict) and value:
        return "must be a list of entries: put '- ' before each, or [ ] around them"
    return "must be a list of entries: [] for none, [{}] for one as the class has it"


def _schedule_wanted(value: object) -> str:
    if isinstance(value, str):
        name = "RRuleSchedule" if "FREQ=" in value.upper() else "CronSchedule"
        return f"{{class: {name}, arg: {json.dumps(value, ensure_ascii=False)}}}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{{class: IntervalSecondsSchedule, arg: {json.dumps(value)}}}"
    return ""


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

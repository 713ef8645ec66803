"""Values as plain data and texts as one line, for people and for JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from nonet.base import late_pydantic as pydantic

_NAMED = 10


def printable(text: str) -> str:
    r"""Escape control characters and line breaks.

    >>> printable("caf\xe9 \x1b[31m \udc80")
    'café \\x1b[31m \\udc80'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "worker"), counted(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def few(items: Sequence[object]) -> str:
    """Name the first items of a list in a sentence.

    >>> few(["a", "b"]), few(range(100))
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 90 more')
    """
    more = [f"{len(items) - _NAMED} more"] if len(items) > _NAMED else []
    return ", ".join([*map(str, items[:_NAMED]), *more])


def plain(value: Any) -> Any:
    """Convert a value to JSON types; times become ISO 8601, aware ones in UTC.

    >>> plain({"at": datetime(2026, 7, 1, tzinfo=UTC), "names": (b"a", b"\\xff")})
    {'at': '2026-07-01T00:00:00Z', 'names': ['a', '\\udcff']}
    """
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case datetime():
            return _utc(value).isoformat().replace("+00:00", "Z")
        case Mapping():
            return {_key(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if hasattr(value, "__struct_fields__"):  # msgspec's
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "model_fields_set"):  # pydantic's; importing it is slow
        return {name: plain(item) for name, item in value}
    return str(value)


def instant(seconds: float | None) -> datetime | None:
    """Return the instant of a Unix time; None if it is missing, zero or out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (OverflowError, ValueError, OSError, TypeError):
        return None


def is_model(cls: type) -> bool:
    """Return whether a class is a pydantic model, without importing pydantic for the answer."""
    if "pydantic" not in sys.modules:
        return False  # a module that defines a model imports pydantic
    return issubclass(cls, pydantic.BaseModel)


def _key(key: Any) -> str:
    made = plain(key)
    return made if isinstance(made, str) else json.dumps(made)


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC) if value.tzinfo else value

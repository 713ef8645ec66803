"""Print tables and fields for people, and JSON for programs.

Control characters in the text of tasks (errors, names, results) are escaped, so that tasks cannot
move the cursor or style the output.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from pprint import pformat
from typing import TYPE_CHECKING, Any
from unicodedata import combining, east_asian_width

import typer

from nonet.base.amounts import format_bytes

if TYPE_CHECKING:
    from nonet.messages.message import Usage


def print_json(value: Any) -> None:
    """Print one line of JSON; bytes that are not UTF-8 become surrogate escapes."""
    typer.echo(json.dumps(plain(value), allow_nan=False))


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, nothing: str) -> None:
    """Print mappings with the same keys as a JSON array, or as a table.

    Args:
        nothing: printed on stderr in place of an empty table.
    """
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        typer.echo(nothing, err=True)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one field per line; leave out fields without a value."""
    filled = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    print_table([], list(filled.items()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table without borders, and without folding cells: `cut` works, and ids stay whole."""
    head = [[name.replace("_", " ") for name in columns]] if columns else []
    table = head + [[cell(value) for value in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip_longest(*table, fillvalue="")]
    for number, row in enumerate(table):
        padded = (
            text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=False)
        )
        line = "  ".join(padded).rstrip()
        typer.echo(typer.style(line, bold=True) if columns and not number else line)


def _width(text: str) -> int:
    """Return the number of terminal columns that a text takes.

    >>> _width("Tokyo"), _width("東京")
    (5, 4)
    """
    if text.isascii():
        return len(text)
    marks = sum(combining(char) != 0 for char in text)
    return len(text) - marks + sum(east_asian_width(char) in "WF" for char in text)


def usage_in_words(usage: Usage) -> str:
    """Format the known resource usage of an attempt.

    >>> from nonet.messages.message import Usage
    >>> usage_in_words(Usage(61.25, 12.5, 200 * 2**20)), usage_in_words(Usage(0.5))
    ('61.250 s, CPU 12.500 s, memory 200 MiB', '0.500 s')
    """
    return ", ".join(
        word
        for word in (
            f"{usage.wall:.3f} s" if usage.wall is not None else "",
            f"CPU {usage.cpu:.3f} s" if usage.cpu is not None else "",
            f"memory {format_bytes(usage.rss)}" if usage.rss is not None else "",
        )
        if word
    )


def print_result(result: Any) -> None:
    """Print the result of a task for people."""
    print_text(result if isinstance(result, str) else pformat(result))


def print_text(text: str) -> None:
    """Print text of a task with its line breaks."""
    typer.echo("\n".join(printable(line) for line in text.split("\n")))


def cell(value: Any) -> str:
    """Format a value for a table.

    >>> cell(datetime(2026, 7, 1, 12, 0, 5, 250, tzinfo=UTC)), cell(0.5), cell(None)
    ('2026-07-01 12:00:05Z', '0.5', '-')
    """
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case float():
            return f"{value:.1f}"
        case str():
            return printable(value)
        case _:
            return printable(json.dumps(plain(value)))


def printable(text: str) -> str:
    r"""Escape control characters and line breaks.

    >>> printable("caf\xe9 \x1b[31m \udc80")
    'café \\x1b[31m \\udc80'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def plain(value: Any) -> Any:
    """Convert a value to JSON types; times become ISO 8601 in UTC.

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


def _key(key: Any) -> str:
    made = plain(key)
    return made if isinstance(made, str) else json.dumps(made)


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC) if value.tzinfo else value

"""Print tables and fields for people, and JSON for programs.

A table on a terminal fits its width (`layout`) and has colours; in a pipe it has all columns in
full, so that `cut` and `grep` work. Control characters in the text of tasks (errors, names,
results) are escaped, so that tasks cannot move the cursor or style the output.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from operator import attrgetter
from pprint import pformat
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import combining, east_asian_width

import typer

from nonet.base.amounts import format_bytes
from nonet.base.durations import span
from nonet.base.plain import plain, printable

if TYPE_CHECKING:
    from nonet.base.messages.message import Usage


# Between columns.
_GAP = "  "
# What `cell` makes of no value. A column with nothing else is left out on a terminal.
_EMPTY = "-"
# Columns up to this width are never wrapped: times, names, amounts.
_NARROW = 20
# A longer word of the last column does not hide other columns: it sticks out of its line instead.
_LONG_WORD = 40
# Ids of tasks, fingerprints and UUIDs: what may be shortened outside of the first column.
_ID = re.compile(r"[a-km-np-z2-9]{20}|[0-9a-f]{12,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STYLES = re.compile(r"\x1b\[[0-9;]*m")

# Columns and fields whose words have colours.
_COLOURED = {"state", "status", "level"}
_COLOURS = {
    **dict.fromkeys(("done", "fired", "dispatched"), "green"),
    **dict.fromkeys(("running", "working"), "cyan"),
    **dict.fromkeys(("waiting", "blocked", "delayed", "paused", "pending", "hint"), "yellow"),
    **dict.fromkeys(("dying", "draining", "vetoing", "silent", "partial"), "yellow"),
    **dict.fromkeys(("dead", "failed", "lost", "broken", "problem"), "red"),
}

# Contains "json" once this process has printed JSON: a failed command then prints no error as JSON.
PRINTED: set[str] = set()


def print_json(value: Any) -> None:
    """Print one line of JSON; bytes that are not UTF-8 become surrogate escapes."""
    PRINTED.add("json")
    typer.echo(json.dumps(plain(value), allow_nan=False))


def print_answer(document: Any, text: str, as_json: bool) -> None:
    """Print what a command did: a document for programs, or a line for people."""
    if as_json:
        print_json(document)
    else:
        echo(text)


def print_rows(
    rows: Sequence[Mapping[str, Any]], as_json: bool, nothing: str, *, least: Sequence[str] = ()
) -> None:
    """Print mappings with the same keys as a JSON array, or as a table.

    Args:
        nothing: printed on stderr in place of an empty table.
        least: the columns that a narrow terminal hides first; see `layout`.
    """
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows], least=least)
    else:
        print_line(nothing, err=True)


def print_view(
    found: Any, as_json: bool, columns: str, nothing: str = "", *, least: Sequence[str] = ()
) -> None:
    """Print a view or a page of views: for programs as the API answers, for people some fields.

    Args:
        columns: the attributes that people see, each as ``attribute`` or ``heading=attribute``;
            ``heading=@attribute`` is how long ago it was.
        nothing: printed on stderr in place of an empty table.
        least: the columns that a narrow terminal hides first; see `layout`.
    """
    if as_json:
        print_json(found)
        return
    pairs = [(name, path or name) for name, _, path in (x.partition("=") for x in columns.split())]
    if not hasattr(found, "items"):
        print_fields({name: _value(found, path) for name, path in pairs})
        return
    rows = [{name: _value(item, path) for name, path in pairs} for item in found.items]
    print_rows(rows, False, nothing, least=least)
    if found.cursor:
        counted = getattr(found, "counted", "")
        most = "--limit or --search" if counted else "--limit"
        shown = counted or "there are more"
        echo(f"{shown}: raise {most}, or add --cursor {found.cursor}", err=True)


def _value(view: Any, path: str) -> Any:
    value = attrgetter(path.lstrip("@"))(view)
    if path.startswith("@") and value is not None:
        return span(max(0.0, (datetime.now(UTC) - value).total_seconds()))
    return value


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one field per line; leave out fields without a value."""
    filled = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    bold = has_colours()
    table = [
        (_heading(name, bold), _coloured(name, cell(value), bold)) for name, value in filled.items()
    ]
    _print_lines(layout([], table, terminal_width()).lines)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, least: Sequence[str] = ()
) -> None:
    """Print a table without borders, with a heading if the columns have names.

    Args:
        least: the columns that a narrow terminal hides first; see `layout`.
    """
    bold = has_colours()
    table = [
        [_coloured(name, cell(value), bold) for name, value in zip_longest(columns, row)]
        if columns
        else [cell(value) for value in row]
        for row in rows
    ]
    heading = [_heading(name.replace("_", " "), bold) for name in columns]
    hiding = [_heading(name.replace("_", " "), bold) for name in least]
    made = layout(heading, table, terminal_width(), hiding)
    _print_lines(made.lines)
    if made.hidden:
        names = _STYLES.sub("", ", ".join(made.hidden))
        print_line(f"hidden, as the terminal is narrow: {names}; --json shows all", err=True)


class Layout(NamedTuple):
    """The lines of a table, and the names of non-empty columns that did not fit."""

    lines: list[str]
    hidden: list[str]


def layout(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    least: Sequence[str] = (),
) -> Layout:
    """Arrange the cells of a table in lines.

    Without a width all cells are shown in full. Else the lines fit the width: columns that are
    empty in all rows are left out, long texts wrap under themselves between words, ids beyond the
    first column are shortened, and columns are hidden, one after the other, until the rest fits.
    The first column stays whole, because it is what the user types next. A word that is longer
    than its column sticks out of it, so that it can be copied.

    Args:
        columns: the heading; empty for a table without one.
        width: columns of the terminal; None for a pipe.
        least: the columns that are hidden first, in this order; then the others but for the first
            two and the last, from right to left. Those that still fit in the end are kept.

    >>> layout(["id", "due", "note"], [("a1", "-", "waits for the mutex of a2")], 26).lines
    ['id  note', 'a1  waits for the mutex of', '    a2']
    """
    table = [list(columns), *rows] if columns else list(rows)
    cells = [list(column) for column in zip_longest(*table, fillvalue="")]
    if width is None:
        return Layout(_lines(cells, [max(map(_width, column)) for column in cells]), [])
    body = 1 if columns else 0
    shown = [column for n, column in enumerate(cells) if not n or {*column[body:]} - {_EMPTY, ""}]
    hidden: list[str] = []
    if columns and _fitted(shown, width) is None:
        whole = [shown[0], *map(_with_short_ids, shown[1:])]
        hidden = _hidden(whole, width, least)
        shown = [column for column in whole if column[0] not in hidden]
    return Layout(_lines(shown, _fitted(shown, width) or _floors(shown)), hidden)


def _hidden(cells: list[list[str]], width: int, least: Sequence[str]) -> list[str]:
    """Return the names of the columns to hide; see `layout`."""

    def fits() -> bool:
        return _fitted([column for column in cells if column[0] not in hidden], width) is not None

    names = [column[0] for column in cells]
    first = [name for name in least if name in names[1:]]
    hidden: list[str] = []
    for name in [*first, *(name for name in names[-2:1:-1] if name not in first)]:
        if fits():
            break
        hidden.append(name)
    for name in hidden[-2::-1]:  # a wide column that went later may have made room for a narrow one
        hidden.remove(name)
        if not fits():
            hidden.append(name)
    return [name for name in names if name in hidden]


def _fitted(cells: list[list[str]], width: int) -> list[int] | None:
    """Return the widths of columns of which the widest give way; None if they do not fit."""
    widths = [max(map(_width, column)) for column in cells]
    floors = _floors(cells)
    room = width - len(_GAP) * (len(cells) - 1)
    if sum(floors) > room:
        return None
    while sum(widths) > room:
        wide = [n for n, floor in enumerate(floors) if widths[n] > floor]
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _floors(cells: list[list[str]]) -> list[int]:
    """Return how narrow each column may become; the first and narrow ones keep their width."""
    floors = []
    for number, column in enumerate(cells):
        widest = max(map(_width, column))
        if number and widest > _NARROW:
            longest = max(map(_longest_word, column))
            is_last = number == len(cells) - 1
            widest = max(_NARROW, min(longest, _LONG_WORD) if is_last else longest)
        floors.append(widest)
    return floors


def _longest_word(text: str) -> int:
    """Return the width of the longest word. A short command is one word, so it can be copied."""
    if text.startswith("task-") and _width(text) <= _LONG_WORD:
        return _width(text)
    return max(map(_width, text.split()), default=0)


def _with_short_ids(column: list[str]) -> list[str]:
    """Shorten the ids of a column to prefixes that are unique in it."""
    ids = {text for text in column if _ID.fullmatch(text)}
    length = next(n for n in range(8, 99) if len({id[:n] for id in ids}) == len(ids))
    return [f"{text[:length]}…" if text in ids else text for text in column]


def _lines(cells: list[list[str]], widths: list[int]) -> list[str]:
    lines = []
    for row in zip(*cells, strict=True):
        parts = [_wrapped(text, width) for text, width in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            padded = (
                text + " " * (width - _width(text))
                for text, width in zip(line, widths, strict=True)
            )
            lines.append(_GAP.join(padded).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text between words; spaces inside of its lines stay as they are."""
    if _width(text) <= width:
        return [text]
    lines = [""]
    for word in re.findall(r"\S+\s*", text):
        if lines[-1] and _width(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _width(text: str) -> int:
    """Return the number of terminal columns that a text takes.

    >>> _width("Tokyo"), _width("東京"), _width("\x1b[31mdead\x1b[0m")
    (5, 4, 4)
    """
    if "\x1b" in text:  # a style of ours: `cell` escapes those of tasks
        text = _STYLES.sub("", text)
    if text.isascii():
        return len(text)
    marks = sum(combining(char) != 0 for char in text)
    return len(text) - marks + sum(east_asian_width(char) in "WF" for char in text)


def terminal_width(*, err: bool = False) -> int | None:
    """Return the width that lines should fit: COLUMNS, else that of the terminal.

    None if stdout, or stderr with `err`, is not a terminal; 80 if it does not know its width.
    """
    file = sys.stderr if err else sys.stdout
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    if is_set or (file is not None and file.isatty()):
        return shutil.get_terminal_size((80, 24)).columns
    return None


def has_colours() -> bool:
    """Return whether stdout shall have colours: it is a terminal, and nothing speaks against it.

    A non-empty NO_COLOR forbids them, else a non-empty FORCE_COLOR demands them, even in a pipe.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    at_terminal = sys.stdout is not None and sys.stdout.isatty()
    return at_terminal and os.environ.get("TERM") != "dumb"


def _coloured(name: str, text: str, on: bool) -> str:
    colour = _COLOURS.get(text.lower()) if on and name in _COLOURED else None
    return typer.style(text, fg=colour) if colour else text


def _heading(name: str, on: bool) -> str:
    """Return a bold name. Each word is bold by itself, so that they can be wrapped."""
    return " ".join(typer.style(word, bold=True) for word in name.split()) if on else name


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line, color=has_colours())


def usage_in_words(usage: Usage) -> str:
    """Format the known resource usage of an attempt.

    >>> from nonet.base.messages.message import Usage
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
    """Print the result of a task for people, with its line breaks and no others."""
    for line in (result if isinstance(result, str) else pformat(result)).split("\n"):
        echo(line)


def echo(line: str = "", *, err: bool = False) -> None:
    """Print a line without wrapping it, so that it can be copied; escape control characters."""
    typer.echo(printable(line), err=err)


def print_line(text: str, *, err: bool = False) -> None:
    """Print a sentence, on a terminal wrapped between words. Control characters are escaped."""
    for line in _fitting(printable(text), terminal_width(err=err)):
        typer.echo(line, err=err)


def print_heading(text: str) -> None:
    """Print a sentence as `print_line` does, bold on a terminal."""
    for line in _fitting(_heading(printable(text), has_colours()), terminal_width()):
        typer.echo(line, color=has_colours())


def _fitting(text: str, width: int | None) -> list[str]:
    return [text] if width is None else _wrapped(text, width)


def clear_screen() -> None:
    """Clear the terminal, if stdout is one."""
    if sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        typer.echo("\x1b[2J\x1b[1;1H", nl=False)


def print_text(text: str) -> None:
    """Print lines, such as a traceback; on a terminal they wrap at their indentation."""
    width = terminal_width()
    for line in map(printable, text.split("\n")):
        words = line.lstrip()
        indent = line[: len(line) - len(words)]
        for part in _fitting(words, width and width - len(indent)):
            typer.echo(indent + part)


def cell(value: Any) -> str:
    """Format a value for a table.

    >>> cell(datetime(2026, 7, 1, 12, 0, 5, 250, tzinfo=UTC)), cell(0.0248), cell(3.0), cell(None)
    ('2026-07-01 12:00:05Z', '0.0248', '3', '-')
    """
    match value:
        case None | "":
            return _EMPTY
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case timedelta():
            return f"{value.total_seconds():.3f} s"
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        case str():
            return printable(value)
        case _:
            return printable(json.dumps(plain(value)))

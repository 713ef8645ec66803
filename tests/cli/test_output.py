"""What commands print is data, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from cli.terminal import TaskRun
from hypothesis import given, settings, strategies as st
from preloaded import PLACES
from pydantic import BaseModel, SecretStr

from nonet.cli import output
from nonet.cli.output import layout, plain, printable
from nonet.tasks.secrecy import MASK, masked_arguments


class Colour(StrEnum):
    RED = "red"


class Login(BaseModel):
    user: str
    word: SecretStr


@dataclass
class Point:
    x: int
    at: datetime


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**80, 2**80),
        (float("-inf"), "-inf"),
        (Colour.RED, "red"),
        (Decimal("1.10"), "1.10"),
        (Path("/a"), "/a"),
        (b"a\xff", "a\udcff"),
        ({1}, [1]),
        ({1: 2, None: 3, Colour.RED: 4, (1, 2): 5}, {"1": 2, "null": 3, "red": 4, "[1, 2]": 5}),
        (datetime(2026, 7, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2026-07-01T00:00:00Z"),
        (datetime(2026, 7, 1), "2026-07-01T00:00:00"),
        (Point(1, datetime(2026, 7, 1, tzinfo=UTC)), {"x": 1, "at": "2026-07-01T00:00:00Z"}),
        (Login(user="me", word=SecretStr("s3cret")), {"user": "me", "word": "**********"}),
    ],
)
def test_plain(value: Any, expected: Any) -> None:
    """Every value has a form in JSON; secrets stay masked."""
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


@given(st.text())
def test_printable_text_is_harmless(text: str) -> None:
    """Any text becomes one printable line that can be encoded."""
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()


class Model(BaseModel):
    host: str
    words: list[SecretStr]
    login: Login


class Own:
    def __init__(self, host: str, word: SecretStr, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("cls", "arguments", "shown"),
    [
        (Model, {"host": "h"}, {"host": "h"}),
        (Model, {"words": ["s"]}, {"words": MASK}),
        (Model, {"login": {"user": "me", "word": "s"}}, {"login": MASK}),
        (Model, {"gone": "s"}, {"gone": MASK}),
        (Own, {"host": "h", "word": "s", "more": "m"}, {"host": "h", "word": MASK, "more": "m"}),
        (Own, {"extra": "e", "db_password": "s"}, {"extra": "e", "db_password": MASK}),
        (Own, {"extra": [{"access_key": "s"}]}, {"extra": [{"access_key": MASK}]}),
        (None, {"host": "h"}, {"host": MASK}),
    ],
)
def test_secret_arguments_are_masked(
    cls: type | None, arguments: dict[str, Any], shown: dict[str, Any]
) -> None:
    """A secret is annotated as one, named like one, or unknown to the class."""
    assert masked_arguments(arguments, cls) == shown


@pytest.mark.parametrize(
    "line",
    [
        "logging.getLogger('own').warning(TEXT)",
        "raise ValueError(TEXT)",
        "raise BaseException(TEXT)",
        "threading.Thread(target=lambda: int(TEXT)).start()",
    ],
)
async def test_no_command_shows_a_password(task_run: TaskRun, line: str) -> None:
    """Passwords are masked in log lines, errors and tracebacks, as in a daemon."""
    text = "TEXT = 'to redis://me:s3cret-url@db/0 with s3cret-own'"
    (task_run.home / "talks.py").write_text(f"import logging, threading\n{text}\n{line}\n")
    PLACES.add(str(task_run.home))
    url = task_run.environment["NONET_REDIS_URL"].replace("//", "//:s3cret-own@")
    variables = {"PYTHONPATH": str(task_run.home), "NONET_REDIS_URL": url}
    for debug in ([], ["--debug"]):
        ended = await task_run("classes", "--tasks", "talks", *debug, **variables)
        assert "to redis://me:***@db/0 with ***" in ended.err
        assert "s3cret" not in ended.err + ended.out


ID = "k3fmx8t2nq7wadh5vz9c"
OTHER = "k3fmx8t2pq7wadh5vz9c"
TEXT = "waits for limiter mailer:smtp, 1 per 600 s, and then for a worker"


@pytest.mark.parametrize(
    ("columns", "rows", "width", "lines"),
    [
        pytest.param(
            ["id", "due", "note"],
            [(ID, "-", TEXT)],
            None,
            ["id                    due  note", f"{ID}  -    {TEXT}"],
            id="a pipe has empty columns and whole lines",
        ),
        pytest.param(
            ["id", "due", "state"],
            [("a", "-", "dead"), ("b", "-", "done")],
            80,
            ["id  state", "a   dead", "b   done"],
            id="an empty column is left out",
        ),
        pytest.param(["id", "due"], [("-", "-")], 80, ["id", "-"], id="the first column is kept"),
        pytest.param(
            ["kind", "what", "next"],
            [("lag", "two words " * 4, "three words each " * 4)],
            66,
            [
                "kind  what                           next",
                "lag   two words two words two words  three words each three words",
                "      two words                      each three words each three",
                "                                     words each",
            ],
            id="texts wrap under themselves, the widest first",
        ),
        pytest.param(
            ["id", "task", "parent"],
            [("a", "b:C", ID), ("d", "b:C", OTHER)],
            29,
            ["id  task  parent", "a   b:C   k3fmx8t2n…", "d   b:C   k3fmx8t2p…"],
            id="ids beyond the first column are shortened, and stay different",
        ),
        pytest.param(
            ["id", "task", "note"],
            [("x" * 60, "b:C", "y" * 60)],
            40,
            [f"id{' ' * 60}task  note", f"{'x' * 60}  b:C   {'y' * 60}"],
            id="no word is broken",
        ),
        pytest.param(
            ["kind", "finding", "next"],
            [("lock", TEXT, "task-run cancel invoice-7-again")],
            60,
            [
                "kind  finding                next",
                "lock  waits for limiter      task-run cancel invoice-7-again",
                "      mailer:smtp, 1 per",
                "      600 s, and then for a",
                "      worker",
            ],
            id="a command stays in one line",
        ),
        pytest.param(
            [],
            [("error", "ValueError: no limiter"), ("id", ID)],
            26,
            ["error  ValueError: no", "       limiter", f"id     {ID}"],
            id="fields have no heading",
        ),
        pytest.param(
            ["id", "note"],
            [("東京", "\x1b[31mdead\x1b[0m"), ("a", "b")],
            80,
            ["id    note", "東京  \x1b[31mdead\x1b[0m", "a     b"],
            id="wide characters count twice, and styles do not count",
        ),
    ],
)
def test_layout(
    columns: list[str], rows: list[tuple[str, ...]], width: int | None, lines: list[str]
) -> None:
    """A table keeps what matters most within its width."""
    assert layout(columns, rows, width, []) == (lines, [])


@pytest.mark.parametrize(
    ("id", "width", "least", "heading", "hidden"),
    [
        pytest.param(ID, 36, [], "id task state", ["stream", "try"], id="from the right"),
        pytest.param(ID, 48, ["stream"], "id task try state", ["stream"], id="the least first"),
        pytest.param("a", 23, ["try"], "id task try state", ["stream"], id="none in vain"),
    ],
)
def test_a_narrow_table_hides_columns(
    id: str, width: int, least: list[str], heading: str, hidden: list[str]
) -> None:
    """The first and the last column stay, and a narrow one if hiding a wide one is enough."""
    columns = ["id", "task", "stream", "try", "state"]
    columns = ["id", "task", "try", "stream", "state"] if "try" in least else columns
    row = {"id": id, "task": "b:C", "stream": "normal:small", "try": "1", "state": "dead"}
    made = layout(columns, [tuple(row[name] for name in columns)], width, least)
    assert (made.lines[0].split(), made.hidden) == (heading.split(), hidden)
    assert made.lines[1].split() == [row[name] for name in heading.split()]


_WORD = st.text("ab1", min_size=1, max_size=9)
_TEXT = st.lists(_WORD, max_size=30).map(" ".join)


@settings(max_examples=30)
@given(st.lists(st.tuples(_WORD, _TEXT, _TEXT, _TEXT), min_size=1), st.integers(91, 200))
def test_a_table_fits_and_loses_no_word(rows: list[tuple[str, ...]], width: int) -> None:
    """Texts of any length wrap until each line fits, and each word is still there, whole."""
    made = layout([], rows, width)
    assert made.hidden == [] and max(map(len, made.lines)) <= width
    words = sorted(word for row in rows for text in row for word in text.split())
    assert sorted(word for line in made.lines for word in line.split()) == words


@pytest.mark.parametrize(
    ("variables", "at_terminal", "coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colours(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    at_terminal: bool,
    coloured: bool,
) -> None:
    """States are coloured on a terminal, or where the environment demands it; JSON never is."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: at_terminal)
    rows = [{"id": "a", "state": "dead", "error": "dead"}]
    output.print_rows(rows, False, "")
    output.print_fields(rows[0])
    output.print_heading("two words")
    table = capsys.readouterr().out
    output.print_rows(rows, True, "")
    assert ("\x1b[31mdead\x1b[0m" in table, "\x1b[1m" in table) == (coloured, coloured)
    assert table.count("\x1b[31m") == 2 * coloured and "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "at_terminal", "width"),
    [("", False, None), ("60", False, 60), ("60", True, 60), ("", True, 80), ("wide", False, None)],
)
def test_columns_or_the_terminal_decide_the_width(
    monkeypatch: pytest.MonkeyPatch, columns: str, at_terminal: bool, width: int | None
) -> None:
    """COLUMNS comes first; a terminal may not know its width, and a pipe has none."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: at_terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert output.terminal_width() == width


def test_hidden_columns_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line on stderr names the columns that a narrow terminal hides."""
    monkeypatch.setenv("COLUMNS", "30")
    row = {"id": ID, "task": "b:C", "oldest_seconds": 12.5, "state": "dead"}
    output.print_rows([row], False, "", least=["oldest_seconds"])
    shown = capsys.readouterr()
    assert "12.5" not in shown.out
    assert shown.err == ("hidden, as the terminal is\nnarrow: oldest seconds; --json\nshows all\n")


def test_sentences_and_tracebacks_wrap_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They keep their indentation on a terminal, and are whole in a pipe."""
    text = f"Traceback:\n    {TEXT}\nValueError"
    monkeypatch.setenv("COLUMNS", "44")
    output.print_text(text)
    output.print_line(TEXT, err=True)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "Traceback:",
        "    waits for limiter mailer:smtp, 1 per 600",
        "    s, and then for a worker",
        "ValueError",
    ]
    assert shown.err.splitlines() == [
        "waits for limiter mailer:smtp, 1 per 600 s,",
        "and then for a worker",
    ]
    monkeypatch.delenv("COLUMNS")
    output.print_text(text)
    output.print_line(TEXT, err=True)
    assert capsys.readouterr() == (f"{text}\n", f"{TEXT}\n")

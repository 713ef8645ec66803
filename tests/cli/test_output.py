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
from hypothesis import given, strategies as st
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
    """Every value has a form in JSON; secrets keep theirs."""
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


@given(st.text())
def test_printable_text_is_harmless(text: str) -> None:
    """Any text becomes one printable line that any encoding of the terminal's kind takes."""
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
    """Masked is what is annotated as secret, named like one, or not known to the class."""
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
@pytest.mark.parametrize("debug", [[], ["--debug"]])
async def test_no_command_shows_a_password(
    task_run: TaskRun, tmp_path: Path, line: str, debug: list[str]
) -> None:
    """What it logs, refuses or ends with is masked as in a daemon, whatever raised it."""
    text = "TEXT = 'to redis://me:s3cret-url@db/0 with s3cret-own'"
    (tmp_path / "talks.py").write_text(f"import logging, threading\n{text}\n{line}\n")
    paths = f"{Path(__file__).parent.parent}:{tmp_path}"
    url = task_run.environment["NONET_REDIS_URL"].replace("//", "//:s3cret-own@")
    variables = {"PYTHONPATH": paths, "NONET_REDIS_URL": url}
    ended = await task_run("classes", "--tasks", "talks", *debug, **variables)
    assert "to redis://me:***@db/0 with ***" in ended.err
    assert "s3cret" not in ended.err + ended.out


ID = "k3fmx8t2nq7wadh5vz9c"
OTHER = "k3fmx8t2pq7wadh5vz9c"
TEXT = "waits for limiter mailer:smtp, 1 per 600 s, and then for a worker"


@pytest.mark.parametrize(
    ("columns", "rows", "width", "least", "lines", "hidden"),
    [
        pytest.param(
            *(["id", "due"], [("a", "-"), ("b", "-")], None, []),
            *(["id  due", "a   -", "b   -"], []),
            id="a pipe has empty columns too",
        ),
        pytest.param(
            *(["id", "note"], [(ID, TEXT)], None, []),
            *(["id                    note", f"{ID}  {TEXT}"], []),
            id="a pipe has whole lines",
        ),
        pytest.param(
            *(["id", "due", "state"], [("a", "-", "dead"), ("b", "-", "done")], 80, []),
            *(["id  state", "a   dead", "b   done"], []),
            id="an empty column is left out",
        ),
        pytest.param(
            *(["id", "due"], [("-", "-")], 80, []),
            *(["id", "-"], []),
            id="the first column is kept",
        ),
        pytest.param(
            *(["id", "note"], [("a", TEXT), ("b", "x")], 40, []),
            [
                "id  note",
                "a   waits for limiter mailer:smtp, 1 per",
                "    600 s, and then for a worker",
                "b   x",
            ],
            [],
            id="a text wraps under itself",
        ),
        pytest.param(
            *(["kind", "what", "next"], [("lag", "two words " * 4, "three words each " * 4)]),
            *(66, []),
            [
                "kind  what                           next",
                "lag   two words two words two words  three words each three words",
                "      two words                      each three words each three",
                "                                     words each",
            ],
            [],
            id="the widest gives way first",
        ),
        pytest.param(
            *(["id", "task", "parent"], [("a", "b:C", ID), ("d", "b:C", OTHER)], 29, []),
            ["id  task  parent", "a   b:C   k3fmx8t2n…", "d   b:C   k3fmx8t2p…"],
            [],
            id="ids beyond the first column are shortened, and stay different",
        ),
        pytest.param(
            *(["id", "task", "stream", "try", "state"], [(ID, "b:C", "normal:small", "1", "dead")]),
            *(36, []),
            ["id                    task  state", f"{ID}  b:C   dead"],
            ["stream", "try"],
            id="columns go from the right, but for the last",
        ),
        pytest.param(
            *(["id", "task", "stream", "try", "state"], [(ID, "b:C", "normal:small", "1", "dead")]),
            *(48, ["stream"]),
            ["id                    task  try  state", f"{ID}  b:C   1    dead"],
            ["stream"],
            id="the least columns go first",
        ),
        pytest.param(
            *(
                ["id", "task", "try", "stream", "state"],
                [("a", "b:C", "1", "normal:small", "dead")],
            ),
            *(23, ["try"]),
            ["id  task  try  state", "a   b:C   1    dead"],
            ["stream"],
            id="a narrow column stays if a wide one has made room",
        ),
        pytest.param(
            *(["id", "task", "note"], [("x" * 60, "b:C", "y" * 60)], 40, []),
            [f"id{' ' * 60}task  note", f"{'x' * 60}  b:C   {'y' * 60}"],
            [],
            id="no word is broken",
        ),
        pytest.param(
            *(["kind", "finding", "next"], [("lock", TEXT, "task-run cancel invoice-7-again")]),
            *(60, []),
            [
                "kind  finding                next",
                "lock  waits for limiter      task-run cancel invoice-7-again",
                "      mailer:smtp, 1 per",
                "      600 s, and then for a",
                "      worker",
            ],
            [],
            id="a command stays in one line",
        ),
        pytest.param(
            *([], [("error", f"ValueError: {TEXT}"), ("id", ID)], 40, []),
            [
                "error  ValueError: waits for limiter",
                "       mailer:smtp, 1 per 600 s, and",
                "       then for a worker",
                f"id     {ID}",
            ],
            [],
            id="fields have no heading",
        ),
        pytest.param(
            *(["id", "note"], [("東京", "\x1b[31mdead\x1b[0m"), ("a", "b")], 80, []),
            ["id    note", "東京  \x1b[31mdead\x1b[0m", "a     b"],
            [],
            id="what a character takes is counted, and a style is not",
        ),
    ],
)
def test_layout(
    columns: list[str],
    rows: list[tuple[str, ...]],
    width: int | None,
    least: list[str],
    lines: list[str],
    hidden: list[str],
) -> None:
    """A table keeps what matters most within its width."""
    assert layout(columns, rows, width, least) == (lines, hidden)


_WORD = st.text("ab1", min_size=1, max_size=9)
_TEXT = st.lists(_WORD, max_size=30).map(" ".join)


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
def test_the_width_is_that_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str, at_terminal: bool, width: int | None
) -> None:
    """COLUMNS decides, else the terminal, which may not know its width; a pipe has none."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: at_terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert output.terminal_width() == width


def test_what_a_narrow_terminal_hides_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user learns which columns are missing, on stderr."""
    monkeypatch.setenv("COLUMNS", "30")
    row = {"id": ID, "task": "b:C", "oldest_seconds": 12.5, "state": "dead"}
    output.print_rows([row], False, "", least=["oldest_seconds"])
    shown = capsys.readouterr()
    assert "12.5" not in shown.out
    assert shown.err == ("hidden, as the terminal is\nnarrow: oldest seconds; --json\nshows all\n")


def test_sentences_and_tracebacks_wrap_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the width of the terminal, and at their indentation; in a pipe they are whole."""
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

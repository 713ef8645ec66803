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
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from nonet.cli.output import plain, printable
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

"""The fields for the arguments of a class: what each takes, shows, and means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr

from nonet import BaseTask
from nonet.base.messages.message import decode, encode
from nonet.operate.argument_fields import Draft
from nonet.tasks.registry import Registry, TaskClass


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int


@dataclass
class Everything(BaseTask):
    text: str
    number: int
    color: Color
    level: Literal[1, 2]
    point: Point
    password: SecretStr
    at: datetime
    price: Decimal
    data: bytes
    rule: re.Pattern[str]
    login: dict[str, str]
    is_on: bool = True
    names: list[str] = field(default_factory=list)
    note: str | None = None

    async def execute(self) -> None: ...


@pytest.fixture
def everything() -> TaskClass:
    return Registry().add(Everything, "t")


# By argument: what is typed, and the value that the task gets. Empty fields have their defaults.
TYPED: dict[str, tuple[str, Any]] = {
    "text": ("7", "7"),
    "number": ("7", 7),
    "color": ("blue", Color.BLUE),
    "level": ("2", 2),
    "point": ('{"x": 1}', Point(x=1)),
    "password": ("7", SecretStr("7")),
    "at": ("2026-07-01T00:00:00Z", datetime(2026, 7, 1, tzinfo=UTC)),
    "price": ("1.10", Decimal("1.1")),
    "data": ("a\nb", b"a\nb"),
    "rule": ("a+", re.compile("a+")),
    "login": ('{"user": "me"}', {"user": "me"}),
    "is_on": ("false", False),
    "names": ("", []),
    "note": ("", None),
}


def test_what_is_typed_becomes_the_value_of_its_type(everything: TaskClass) -> None:
    """A text is taken as it is, everything else as JSON; an empty field is the default."""
    draft = Draft(everything)
    values = draft.typed({name: text for name, (text, _) in TYPED.items()})
    assert draft.problems(values) == {}
    made = everything.arguments.bind([], values)
    assert {name: getattr(made, name) for name in TYPED} == {n: v for n, (_, v) in TYPED.items()}
    by_name = {item.name: item for item in draft.fields}
    assert by_name["color"].choices == ("red", "blue") and by_name["level"].choices == ("1", "2")
    assert by_name["is_on"].default == "true" and by_name["number"].is_required
    assert [item.name for item in draft.fields if item.is_secret] == ["password"]
    assert by_name["note"].type == "string or null" and by_name["at"].type == "date-time"


def test_only_what_means_the_same_is_shown(everything: TaskClass) -> None:
    """Secrets are not shown, nor values that a browser changes, or that come back as others."""
    values = {name: value for name, (_, value) in TYPED.items()} | {
        "text": "a\r\nb",
        "data": b"\xff",
        "login": {"user": "me", "token": "geheim"},
        "names": ["<b>"],
    }
    stored = decode(encode(everything.arguments.pack(Everything(**values))))
    assert Draft(everything, stored).texts == {}
    draft = Draft(everything, stored, is_revealed=True)
    assert draft.texts == {
        "number": "7",
        "color": "blue",
        "level": "2",
        "point": '{"x": 1}',
        "at": "2026-07-01T00:00:00Z",
        "price": '"1.1"',
        "is_on": "false",
        "names": '["<b>"]',
    }
    assert draft.typed({**draft.texts, "number": "8", "text": ""}) == {"number": 8}


def test_what_is_wrong_is_said_for_each_argument(everything: TaskClass) -> None:
    """A problem has the name of its argument, and the place inside it."""
    draft = Draft(everything)
    found = draft.problems(draft.typed({"number": "many", "point": '{"x": "y"}', "text": ""}))
    assert "valid integer" in found["number"] and found["point"].startswith("x: ")
    assert "text" not in found and found["password"] == "Field required"

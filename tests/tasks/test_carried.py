"""Which context travels, and that inline runs have it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from nonet import BaseTask, RegistrationError, carry_context
from nonet.tasks.carried import carried_texts, enter_carried
from nonet.testing import run_inline

plain: ContextVar[str] = ContextVar("plain")
number: ContextVar[UUID] = ContextVar("number")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("task_id", "'task_id' is reserved: pass another name="),
        ("priority", "'priority' is reserved"),
        ("request-id", "'request-id' must be an identifier"),
        ("x" * 65, "must be an identifier of 1 to 64 characters"),
    ],
)
def test_names_that_mean_something_else_are_refused(name: str, problem: str) -> None:
    """Labels of Nonet, fields of log lines, and what is no identifier."""
    with pytest.raises(RegistrationError, match=problem):
        carry_context(plain, name)


def test_a_name_is_declared_at_one_place() -> None:
    """The error names both; a module that is loaded again declares the same."""
    for variable in (plain, ContextVar[str]("plain")):
        carry_context(variable)
    with pytest.raises(RegistrationError, match=r"twice: at .*test_carried.py:\d+ and at .*test_c"):
        carry_context(plain)


def test_there_are_at_most_sixteen() -> None:
    """So that log lines and messages stay small."""
    declare: Callable[[int], None] = lambda at: carry_context(plain, f"name_{at}")  # noqa: E731
    for at in range(16):
        declare(at)
    with pytest.raises(RegistrationError, match="one more than 16 variables"):
        declare(16)


def test_values_are_text_and_back() -> None:
    """By the function that was named; a default does not travel."""
    default: ContextVar[str] = ContextVar("default", default="x")
    carry_context(number, decode=UUID)
    carry_context(default)
    number.set(UUID(int=7))
    texts = carried_texts()
    assert texts == {"number": "00000000-0000-0000-0000-000000000007"}
    number.set(UUID(int=0))
    enter_carried({**texts, "unknown": "y"})
    assert number.get() == UUID(int=7)


@dataclass
class Tells(BaseTask):
    """Tells its context."""

    async def execute(self) -> list[Any]:
        return [plain.get("none"), number.get()]


async def test_inline_runs_have_the_context_of_the_test() -> None:
    """Or that of explicit labels, as everywhere."""
    carry_context(plain)
    carry_context(number, decode=UUID)
    plain.set("mine")
    labels = {"number": str(UUID(int=9))}
    assert (await run_inline(Tells(), labels=labels)).result == ["mine", UUID(int=9)]

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
def test_a_reserved_or_impossible_name_is_refused(name: str, problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem):
        carry_context(plain, name)


def test_a_name_is_declared_in_one_place() -> None:
    for variable in (plain, ContextVar[str]("plain")):
        carry_context(variable)
    with pytest.raises(RegistrationError, match=r"twice: at .*test_carried.py:\d+ and at .*test_c"):
        carry_context(plain)


def test_at_most_sixteen_variables_are_carried() -> None:
    declare: Callable[[int], None] = lambda at: carry_context(plain, f"name_{at}")  # noqa: E731
    for at in range(16):
        declare(at)
    with pytest.raises(RegistrationError, match="one more than 16 variables"):
        declare(16)


def test_a_value_is_carried_as_text_and_decoded() -> None:
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
    async def execute(self) -> list[Any]:
        return [plain.get("none"), number.get()]


async def test_an_inline_run_has_the_context_of_the_test_or_of_its_labels() -> None:
    carry_context(plain)
    carry_context(number, decode=UUID)
    plain.set("mine")
    labels = {"number": str(UUID(int=9))}
    assert (await run_inline(Tells(), labels=labels)).result == ["mine", UUID(int=9)]

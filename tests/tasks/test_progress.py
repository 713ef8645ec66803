"""`TaskContext.progress` without a broker: what it accepts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nonet import BaseTask, context
from nonet.tasks.execution import TaskContext
from nonet.testing import run_inline

OWN = TaskContext("a", "p:T", 1, 1, {})


class Reports(BaseTask):
    """Reports from a coroutine."""

    async def execute(self) -> None:
        context().progress(0.4, "page 12 of 30")
        context().progress(None, "finishing")


@pytest.mark.parametrize("fraction", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_fraction_outside_its_limits_is_refused(fraction: float) -> None:
    """The message names the limits."""
    with pytest.raises(ValueError, match="must be from 0 to 1, or None"):
        OWN.progress(fraction)


@pytest.mark.parametrize(("text", "size"), [("x" * 61, 61), ("é" * 31, 62)])
def test_a_text_that_is_too_long_is_refused(text: str, size: int) -> None:
    """The message names its length and the limit, in bytes."""
    with pytest.raises(ValueError, match=f"{size} bytes, the limit is 60"):
        OWN.progress(0.5, text)


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, ""), (1, "x" * 60), (None, "é" * 30), (0.5, "\udce9")]
)
def test_the_limits_themselves_are_accepted(fraction: Any, text: str) -> None:
    """Integers, too; text that is not UTF-8 becomes text that Redis can store."""
    own, said = TaskContext("a", "p:T", 1, 1, {}), list[str]()
    own._report = lambda _, text: said.append(text)
    own.progress(fraction, text)
    assert said == [text.replace("\udce9", "\\udce9")]


async def test_without_a_broker_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """So that a task that reports runs in a test, and by hand."""
    caplog.set_level(logging.INFO, "nonet.tasks.execution")
    await run_inline(Reports())
    assert caplog.messages == ["progress: 40 % page 12 of 30", "progress: finishing"]

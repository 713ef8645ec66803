"""`TaskContext.progress` without a broker: what it accepts."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from nonet import BaseTask, context
from nonet.tasks.execution import TaskContext
from nonet.testing import run_inline


class Reports(BaseTask):
    async def execute(self) -> None:
        context().progress(0.4, "page 12 of 30")
        context().progress(None, "finishing")


class Raises:
    def __str__(self) -> str:
        raise RuntimeError

    __float__ = __str__


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ((0.5, "\udce9"), (0.5, "\\udce9")),
        ((-0.01, "x" * 61), (0.0, "x" * 60)),
        ((1.01, "é" * 31), (1.0, "é" * 30)),
        ((math.inf, "x" + "é" * 30), (1.0, "x" + "é" * 29)),
        ((math.nan, {"files": 3, "bad": 1}), (None, {"files": 3, "bad": 1})),
        ((None, {"file": "x" * 1024}), (None, "file=" + "x" * 55)),
        ((None, {"sum": 3 + 4j}), (None, "sum=(3+4j)")),
        (("half", None), (None, "")),
        ((Raises(), Raises()), (None, "(RuntimeError in its text)")),
    ],
)
def test_no_report_of_progress_fails_a_task(said: Any, stored: Any) -> None:
    """A fraction is clamped and a text cut; a mapping that is no small JSON becomes a text."""
    own, reported = TaskContext("a", "p:T", 1, 1, {}), list[Any]()
    own._report = lambda *report: reported.append(report)
    own.progress(*said)
    assert reported == [stored]


async def test_progress_without_a_broker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nonet.tasks.execution")
    await run_inline(Reports())
    assert caplog.messages == ["progress: 40 % page 12 of 30", "progress: finishing"]

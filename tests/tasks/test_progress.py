"""`TaskContext.progress` without a broker: what it accepts."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from nonet import BaseTask, context
from nonet.tasks.execution import TaskContext
from nonet.testing import run_inline

OWN = TaskContext("a", "p:T", 1, 1, {})


class Reports(BaseTask):
    async def execute(self) -> None:
        context().progress(0.4, "page 12 of 30")
        context().progress(None, "finishing")


@pytest.mark.parametrize(
    ("fraction", "text", "reason"),
    [
        *((wrong, "", "from 0 to 1, or None") for wrong in (-0.01, 1.01, math.nan, math.inf)),
        (0.5, "x" * 61, "61 bytes, the limit is 60"),
        (0.5, "é" * 31, "62 bytes, the limit is 60"),
    ],
)
def test_progress_beyond_its_limits_is_refused(fraction: float, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OWN.progress(fraction, text)


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, ""), (1, "x" * 60), (None, "é" * 30), (0.5, "\udce9")]
)
def test_progress_at_its_limits_is_accepted(fraction: Any, text: str) -> None:
    own, said = TaskContext("a", "p:T", 1, 1, {}), list[str]()
    own._report = lambda _, text: said.append(text)
    own.progress(fraction, text)
    assert said == [text.replace("\udce9", "\\udce9")]


async def test_progress_without_a_broker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nonet.tasks.execution")
    await run_inline(Reports())
    assert caplog.messages == ["progress: 40 % page 12 of 30", "progress: finishing"]

"""The life of a task as spans: it has no gaps, and what it waits for now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nonet.base.messages.message import Usage
from nonet.rules.spans import Run, last_run, spans
from nonet.tasks.handles import TaskStatus

BEGIN = datetime(2026, 7, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


LIVES: dict[str, tuple[dict[str, Any], list[Run], list[str]]] = {
    "ran once": (
        {"state": "done", "attempt": 1, "finished": at(9), "usage": Usage(4.0)},
        [],
        ["waited 1: 0-5", "ran 1: 5-9"],
    ),
    "failed, and waits for a lock": (
        {"state": "waiting", "attempt": 1, "blocker": "lock:mutex:job:7"},
        [Run(1, at(2), at(3), "OSError")],
        ["waited 1: 0-2", "ran 1: 2-3 OSError", "waited 2: 3-now lock:mutex:job:7"],
    ),
    "runs, after attempts whose times are not kept": (
        {"state": "running", "attempt": 3, "started": at(8)},
        [],
        ["retried 3: 0-8", "ran 3: 8-now"],
    ),
    "cancelled while it waited for its retry": (
        {"state": "cancelled", "attempt": 1, "finished": at(7)},
        [Run(1, at(2), at(3), "OSError")],
        ["waited 1: 0-2", "ran 1: 2-3 OSError", "waited 1: 3-7"],
    ),
    "began before it was submitted, by the clock of its worker": (
        {"state": "done", "attempt": 1, "started": at(-1), "finished": at(2)},
        [],
        ["ran 1: 0-2"],
    ),
}


@pytest.mark.parametrize(("fields", "runs", "expected"), LIVES.values(), ids=LIVES.keys())
def test_a_life_has_no_gaps(fields: dict[str, Any], runs: list[Run], expected: list[str]) -> None:
    """From the submission to the end, each moment is in one span."""

    def seconds(moment: datetime | None) -> str:
        return "now" if moment is None else f"{(moment - BEGIN).total_seconds():g}"

    status = TaskStatus("a", "m:A", **fields)
    assert [
        f"{one.what} {one.attempt}: {seconds(one.begin)}-{seconds(one.end)} "
        f"{one.error or one.blocker}".strip()
        for one in spans(status, BEGIN, [*runs, *last_run(status)])
    ] == expected

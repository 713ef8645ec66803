"""The life of a task as steps: what each state shows, and which attempts are missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.base.messages.message import ErrorDocument, Usage
from nonet.rules.findings.timeline import timeline
from nonet.tasks.handles import TaskStatus

BEGIN = datetime(2026, 7, 1, 12, tzinfo=UTC)


def failure(attempt: int, text: str = "no") -> ErrorDocument:
    at = (BEGIN + timedelta(minutes=attempt)).timestamp()
    usage = Usage(2.5)
    return ErrorDocument("", "ValueError", text, "Traceback …", attempt, at, usage)


def test_a_retried_task_shows_its_failed_attempts_and_the_next() -> None:
    status = TaskStatus("a", "m:A", "delayed", attempt=2, submitted=BEGIN, due=BEGIN)
    found = timeline(status, [failure(1), failure(2)])
    assert [step.what for step in found.steps] == [
        *("submitted", "attempt 1 failed", "attempt 2 failed", "attempt 3 is due")
    ]
    second = found.steps[2]
    assert (second.lasted, second.error) == (timedelta(seconds=2.5), "ValueError: no")
    assert second.traceback and not found.missing


def test_missing_attempts_are_named() -> None:
    """Redis keeps the last failed attempts of a live task, and none of one that has ended."""
    live = TaskStatus("a", "m:A", "running", attempt=23, started=BEGIN)
    found = timeline(live, [failure(number) for number in range(3, 23)])
    assert found.missing.startswith("Attempts 1 to 2 are not kept")
    ended = TaskStatus("a", "m:A", "dead", attempt=2, finished=BEGIN, error="ValueError: no")
    found = timeline(ended, [], started=BEGIN - timedelta(seconds=3))
    assert found.missing.startswith("Attempt 1 is not kept: only dead letters keep them")
    assert found.steps[-1].lasted == timedelta(seconds=3)
    assert not timeline(TaskStatus("a", "m:A", "done", attempt=1, finished=BEGIN), []).missing


def test_a_dead_letter_keeps_all_attempts() -> None:
    status = TaskStatus("a", "m:A", "dead", attempt=2, finished=BEGIN, traceback="Traceback …")
    rows = [{"attempt": 1, "at": 1.0, "error": "OSError: x"}, {"attempt": 2, "at": 2.0}]
    found = timeline(status, [], rows)
    assert [step.what for step in found.steps] == ["attempt 1 failed", "ended in attempt 2"]
    assert found.steps[-1].traceback and not found.missing

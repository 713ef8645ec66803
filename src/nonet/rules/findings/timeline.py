"""The life of one task as a list of steps, from what is kept of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nonet.base.messages.message import ErrorDocument, Usage
from nonet.rules.reasons import Reason
from nonet.rules.spans import Run, Span, last_run, spans
from nonet.tasks.handles import TaskStatus


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        what: a few words: ``submitted``, ``attempt 2 failed`` …
        attempt: number of the attempt that it is about; 0: none.
        at: when; None: unknown.
        state: the state that it led to, or empty.
        lasted: how long the attempt ran, or the wait took, that this step ended; None: unknown.
        worker: the worker of the attempt, if it is known.
        error: the error of the attempt in one line, or why it waits.
        traceback: of that error.
        usage: resources that the attempt used.
    """

    what: str
    at: datetime | None = None
    attempt: int = 0
    state: str = ""
    lasted: timedelta | None = None
    worker: str = ""
    error: str = ""
    traceback: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The life of a task.

    Attributes:
        steps: in their order.
        spans: the same as spans of time.
        missing: which attempts are not in it, and why; empty: none is missing.
    """

    steps: Sequence[Step]
    spans: Sequence[Span] = ()
    missing: str = ""


def timeline(
    status: TaskStatus,
    failures: Sequence[ErrorDocument],
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    started: datetime | None = None,
) -> Timeline:
    """Return the life of a task.

    Args:
        failures: its failed attempts, as Redis keeps them of live tasks.
        rows: its failed attempts, as its dead letter keeps them.
        started: of an ended task, when its last attempt began.
    """
    steps = [Step("submitted", status.submitted)] if status.submitted else []
    attempts = [_of_row(row) for row in rows] if rows else [_of_failure(item) for item in failures]
    is_ended = status.finished is not None
    known = {number for number, _ in attempts}
    # The end says how the last attempt ended, except for the traceback of a letter.
    if is_ended and status.attempt in known and status.state == "dead":
        attempts = [item for item in attempts if item[0] != status.attempt]
    steps += [step for _, step in attempts]
    steps += _now(status) if not is_ended else [_end(status, started)]
    used = status.attempt - (status.state in ("running", "dying") and status.attempt not in known)
    lost = sorted(set(range(1, used + 1)) - known - ({status.attempt} if is_ended else set()))
    failed = [
        Run(step.attempt, step.at - (step.lasted or timedelta()), step.at, step.error)
        for step in steps
        if step.state == "failed" and step.at
    ]
    parts = spans(status, status.submitted, [*failed, *last_run(status)])
    return Timeline(steps, parts, _missing(lost, is_ended=is_ended))


def _failed(number: int, reason: object) -> str:
    return f"attempt {number} failed{' as expected' if reason == Reason.EXPECTED else ''}"


def _of_failure(found: ErrorDocument) -> tuple[int, Step]:
    line = f"{found.error_type}: {found.error}".removesuffix(": ")
    return found.attempt, Step(
        _failed(found.attempt, found.reason),
        datetime.fromtimestamp(found.at, UTC),
        found.attempt,
        "failed",
        _seconds(found.usage.wall if found.usage else None),
        error=line,
        traceback=found.traceback,
        usage=found.usage,
    )


def _of_row(row: Mapping[str, Any]) -> tuple[int, Step]:
    number, at = int(row.get("attempt") or 0), row.get("at")
    usage = Usage(*(row.get(name) for name in ("wall", "cpu", "rss")))
    return number, Step(
        _failed(number, row.get("reason")),
        datetime.fromtimestamp(at, UTC) if at else None,
        number,
        "failed",
        _seconds(usage.wall),
        error=str(row.get("error") or ""),
        usage=usage,
    )


def _now(status: TaskStatus) -> list[Step]:
    """What a live task does since its last failed attempt."""
    if status.state == "running":
        what, number = f"attempt {status.attempt} began", status.attempt
        return [Step(what, status.started, number, "running", worker=status.worker)]
    if status.state == "delayed":
        what = f"attempt {status.attempt + 1} is due" if status.attempt else "due"
        return [Step(what, status.due, state="delayed")]
    if status.state == "waiting":
        return [Step("waits", status.waits_since, state="waiting", error=status.blocker)]
    if status.state == "dying":
        what = "failed for good; its dead letter is not in SQL yet"
        return [Step(what, state="dying", worker=status.worker, error=status.blocker)]
    return [Step("queued", status.waits_since, state=status.state)]


def _end(status: TaskStatus, started: datetime | None) -> Step:
    ran = status.attempt and status.state in ("done", "dead")
    expected = ", as expected" if status.reason == Reason.EXPECTED else ""
    return Step(
        f"ended in attempt {status.attempt}{expected}" if ran else "ended",
        status.finished,
        status.attempt,
        status.state,
        status.finished - started if started and status.finished else None,
        worker=status.worker,
        error=status.error,
        traceback=status.traceback,
        usage=status.usage,
    )


def _missing(numbers: Sequence[int], *, is_ended: bool) -> str:
    if not numbers:
        return ""
    if len(numbers) == 1:
        which = f"Attempt {numbers[0]} is"
    else:
        which = f"Attempts {numbers[0]} to {numbers[-1]} are"
    why = "only dead letters keep them" if is_ended else "Redis keeps the last 20 failed attempts"
    return f"{which} not kept: {why}. The log has the tracebacks of failed attempts"


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)

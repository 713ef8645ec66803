"""How an attempt ended, and what follows from it: one pure table."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any

from nonet.errors import BrokerFullError, StopRetrying, UnableToAcquireLockError
from nonet.retry import RetryPolicyBase

# settle.lua keeps no more of a text in the record, which is then still a packed hash.
_RECORD_BYTES = 60
_LOCK_DELAY = timedelta(seconds=1)
_FULL_DELAY = timedelta(seconds=5)


class Reason(StrEnum):
    """Why a task is dead."""

    RETRIES = "retries"  # the retry policy gave up
    STOPPED = "stopped"  # the author raised StopRetrying
    ARGUMENTS = "arguments"  # the constructor refuses the stored arguments
    QUARANTINED = "quarantined"  # the envelope cannot be decoded
    WORKER_LOST = "worker-lost"  # its workers died, again and again
    LIMIT_IMPOSSIBLE = "limit-impossible"  # a limiter allows less than one execution counts


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``execute`` returned and all dependencies closed without an error."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt raised `error`; `reason` is preset where no policy is to be asked."""

    error: BaseException
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt did not take place, or was cut off by a stop: no attempt is used.

    Attributes:
        reason: shown as the task's blocker.
        delay: before the next delivery.
        started: False if ``execute`` was never called, so that rate tokens come back.
    """

    reason: str
    delay: timedelta = timedelta(0)
    started: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is gone: nothing may be settled."""

    reason: str


Outcome = Succeeded | Failed | HandedBack | Lost


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """What is kept of an exception.

    Attributes:
        type: name of the class.
        text: ``str()`` of the exception, or why that failed.
        traceback: frames without values, innermost last; for SQL only.
    """

    type: str = ""
    text: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the settle script is told.

    Attributes:
        outcome: ``done``, ``retry``, ``back`` or ``dead``.
        value: the result of a task that is done.
        delay: before the next delivery of ``retry`` and ``back``.
        reason: why it is dead, or what it waits for.
        error: of ``retry`` and ``dead``.
        keep: the dead task gets a row in SQL.
        started: whether ``execute`` was called.
    """

    outcome: str
    value: Any = None
    delay: timedelta = timedelta(0)
    reason: str = ""
    error: ErrorSummary = ErrorSummary()
    keep: bool = False
    started: bool = True


def decide(
    outcome: Succeeded | Failed | HandedBack,
    policy: RetryPolicyBase,
    attempt: int,
    now: datetime,
    *,
    dlq_eligible: bool,
) -> Settlement:
    """What follows from an outcome.

    Args:
        outcome: how the attempt ended.
        policy: the class's retry policy; an error inside of it means no retry.
        attempt: number of the attempt that ended, from 1.
        now: aware.
        dlq_eligible: whether a dead task of this class is kept in SQL.

    Example:
        >>> from nonet.retry import NoRetry
        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> decide(Failed(ValueError("no")), NoRetry(), 1, now, dlq_eligible=False).outcome
        'dead'
    """
    if isinstance(outcome, Succeeded):
        return Settlement("done", value=outcome.value)
    if isinstance(outcome, HandedBack):
        return Settlement(
            "back", delay=outcome.delay, reason=outcome.reason, started=outcome.started
        )
    error = summarize(outcome.error)
    kind = type(outcome.error)  # isinstance() would ask the error itself
    if issubclass(kind, UnableToAcquireLockError):
        return Settlement("back", delay=_LOCK_DELAY, reason=error.text, error=error)
    if issubclass(kind, BrokerFullError):
        # Nothing is wrong with the task, and Redis has room again when others have ended.
        return Settlement("back", delay=_FULL_DELAY, reason="Redis is full: it cannot submit")
    reason = outcome.reason
    if reason is None and issubclass(kind, StopRetrying):
        reason = Reason.STOPPED
    if reason is None:
        delay, error = _ask(policy, attempt, outcome.error, now, error)
        if delay is not None:
            return Settlement("retry", delay=delay, error=error)
        reason = Reason.RETRIES
    return Settlement("dead", reason=reason, error=error, keep=dlq_eligible)


def summarize(error: BaseException) -> ErrorSummary:
    """An exception as text that can be stored; never raises, whatever code of its own it has."""
    try:
        text = str(error)
    except BaseException as broken:  # the error's own code: no attempt may end by it
        text = f"(its text could not be made: {_name(broken)})"
    return ErrorSummary(_name(error), _storable(text, 10_000), _storable(_frames(error), 60_000))


def _name(error: BaseException) -> str:
    """Name of the error's class; not as a metaclass would have it."""
    return _storable(type.__dict__["__qualname__"].__get__(type(error)), 200)


def _frames(error: BaseException) -> str:
    own: TracebackType | None = BaseException.__getattribute__(error, "__traceback__")
    try:
        return "".join(traceback.format_tb(own, limit=-50))
    except Exception:  # the sources of a module come from its loader
        return ""


def shortened(text: str) -> str:
    """`text` as far as a record has room for it, 60 bytes of UTF-8, with a mark where it was cut.

    >>> shortened("short"), shortened("é" * 31)
    ('short', 'éééééééééééééééééééééééééééé…')
    """
    encoded = text.encode()
    if len(encoded) <= _RECORD_BYTES:
        return text
    return encoded[: _RECORD_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def _storable(text: str, length: int) -> str:
    # Cut first, it may be huge; and not by methods of a class derived from str.
    start = str.__getitem__(text, slice(length))
    # Names of files that are not UTF-8 come as lone surrogates, which no database takes.
    return start.encode("utf-8", "backslashreplace").decode()[:length]


def _ask(
    policy: RetryPolicyBase,
    attempt: int,
    raised: BaseException,
    now: datetime,
    error: ErrorSummary,
) -> tuple[timedelta | None, ErrorSummary]:
    """How long the policy wants to wait, or None; a broken policy does not retry."""
    try:
        at = policy.schedule_retry(attempt, raised)
        if at is None:
            return None, error
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        delay = at - now
        # A policy that says "now" read the clock a little later than we did.
        return (delay if delay > timedelta(milliseconds=1) else timedelta(0)), error
    except BaseException as broken:  # the policy's own code: no attempt may end by it
        why = summarize(broken)
        note = f"{error.text} (retry policy {type(policy).__name__} failed: {why.type}: {why.text})"
        return None, ErrorSummary(error.type, note[:10_000], error.traceback)

"""How an attempt ended, and what follows from it: one pure table."""

from __future__ import annotations

import inspect
import re
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any

from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    NotConfirmedError,
    StopRetrying,
    UnableToAcquireLockError,
)
from nonet.rules.crashes import CRASH_LIMIT
from nonet.tasks.retry import RetryPolicyBase

# settle.lua keeps no more of a text in the record, which is then still a packed hash.
_RECORD_BYTES = 60
# What SQLAlchemy writes behind the driver's text. The values may be secrets of an application, and
# reach whoever may look at Redis or a dead letter; the detail of PostgreSQL has values, too.
_STATEMENT = "\n[SQL: "
_DETAIL = re.compile(r"\nDETAIL: .*?(?=\n\[SQL: )", re.DOTALL)
_VALUES = re.compile(r"\n(?:\[parameters: .*|\(Background on this error at: \S+\))")
# So much is kept of the text of an error.
ERROR_CHARACTERS = 10_000
_LOCK_DELAY = timedelta(seconds=1)
_FULL_DELAY = timedelta(seconds=5)
_LONGEST_REFUSAL = timedelta(minutes=5)


class Reason(StrEnum):
    """Why a task is dead, or ended without having run to its end."""

    RETRIES = "retries"  # the retry policy gave up
    STOPPED = "stopped"  # the author raised StopRetrying
    ARGUMENTS = "arguments"  # the constructor refuses the stored arguments
    QUARANTINED = "quarantined"  # the envelope cannot be decoded
    WORKER_LOST = "worker-lost"  # its worker died with it alone, and that was one crash too many
    CRASH = "crash"  # the processes died in which it ran alone, again and again
    LIMIT_IMPOSSIBLE = "limit-impossible"  # a limiter allows less than one execution counts
    CANCELLED = "cancelled"  # somebody asked for its end
    CAPACITY = "capacity"  # nobody started it in time, see start_by


class End(StrEnum):
    """How an attempt is settled, as settle.lua has it."""

    DONE = "done"
    RETRY = "retry"
    CRASH = "crash"  # a retry after its process died with it alone
    BACK = "back"  # no attempt is used
    SUSPECT = "suspect"  # back, after the death of a process that it shared
    ON = "on"  # back, as this worker cannot run it
    DYING = "dying"  # dead as soon as it is in SQL
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # nobody has started it in time
    LOST = "lost"  # void: somebody else has it; nothing is settled


@dataclass(slots=True)
class Succeeded:
    """``execute`` returned and all dependencies closed without an error."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt raised `error`.

    Attributes:
        reason: preset where no policy is to be asked.
        crashed: it took the child process with it in which it ran.
    """

    error: BaseException
    reason: Reason | None = None
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt did not take place, or was cut off by a stop: no attempt is used.

    Attributes:
        reason: shown as the task's blocker.
        delay: before the next delivery.
        started: False if ``execute`` was never called, so that rate tokens come back.
        is_suspect: the process died that ran it, and others: any of them may be the cause.
        is_foreign: this worker cannot run it, as it does not know it or is too old.
    """

    reason: str
    delay: timedelta = timedelta(0)
    started: bool = False
    is_suspect: bool = False
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is gone: nothing may be settled."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody asked for its end; `reason` says who and why."""

    reason: str


Outcome = Succeeded | Failed | HandedBack | Lost | Cancelled


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

    @property
    def brief(self) -> str:
        """Type and text for who may know no task of it: of SQL without the statement.

        >>> ErrorSummary("IntegrityError", "(x.Error) no\\n[SQL: INSERT INTO jobs …]").brief
        'IntegrityError: (x.Error) no'
        """
        return f"{self.type}: {self.text.partition(_STATEMENT)[0]}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the settle script is told.

    Attributes:
        end: how the attempt ends.
        delay: before the next delivery of ``retry`` and ``back``.
        reason: why it is dead, or what it waits for.
        error: of ``retry`` and ``dead``.
        keep: the dead task gets a row in SQL.
        started: whether ``execute`` was called.
        crashed: of ``dead``: the process in which it ran died with it.
    """

    end: End
    delay: timedelta = timedelta(0)
    reason: str = ""
    error: ErrorSummary = ErrorSummary()
    keep: bool = False
    started: bool = True
    crashed: bool = False


DONE = Settlement(End.DONE)


def decide(
    outcome: Succeeded | Failed | HandedBack | Cancelled,
    policy: RetryPolicyBase,
    attempt: int,
    now: datetime,
    *,
    dlq_eligible: bool,
    crashes: int = 0,
    crash_limit: int = CRASH_LIMIT,
) -> Settlement:
    """What follows from an outcome.

    Args:
        outcome: how the attempt ended.
        policy: the class's retry policy; an error inside of it means no retry.
        attempt: number of the attempt that ended, from 1.
        now: aware.
        dlq_eligible: whether a dead task of this class is kept in SQL.
        crashes: of processes in which it was alone, in earlier deliveries.
        crash_limit: so many crashes end it, whatever its policy says.

    Example:
        >>> from nonet.tasks.retry import NoRetry
        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> decide(Failed(ValueError("no")), NoRetry(), 1, now, dlq_eligible=False).end
        <End.DEAD: 'dead'>
    """
    if isinstance(outcome, Succeeded):
        return DONE
    if isinstance(outcome, Cancelled):
        error = ErrorSummary(text=f"cancelled {outcome.reason}")
        return Settlement(End.CANCELLED, reason=Reason.CANCELLED, error=error)
    if isinstance(outcome, HandedBack):
        how = End.SUSPECT if outcome.is_suspect else End.ON if outcome.is_foreign else End.BACK
        return Settlement(how, delay=outcome.delay, reason=outcome.reason, started=outcome.started)
    error = summarize(outcome.error)
    kind = type(outcome.error)  # isinstance() would ask the error itself
    if issubclass(kind, UnableToAcquireLockError):
        return Settlement(End.BACK, delay=_LOCK_DELAY, reason=error.text, error=error)
    if issubclass(kind, BrokerFullError):
        # Nothing is wrong with the task, and Redis has room again when others have ended.
        return Settlement(End.BACK, delay=_FULL_DELAY, reason="Redis is full: it cannot submit")
    if issubclass(kind, NotConfirmedError):
        return Settlement(End.BACK, delay=_FULL_DELAY, reason="too few replicas of Redis confirm")
    if issubclass(kind, AdmissionRejected):
        pause, why = _until_room(outcome.error)
        return Settlement(End.BACK, delay=pause, reason=why or error.text)
    reason = outcome.reason
    if reason is None and issubclass(kind, StopRetrying):
        reason = Reason.STOPPED
    if reason is None and outcome.crashed and crashes + 1 >= crash_limit:
        reason = Reason.CRASH
    if reason is None:
        delay, error = _ask(policy, attempt, outcome.error, now, error)
        if delay is not None:
            how = End.CRASH if outcome.crashed else End.RETRY
            return Settlement(how, delay=delay, error=error)
        reason = Reason.RETRIES
    crashed = outcome.crashed
    return Settlement(End.DEAD, reason=reason, error=error, keep=dlq_eligible, crashed=crashed)


def _until_room(error: Any) -> tuple[timedelta, str]:
    """When a task may be executed again that was refused a submission, and why it was."""
    try:
        delay = timedelta(seconds=error.retry_after)
        return min(max(delay, _LOCK_DELAY), _LONGEST_REFUSAL), str(error.brief)
    except Exception:  # an author has made it of something else
        return _FULL_DELAY, ""


def summarize(error: BaseException) -> ErrorSummary:
    """An exception as text that can be stored; never raises, whatever code of its own it has.

    The values that a statement of SQL was given are left out.
    """
    try:
        text = str(error)
    except BaseException as broken:  # the error's own code: no attempt may end by it
        text = f"(its text could not be made: {_name(broken)})"
    kept = _without_values(_storable(text, ERROR_CHARACTERS))
    return ErrorSummary(_name(error), kept, _storable(_frames(error), 60_000))


def _without_values(text: str) -> str:
    return _VALUES.sub("", _DETAIL.sub("", text)) if _STATEMENT in text else text


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


def _no_instant(policy: RetryPolicyBase, answer: object) -> TypeError:
    if inspect.iscoroutine(answer):
        answer.close()
    told = f"schedule_retry of {type(policy).__name__} returned {answer!r:.100}"
    return TypeError(f"{told}: must be a datetime or None")


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
        if not isinstance(at, datetime):
            raise _no_instant(policy, at)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        # Of what an author makes of a datetime only the length counts.
        delay = timedelta(seconds=timedelta.total_seconds(at - now))
        # A policy that says "now" read the clock a little later than we did.
        return (delay if delay > timedelta(milliseconds=1) else timedelta(0)), error
    except BaseException as broken:  # the policy's own code: no attempt may end by it
        why = summarize(broken)
        note = f"{error.text} (retry policy {type(policy).__name__} failed: {why.type}: {why.text})"
        return None, ErrorSummary(error.type, note[:ERROR_CHARACTERS], error.traceback)

"""Decides how to settle an attempt from how it ended. Pure, but it measures how long that takes."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    NotConfirmedError,
    StopRetrying,
    UnableToAcquireLockError,
    is_caught,
)
from nonet.rules.crash_limit import CRASH_LIMIT
from nonet.rules.reasons import Reason
from nonet.rules.tracebacks import bounded, traceback_text

if TYPE_CHECKING:  # it imports pydantic
    from nonet.tasks.retry import RetryPolicyBase

# settle.lua stores at most this much of a text, so that the record stays in its compact encoding.
_RECORD_BYTES = 60
# SQLAlchemy appends the statement and its values to the text of the driver, and PostgreSQL a detail
# with values. Values may be secrets, which readers of Redis or of dead letters must not see.
_STATEMENT = "\n[SQL: "
_DETAIL = re.compile(r"\nDETAIL: .*?(?=\n\[SQL: |\Z)", re.DOTALL)
_VALUES = re.compile(r"\n(?:\[parameters: .*|\(Background on this error at: \S+\))")
# Characters of an error's text that are stored.
ERROR_CHARACTERS = 10_000
# Characters of it that its traceback repeats.
_DESCRIBED_CHARACTERS = 500
_NONE = timedelta(0)
_LOCK_DELAY = timedelta(seconds=1)
_FULL_DELAY = timedelta(seconds=5)
_LONGEST_REFUSAL = timedelta(minutes=5)


Hide = Callable[[str, bool], str]
"""Masks the secrets in a text; the second argument says whether the text was cut at its end."""


class End(StrEnum):
    """How an attempt is settled; the words of settle.lua."""

    DONE = "done"
    RETRY = "retry"
    CRASH = "crash"  # a retry after the process that ran it alone died
    BACK = "back"  # no attempt is used
    SUSPECT = "suspect"  # back, after the death of a process that it shared with others
    ON = "on"  # back, as this worker cannot run it
    DYING = "dying"  # dead as soon as its dead letter is in SQL
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # it was not started in time
    LOST = "lost"  # void: another attempt owns the task; nothing is settled


class Succeeded(msgspec.Struct):
    """``execute`` returned and all dependencies closed without an error."""

    value: Any


class Failed(Struct, frozen=True):
    """The attempt raised `error`.

    Attributes:
        reason: set if the retry policy must not be asked.
        crashed: the child process that ran it died.
    """

    error: BaseException
    reason: Reason | None = None
    crashed: bool = False


class HandedBack(Struct, frozen=True):
    """The attempt did not start, or a stop interrupted it. It does not count as an attempt.

    Attributes:
        reason: shown as the blocker of the task.
        delay: time before the next delivery.
        started: False if ``execute`` was never called, so that rate tokens are refunded.
        is_suspect: a process that ran this and other tasks died, and any of them may be the cause.
        is_foreign: this worker cannot run the task: it does not know the class, or is too old.
    """

    reason: str
    delay: timedelta = timedelta(0)
    started: bool = False
    is_suspect: bool = False
    is_foreign: bool = False


class Lost(Struct, frozen=True):
    """The lease is lost, so nothing may be settled."""

    reason: str


class Cancelled(Struct, frozen=True):
    """The task was cancelled; `reason` says by whom and why."""

    reason: str


Outcome = Succeeded | Failed | HandedBack | Lost | Cancelled


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """The parts of an exception that are stored.

    Attributes:
        type: name of its class.
        text: ``str()`` of the exception, or why that failed.
        traceback: what `nonet.rules.tracebacks.traceback_text` returns.
    """

    type: str = ""
    text: str = ""
    traceback: str = field(default="", repr=False)

    @property
    def brief(self) -> str:
        """Type and text, without an SQL statement, for places that show no details.

        >>> ErrorSummary("IntegrityError", "(x.Error) no\\n[SQL: INSERT INTO jobs …]").brief
        'IntegrityError: (x.Error) no'
        """
        return f"{self.type}: {self.text.partition(_STATEMENT)[0]}".removesuffix(": ")


class Settlement(Struct, frozen=True):
    """Arguments of the settle script.

    Attributes:
        end: how the attempt ends.
        delay: time before the next delivery, for ``retry`` and ``back``.
        reason: why the task is dead, or what it waits for; ``expected`` for a ``retry`` after an
            error that the class declares as expected.
        error: error of ``retry`` and ``dead``.
        keep: the dead task gets a row in SQL.
        started: whether ``execute`` was called.
        crashed: for ``dead``: the process that ran the task died.
    """

    end: End
    delay: timedelta = timedelta(0)
    reason: str = ""
    error: ErrorSummary = ErrorSummary()
    keep: bool = False
    started: bool = True
    crashed: bool = False

    @property
    def is_expected(self) -> bool:
        """Whether the attempt failed with an error that its class declares as expected."""
        return self.reason == Reason.EXPECTED


DONE = Settlement(End.DONE)


def _as_it_is(text: str, is_cut: bool) -> str:
    return text


def decide(
    outcome: Succeeded | Failed | HandedBack | Cancelled,
    policy: RetryPolicyBase,
    attempt: int,
    now: datetime,
    *,
    dlq_eligible: bool,
    expected: Sequence[type[BaseException]] = (),
    crashes: int = 0,
    crash_limit: int = CRASH_LIMIT,
    hide: Hide = _as_it_is,
) -> Settlement:
    """Decide how to settle an attempt.

    Args:
        outcome: how the attempt ended.
        policy: retry policy of the class; if it raises, there is no retry.
        attempt: number of the attempt that ended, from 1.
        now: an aware datetime.
        dlq_eligible: whether dead tasks of this class get a dead letter in SQL.
        expected: the errors that the class declares as expected.
        crashes: earlier deliveries in which a process died that ran this task alone.
        crash_limit: after this many crashes the task is dead, whatever its policy says.
        hide: masks secrets in all texts of the settlement.

    Example:
        >>> from nonet.tasks.retry import NoRetry
        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> decide(Failed(ValueError("no")), NoRetry(), 1, now, dlq_eligible=False).end
        <End.DEAD: 'dead'>
    """
    began = time.monotonic()
    if isinstance(outcome, Succeeded):
        return DONE
    if isinstance(outcome, Cancelled):
        error = ErrorSummary(text=hide(f"cancelled {outcome.reason}", False))
        return Settlement(End.CANCELLED, reason=Reason.CANCELLED, error=error)
    if isinstance(outcome, HandedBack):
        how = End.SUSPECT if outcome.is_suspect else End.ON if outcome.is_foreign else End.BACK
        why = hide(outcome.reason, False)
        return Settlement(how, delay=outcome.delay, reason=why, started=outcome.started)
    error = summarize(outcome.error, hide)
    kind = type(outcome.error)  # isinstance() would run code of the error
    if issubclass(kind, UnableToAcquireLockError):
        return Settlement(End.BACK, delay=_LOCK_DELAY, reason=error.text, error=error)
    if issubclass(kind, BrokerFullError):
        # The task is fine, and Redis has room again when other tasks have ended.
        return Settlement(End.BACK, delay=_FULL_DELAY, reason="Redis is full: it cannot submit")
    if issubclass(kind, NotConfirmedError):
        return Settlement(End.BACK, delay=_FULL_DELAY, reason="too few replicas of Redis confirm")
    if issubclass(kind, AdmissionRejected):
        pause, why = _until_room(outcome.error)
        return Settlement(End.BACK, delay=pause, reason=hide(why, False) or error.text)
    reason, usual = outcome.reason, None
    if is_caught(outcome.error, expected):
        usual = Reason.EXPECTED
    if reason is None and issubclass(kind, StopRetrying):
        reason = usual or Reason.STOPPED
    if reason is None and outcome.crashed and crashes + 1 >= crash_limit:
        reason = Reason.CRASH
    if reason is None:
        delay, error = _ask(policy, attempt, outcome.error, now, error, hide)
        if delay is not None:
            how = End.CRASH if outcome.crashed else End.RETRY
            # A policy that answers "now" reads the clock after the caller did.
            since_now = timedelta(seconds=time.monotonic() - began, milliseconds=1)
            delay = delay if delay > since_now else _NONE
            return Settlement(how, delay=delay, reason=usual or "", error=error)
        reason = usual or Reason.RETRIES
    crashed = outcome.crashed
    return Settlement(End.DEAD, reason=reason, error=error, keep=dlq_eligible, crashed=crashed)


def _until_room(error: Any) -> tuple[timedelta, str]:
    """Return the delay, and the reason, after a ceiling refused a submission by the task."""
    try:
        delay = timedelta(seconds=error.retry_after)
        return min(max(delay, _LOCK_DELAY), _LONGEST_REFUSAL), str(error.brief)
    except Exception:  # an author raised it with other arguments
        return _FULL_DELAY, ""


def summarize(error: BaseException, hide: Hide = _as_it_is) -> ErrorSummary:
    """Summarize an exception as text that can be stored, without the values of SQL statements.

    Never raises, even if methods of the exception do.

    Args:
        hide: masks secrets.
    """
    text = _text(error, hide)

    def describe(item: BaseException) -> str:
        of_item = text if item is error else _text(item, hide)
        return f"{_name(item)}: {of_item[:_DESCRIBED_CHARACTERS]}".removesuffix(": ")

    frames = _storable(traceback_text(error, describe), 60_000)
    return ErrorSummary(_name(error), text, bounded(hide(frames, False)))


def _text(error: BaseException, hide: Hide) -> str:
    """Return the text and the notes (`add_note`) of an exception."""
    try:
        text = str(error)
    except (
        BaseException
    ) as broken:  # raised by the code of the error, which must not end the attempt
        text = f"(its text could not be made: {_name(broken)})"
    notes = BaseException.__getattribute__(error, "__dict__").get("__notes__")
    if type(notes) is list:
        text = "\n".join([text, *(note for note in notes if type(note) is str)])
    kept = _storable(text, ERROR_CHARACTERS)
    return hide(without_values(kept), len(kept) >= ERROR_CHARACTERS)


def without_values(text: str) -> str:
    """Remove the values of an SQL statement from the text of an error, and keep the statement."""
    if "\nDETAIL: " in text:
        text = _DETAIL.sub("", text)
    return _VALUES.sub("", text) if _STATEMENT in text else text


def _name(error: BaseException) -> str:
    """The name of the error's class, without running code of a metaclass."""
    return _storable(type.__dict__["__qualname__"].__get__(type(error)), 200)


def shortened(text: str) -> str:
    """Shorten a text for a record to 60 bytes of UTF-8, with a mark where it is cut.

    >>> shortened("short"), shortened("é" * 31)
    ('short', 'éééééééééééééééééééééééééééé…')
    """
    encoded = text.encode()
    if len(encoded) <= _RECORD_BYTES:
        return text
    return encoded[: _RECORD_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def _storable(text: str, length: int) -> str:
    # Cut first, as it may be huge, and not with methods of a subclass of str.
    start = str.__getitem__(text, slice(length))
    # File names that are not UTF-8 contain lone surrogates, which no database accepts.
    return start.encode("utf-8", "backslashreplace").decode()[:length]


def _no_instant(policy: RetryPolicyBase, answer: object) -> TypeError:
    if inspect.iscoroutine(answer):
        answer.close()
    problem = f"schedule_retry of {type(policy).__name__} returned {answer!r:.100}"
    return TypeError(f"{problem}: must be a datetime or None")


def _ask(
    policy: RetryPolicyBase,
    attempt: int,
    raised: BaseException,
    now: datetime,
    error: ErrorSummary,
    hide: Hide,
) -> tuple[timedelta | None, ErrorSummary]:
    """The delay of the retry policy; None: no retry. A policy that raises gives no retry."""
    try:
        at = policy.schedule_retry(attempt, raised)
        if at is None:
            return None, error
        if not isinstance(at, datetime):
            raise _no_instant(policy, at)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        # Call the method of timedelta itself: an author's subclass could override it.
        return timedelta(seconds=timedelta.total_seconds(at - now)), error
    except BaseException as broken:  # raised by the policy, which must not end the attempt
        why = summarize(broken, hide)
        note = f"{error.text} (retry policy {type(policy).__name__} failed: {why.type}: {why.text})"
        return None, ErrorSummary(error.type, note[:ERROR_CHARACTERS], error.traceback)

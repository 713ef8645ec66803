"""`decide`: what follows from each outcome of an attempt, as one table."""

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
import sqlalchemy as sa

from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    LeaseLostError,
    StopRetrying,
    TaskCrashed,
    TaskRetryRequested,
    UnableToAcquireLockError,
)
from nonet.rules.outcomes import (
    Cancelled,
    ErrorSummary,
    Failed,
    HandedBack,
    Succeeded,
    decide,
    shortened,
    summarize,
)
from nonet.rules.reasons import Reason
from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class At(RetryPolicyBase):
    """Returns, or raises, what it was given."""

    answer: Any

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        answer: datetime | None = self.answer
        return answer


class Declined(StopRetrying):
    """A final error that its class declares as expected."""


class Nowhere(tzinfo):
    def utcoffset(self, instant: datetime | None) -> None:
        return None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


FAILED = Failed(ValueError("no"))
IN_ANOTHER_ZONE = datetime(2026, 1, 1, 14, 1, tzinfo=timezone(timedelta(hours=2)))
BAD, ILL = Failed(ValueError("x"), Reason.ARGUMENTS), Failed(ValueError("x"), Reason.QUARANTINED)
FULL = Failed(BrokerFullError("Redis at redis://db.example/0 is out of memory"))
DEAD = ("dead", 0, "retries", True, True)
IN_A_MINUTE = At(answer=NOW + 60 * SECOND)

TABLE = [
    # outcome, policy, dlq_eligible → outcome, delay, reason, kept, started
    (Succeeded(7), NoRetry(), True, ("done", 0, "", False, True)),
    (Cancelled("by ann"), IN_A_MINUTE, True, ("cancelled", 0, "cancelled", False, True)),
    (FAILED, NoRetry(), False, ("dead", 0, "retries", False, True)),
    (FAILED, NoRetry(), True, DEAD),
    (FAILED, IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (FAILED, At(answer=NOW - 60 * SECOND), True, ("retry", 0, "", False, True)),
    (FAILED, At(answer=datetime(2026, 1, 1, 12, 1)), True, ("retry", 60, "", False, True)),
    (FAILED, At(answer=IN_ANOTHER_ZONE), True, ("retry", 60, "", False, True)),
    (FAILED, At(answer=datetime.min), True, ("retry", 0, "", False, True)),
    (Failed(TaskRetryRequested("later")), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (Failed(StopRetrying("enough")), IN_A_MINUTE, True, ("dead", 0, "stopped", True, True)),
    # OSError and Declined are expected.
    (Failed(ConnectionError()), IN_A_MINUTE, True, ("retry", 60, "expected", False, True)),
    (Failed(ConnectionError()), NoRetry(), True, ("dead", 0, "expected", True, True)),
    (Failed(Declined("no")), IN_A_MINUTE, True, ("dead", 0, "expected", True, True)),
    (Failed(OSError(), Reason.ARGUMENTS), NoRetry(), True, ("dead", 0, "arguments", True, True)),
    (Failed(LeaseLostError("mine")), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (Failed(SystemExit(3)), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (BAD, IN_A_MINUTE, True, ("dead", 0, "arguments", True, True)),
    (ILL, IN_A_MINUTE, False, ("dead", 0, "quarantined", False, True)),
    (Failed(UnableToAcquireLockError("busy")), IN_A_MINUTE, True, ("back", 1, "busy", False, True)),
    (FULL, NoRetry(), True, ("back", 5, "Redis is full: it cannot submit", False, True)),
    # A refused submission names the seconds until the next try.
    (
        Failed(AdmissionRejected(5, 5, 7, scope="task:a:A")),
        NoRetry(),
        True,
        ("back", 7, "class a:A has 5 of at most 5 tasks", False, True),
    ),
    (
        Failed(AdmissionRejected(5, 5, 1e9)),
        NoRetry(),
        True,
        ("back", 300, "the namespace has 5 of at most 5 tasks", False, True),
    ),
    (HandedBack("stopped"), IN_A_MINUTE, True, ("back", 0, "stopped", False, False)),
    (HandedBack("unknown", 5 * SECOND), NoRetry(), True, ("back", 5, "unknown", False, False)),
    (HandedBack("stopped", started=True), NoRetry(), True, ("back", 0, "stopped", False, True)),
    # Policies that are broken do not retry.
    (FAILED, RetryPolicyBase(), True, DEAD),
    (FAILED, At(answer=RuntimeError("bug")), True, DEAD),
    (FAILED, At(answer=Unspeakable()), True, DEAD),
    (FAILED, At(answer=60), True, DEAD),
    (FAILED, At(answer=datetime(2026, 1, 1, tzinfo=Nowhere())), True, DEAD),
]


@pytest.mark.parametrize(("outcome", "policy", "eligible", "expected"), TABLE)
def test_each_outcome_has_one_consequence(
    outcome: Any,
    policy: RetryPolicyBase,
    eligible: bool,
    expected: tuple[str, int, str, bool, bool],
) -> None:
    errors = (OSError, Declined)
    found = decide(outcome, policy, 1, NOW, dlq_eligible=eligible, expected=errors)
    seconds = found.delay.total_seconds()
    assert (found.end, seconds, str(found.reason), found.keep, found.started) == expected


def test_a_policy_that_returns_a_coroutine_does_not_retry() -> None:
    """Python does not warn of the coroutine, which is closed."""

    async def soon() -> datetime:
        return NOW

    assert decide(FAILED, At(answer=soon()), 1, NOW, dlq_eligible=True).end == "dead"


@pytest.mark.parametrize(
    ("outcome", "crashes", "expected"),
    [
        (FAILED, 2, ("dead", "retries", False)),
        (Failed(TaskCrashed(signal=11), crashed=True), 0, ("dead", "retries", True)),
        (Failed(TaskCrashed(signal=11), crashed=True), 2, ("dead", "crash", True)),
        (HandedBack("stopped"), 0, ("back", "stopped", False)),
    ],
)
def test_a_settlement_contains_whether_a_process_died_with_the_task(
    outcome: Failed | HandedBack, crashes: int, expected: tuple[str, str, bool]
) -> None:
    found = decide(outcome, NoRetry(), 1, NOW, dlq_eligible=False, crashes=crashes)
    assert (found.end, found.reason, found.crashed) == expected


@pytest.mark.parametrize(
    ("outcome", "crashes", "limit", "expected"),
    [
        (Failed(TaskCrashed(signal=9), crashed=True), 0, 3, "crash"),
        (Failed(TaskCrashed(signal=9), crashed=True), 1, 3, "crash"),
        (Failed(TaskCrashed(signal=9), crashed=True), 2, 3, "dead"),
        (Failed(TaskCrashed(signal=9), crashed=True), 2, 4, "crash"),
        (Failed(TaskCrashed(signal=9), crashed=True), 0, 1, "dead"),
        (Failed(TaskCrashed(signal=9)), 2, 3, "retry"),  # counted when its worker died
        (FAILED, 2, 3, "retry"),
        (HandedBack("its fork server ended", is_suspect=True), 9, 3, "suspect"),
    ],
)
def test_a_number_of_crashes_ends_a_task_whatever_its_policy(
    outcome: Failed | HandedBack, crashes: int, limit: int, expected: str
) -> None:
    policy = ExponentialBackoff(base_delay_seconds=0, max_retries=50)
    options = {"dlq_eligible": True, "crashes": crashes, "crash_limit": limit}
    found = decide(outcome, policy, 1, NOW, **options)  # type: ignore[arg-type]
    assert found.end == expected


def test_the_policy_gets_the_attempt_and_the_exception_itself() -> None:
    seen: list[tuple[int, BaseException]] = []

    class Curious(RetryPolicyBase):
        def schedule_retry(self, attempt: int, exception: BaseException) -> None:
            seen.append((attempt, exception))

    error = KeyError("x")
    decide(Failed(error), Curious(), 3, NOW, dlq_eligible=False)
    assert seen == [(3, error)]
    assert seen[0][1] is error


@pytest.mark.parametrize(("delay", "expected"), [(10, 0), (1000, 1000)])
def test_the_time_that_a_policy_takes_is_no_delay(delay: int, expected: int) -> None:
    answer = NOW + timedelta(milliseconds=delay)

    class Slow(RetryPolicyBase):
        def schedule_retry(self, attempt: int, exception: BaseException) -> datetime:
            time.sleep(0.02)
            return answer

    found = decide(FAILED, Slow(), 1, NOW, dlq_eligible=False)
    assert found.delay == timedelta(milliseconds=expected)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (RuntimeError("bug"), "RuntimeError: bug"),
        (5, "TypeError: schedule_retry of At returned 5: must be a datetime or None"),
    ],
)
def test_the_error_names_a_broken_policy(answer: Any, problem: str) -> None:
    error = decide(FAILED, At(answer=answer), 1, NOW, dlq_eligible=True).error
    assert error.type == "ValueError"
    assert error.text == f"no (retry policy At failed: {problem})"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), ErrorSummary("ValueError", "no")),
        (Unspeakable(), ErrorSummary("Unspeakable", "(its text could not be made: RuntimeError)")),
        (ValueError("caf\udce9"), ErrorSummary("ValueError", "caf\\udce9")),
        (ValueError("x" * 20_000), ErrorSummary("ValueError", "x" * 10_000)),
    ],
)
def test_any_exception_can_be_summarized(error: Exception, expected: ErrorSummary) -> None:
    assert summarize(error) == expected


def refused_by_sql() -> sa.exc.IntegrityError:
    """What SQLAlchemy raises for a row that is there already."""
    with sa.create_engine("sqlite://").connect() as connection:
        connection.execute(sa.text("CREATE TABLE jobs (token TEXT UNIQUE)"))
        with pytest.raises(sa.exc.IntegrityError) as caught:
            for _ in range(2):
                connection.execute(sa.text("INSERT INTO jobs VALUES (:t)"), {"t": "hunter2"})
    assert "hunter2" in str(caught.value)
    return caught.value


def test_the_values_of_a_statement_are_left_out() -> None:
    found = summarize(refused_by_sql())
    assert found.text == (
        "(sqlite3.IntegrityError) UNIQUE constraint failed: jobs.token\n"
        "[SQL: INSERT INTO jobs VALUES (?)]"
    )


def test_the_words_around_a_statement_are_kept() -> None:
    text = "failed: (asyncpg.Error) no\nDETAIL:  Key (t)=(hunter2\n2) is there.\n[SQL: INSERT …]"
    found = summarize(ValueError(f"{text}\n[parameters: ('hunter2',)]\ngiven up"))
    assert found.text == "failed: (asyncpg.Error) no\n[SQL: INSERT …]\ngiven up"


def test_the_brief_error_has_no_statement() -> None:
    assert summarize(refused_by_sql()).brief == (
        "IntegrityError: (sqlite3.IntegrityError) UNIQUE constraint failed: jobs.token"
    )


@pytest.mark.parametrize("text", ["x" * 60, "x" * 61, "é" * 30, "é" * 31, "x" + "é" * 40, "…" * 21])
def test_a_shortened_text_ends_with_a_mark(text: str) -> None:
    cut = shortened(text)
    assert len(cut.encode()) <= 60 and len(cut) >= 20
    assert cut == text if len(text.encode()) <= 60 else text.startswith(cut[:-1]) and cut[-1] == "…"

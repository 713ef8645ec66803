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
    End,
    ErrorSummary,
    Failed,
    HandedBack,
    Reason,
    Settlement,
    Succeeded,
    decide,
    shortened,
    summarize,
)
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


class Nowhere(tzinfo):
    """A broken time zone."""

    def utcoffset(self, instant: datetime | None) -> None:
        return None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


FAILED = Failed(ValueError("no"))
IN_A_MINUTE = At(answer=NOW + 60 * SECOND)

TABLE = [
    # outcome, policy, dlq_eligible → outcome, delay, reason, kept, started
    (Succeeded(7), NoRetry(), True, ("done", 0, "", False, True)),
    (Succeeded(None), IN_A_MINUTE, True, ("done", 0, "", False, True)),
    (Cancelled("by ann"), IN_A_MINUTE, True, ("cancelled", 0, "cancelled", False, True)),
    (FAILED, NoRetry(), False, ("dead", 0, "retries", False, True)),
    (FAILED, NoRetry(), True, ("dead", 0, "retries", True, True)),
    (FAILED, IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (FAILED, At(answer=NOW), True, ("retry", 0, "", False, True)),
    (FAILED, At(answer=NOW - 60 * SECOND), True, ("retry", 0, "", False, True)),
    (FAILED, At(answer=datetime(2026, 1, 1, 12, 1)), True, ("retry", 60, "", False, True)),
    (
        FAILED,
        At(answer=datetime(2026, 1, 1, 14, 1, tzinfo=timezone(timedelta(hours=2)))),
        True,
        ("retry", 60, "", False, True),
    ),
    (FAILED, At(answer=datetime.min), True, ("retry", 0, "", False, True)),
    (Failed(TaskRetryRequested("later")), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (Failed(TaskRetryRequested("later")), NoRetry(), True, ("dead", 0, "retries", True, True)),
    (Failed(StopRetrying("enough")), IN_A_MINUTE, True, ("dead", 0, "stopped", True, True)),
    (Failed(StopRetrying("enough")), IN_A_MINUTE, False, ("dead", 0, "stopped", False, True)),
    (Failed(LeaseLostError("mine")), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (Failed(SystemExit(3)), IN_A_MINUTE, True, ("retry", 60, "", False, True)),
    (
        Failed(ValueError("x"), Reason.ARGUMENTS),
        IN_A_MINUTE,
        True,
        ("dead", 0, "arguments", True, True),
    ),
    (
        Failed(ValueError("x"), Reason.QUARANTINED),
        IN_A_MINUTE,
        False,
        ("dead", 0, "quarantined", False, True),
    ),
    (Failed(UnableToAcquireLockError("busy")), IN_A_MINUTE, True, ("back", 1, "busy", False, True)),
    (
        Failed(BrokerFullError("Redis at redis://db.example/0 is out of memory")),
        NoRetry(),
        True,
        ("back", 5, "Redis is full: it cannot submit", False, True),
    ),
    # Whoever is refused a submission comes again when he was told to.
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
    (FAILED, RetryPolicyBase(), True, ("dead", 0, "retries", True, True)),
    (FAILED, At(answer=RuntimeError("bug")), True, ("dead", 0, "retries", True, True)),
    (FAILED, At(answer=SystemExit(1)), True, ("dead", 0, "retries", True, True)),
    (FAILED, At(answer=Unspeakable()), True, ("dead", 0, "retries", True, True)),
    (FAILED, At(answer=60), True, ("dead", 0, "retries", True, True)),
    (FAILED, At(answer="soon"), True, ("dead", 0, "retries", True, True)),
    (
        FAILED,
        At(answer=datetime(2026, 1, 1, tzinfo=Nowhere())),
        True,
        ("dead", 0, "retries", True, True),
    ),
]


@pytest.mark.parametrize(("outcome", "policy", "eligible", "expected"), TABLE)
def test_decide(
    outcome: Any,
    policy: RetryPolicyBase,
    eligible: bool,
    expected: tuple[str, int, str, bool, bool],
) -> None:
    """Each outcome has exactly one consequence."""
    found = decide(outcome, policy, 1, NOW, dlq_eligible=eligible)
    seconds = found.delay.total_seconds()
    assert (found.end, seconds, str(found.reason), found.keep, found.started) == expected


@pytest.mark.parametrize(
    ("outcome", "crashes", "expected"),
    [
        (FAILED, 2, ("dead", "retries", False)),
        (Failed(TaskCrashed(signal=11), crashed=True), 0, ("dead", "retries", True)),
        (Failed(TaskCrashed(signal=11), crashed=True), 2, ("dead", "crash", True)),
        (HandedBack("stopped"), 0, ("back", "stopped", False)),
    ],
)
def test_a_settlement_tells_whether_a_process_died_with_the_task(
    outcome: Failed | HandedBack, crashes: int, expected: tuple[str, str, bool]
) -> None:
    """So that what is kept of a dead task counts its last crash too."""
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
def test_processes_that_die_with_a_task_alone_are_counted(
    outcome: Failed | HandedBack, crashes: int, limit: int, expected: str
) -> None:
    """Whatever its policy says, so many crashes end it; the death of a shared process is none."""
    policy = ExponentialBackoff(base_delay_seconds=0, max_retries=50)
    options = {"dlq_eligible": True, "crashes": crashes, "crash_limit": limit}
    found = decide(outcome, policy, 1, NOW, **options)  # type: ignore[arg-type]
    assert found.end == expected


def test_a_success_needs_no_policy() -> None:
    """It is done, whatever the class says of failures."""
    found = decide(Succeeded([1]), NoRetry(), 1, NOW, dlq_eligible=True)
    assert found == Settlement(End.DONE)


def test_the_policy_gets_the_attempt_and_the_exception_itself() -> None:
    """The very exception object, and the number of the attempt that failed."""
    seen: list[tuple[int, BaseException]] = []

    class Curious(RetryPolicyBase):
        def schedule_retry(self, attempt: int, exception: BaseException) -> None:
            seen.append((attempt, exception))

    error = KeyError("x")
    decide(Failed(error), Curious(), 3, NOW, dlq_eligible=False)
    assert seen == [(3, error)]
    assert seen[0][1] is error


@pytest.mark.parametrize(("delay", "expected"), [(10, 0), (1000, 1000)])
def test_a_policy_that_answers_now_may_be_slow(delay: int, expected: int) -> None:
    """What is over when it has answered is no delay, so that the task does not wait to be due."""
    answer = NOW + timedelta(milliseconds=delay)

    class Slow(RetryPolicyBase):
        def schedule_retry(self, attempt: int, exception: BaseException) -> datetime:
            time.sleep(0.02)
            return answer

    found = decide(FAILED, Slow(), 1, NOW, dlq_eligible=False)
    assert found.delay == timedelta(milliseconds=expected)


def test_a_broken_policy_is_named_in_the_error() -> None:
    """The error that is kept says that the policy failed, beside what the task said."""
    error = decide(FAILED, At(answer=RuntimeError("bug")), 1, NOW, dlq_eligible=True).error
    assert error.type == "ValueError"
    assert error.text == "no (retry policy At failed: RuntimeError: bug)"


def test_a_policy_that_gives_no_instant_is_told_so() -> None:
    """A pause in seconds, for instance: the policy is the mistake, and what it gave is named."""
    error = decide(FAILED, At(answer=5), 1, NOW, dlq_eligible=True).error
    assert error.text == (
        "no (retry policy At failed: TypeError: schedule_retry of At returned 5: must be a "
        "datetime or None)"
    )


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
    """Its text is bounded and can be stored, whatever ``__str__`` does."""
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


def test_no_value_of_a_statement_is_kept() -> None:
    """An application's rows may hold secrets; the statement helps its author."""
    found = summarize(refused_by_sql())
    assert found.text == (
        "(sqlite3.IntegrityError) UNIQUE constraint failed: jobs.token\n"
        "[SQL: INSERT INTO jobs VALUES (?)]"
    )


def test_a_wrapped_statement_keeps_what_is_said_behind_it() -> None:
    """An author's own words stay, also around the detail of PostgreSQL."""
    text = "failed: (asyncpg.Error) no\nDETAIL:  Key (t)=(hunter2\n2) is there.\n[SQL: INSERT …]"
    found = summarize(ValueError(f"{text}\n[parameters: ('hunter2',)]\ngiven up"))
    assert found.text == "failed: (asyncpg.Error) no\n[SQL: INSERT …]\ngiven up"


def test_what_all_may_see_has_no_statement() -> None:
    """What the scheduler tells of hooks and entries: the class, and what the driver says."""
    assert summarize(refused_by_sql()).brief == (
        "IntegrityError: (sqlite3.IntegrityError) UNIQUE constraint failed: jobs.token"
    )


def test_a_traceback_shows_frames_without_values() -> None:
    """The last frames are kept, within a bound, and no local variable."""

    def fall(secret: str, depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        fall(secret, depth - 1)

    try:
        fall("hunter2", 200)
    except ValueError as error:
        found = summarize(error).traceback
    assert 'raise ValueError("bottom")' in found
    assert "hunter2" not in found
    assert len(found) <= 60_000


@pytest.mark.parametrize("text", ["x" * 60, "x" * 61, "é" * 30, "é" * 31, "x" + "é" * 40, "…" * 21])
def test_a_cut_text_says_so(text: str) -> None:
    """At most 60 bytes, no character is cut in two, and what was cut ends with a mark."""
    cut = shortened(text)
    assert len(cut.encode()) <= 60 and len(cut) >= 20
    assert cut == text if len(text.encode()) <= 60 else text.startswith(cut[:-1]) and cut[-1] == "…"

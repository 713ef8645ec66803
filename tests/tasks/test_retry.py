"""Retry policies: how often and after which pause."""

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nonet.base.errors import RegistrationError, StopRetrying, TaskRetryRequested
from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase

ERROR = ValueError("no")
BACKOFF: Any = ExponentialBackoff


def assert_waits(policy: RetryPolicyBase, expected: list[float | None]) -> None:
    """Compare the seconds until the next attempt after each failed one; None: given up."""
    for attempt, seconds in enumerate(expected, 1):
        before = datetime.now(UTC)
        at = policy.schedule_retry(attempt, ERROR)
        if seconds is None or at is None:
            assert at is seconds
        else:
            assert before <= at - timedelta(seconds=seconds) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NoRetry(), [None, None]),
        (ExponentialBackoff(), [10, 20, 40, 80, 160, None]),
        (ExponentialBackoff(base_delay_seconds=10, max_retries=3), [10, 20, 40, None]),
        (ExponentialBackoff(max_retries=1), [10, None]),
        (ExponentialBackoff(max_retries=0), [None]),
        (ExponentialBackoff(base_delay_seconds=0, max_retries=2), [0, 0, None]),
        (ExponentialBackoff(base_delay_seconds=0.5, max_retries=2), [0.5, 1, None]),
        (ExponentialBackoff(base_delay_seconds=10, max_retries=4, cap=25), [10, 20, 25, 25, None]),
        (ExponentialBackoff(base_delay_seconds=10, max_retries=1, cap=5), [5, None]),
    ],
)
def test_max_retries_bounds_the_retries_with_doubling_delays(
    policy: RetryPolicyBase, expected: list[float | None]
) -> None:
    """`max_retries=n` grants n retries: the base after the first failure, then doubling."""
    assert_waits(policy, expected)


@given(
    st.floats(0, allow_nan=False, allow_infinity=False),
    st.integers(1, 10**6),
    st.none() | st.floats(min_value=1e-3, allow_nan=False),
)
def test_a_retry_is_never_later_than_a_year(base: float, attempt: int, cap: float | None) -> None:
    policy = ExponentialBackoff(base_delay_seconds=base, max_retries=10**6, cap=cap, jitter=1)
    assert timedelta(0) <= policy.delay(attempt) <= timedelta(days=365)
    at = policy.schedule_retry(attempt, ERROR)
    assert at is not None
    assert at <= datetime.now(UTC) + 2 * timedelta(days=365)


@given(st.floats(0, 1))
def test_jitter_spreads_around_the_delay(jitter: float) -> None:
    policy = ExponentialBackoff(base_delay_seconds=10, jitter=jitter)
    before = datetime.now(UTC)
    at = policy.schedule_retry(1, ERROR)
    assert at is not None
    margin = timedelta(seconds=10 * jitter, milliseconds=1)
    delayed = at - timedelta(seconds=10)
    assert before - margin <= delayed <= datetime.now(UTC) + margin


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (ConnectionError(), True),
        (PermissionError(), False),
        (ValueError(), False),
        (TaskRetryRequested(), True),
        (StopRetrying(), False),
    ],
)
def test_errors_decide_about_a_retry(error: BaseException, is_retried: bool) -> None:
    """Only those of `retry_on` are retried, and never those of `give_up_on`."""
    policy = ExponentialBackoff(retry_on=(OSError,), give_up_on=(PermissionError,))
    assert (policy.schedule_retry(1, error) is not None) == is_retried
    shown = "retry_on=('OSError',), give_up_on=('PermissionError',))"
    assert repr(policy).endswith(shown)


def test_one_class_of_errors_is_no_tuple() -> None:
    """The error says what to write."""
    with pytest.raises(ValueError, match=r"retry_on\n.*write a tuple: \(OSError,\)"):
        ExponentialBackoff(retry_on=OSError)  # type: ignore[arg-type]


def test_an_own_policy_gets_the_exception() -> None:
    class OnlyTimeouts(RetryPolicyBase):
        pause: float = 5

        def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
            if isinstance(exception, TimeoutError):
                return datetime.now(UTC) + timedelta(seconds=self.pause)
            return None

    assert_waits(OnlyTimeouts(), [None])
    assert OnlyTimeouts(pause=1).schedule_retry(1, TimeoutError()) is not None


def with_own_init() -> None:
    class Own(RetryPolicyBase):
        def __init__(self, pause: float) -> None:
            self.pause = pause

    Own(3)


def with_async_rule() -> None:
    class Waits(RetryPolicyBase):
        async def schedule_retry(  # type: ignore[override]
            self, attempt: int, exception: BaseException
        ) -> None: ...


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: BACKOFF(base_delay=3), TypeError, "'base_delay'.* mean base_delay_seconds"),
        (lambda: BACKOFF(3), TypeError, "pass arguments by name: base_delay_seconds=…, max_"),
        (with_own_init, AttributeError, "Own.pause cannot be set: .* without an __init__"),
        (with_async_rule, RegistrationError, "Waits: schedule_retry is not awaited: .*without asy"),
        (lambda: RetryPolicyBase().schedule_retry(1, ERROR), NotImplementedError, "does not def"),
    ],
)
def test_a_mistake_in_a_policy_is_named(
    make: Callable[[], object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        make()


def test_a_policy_can_be_copied() -> None:
    policy = ExponentialBackoff(max_retries=3)
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy

"""Retry policies: how often and after which pause."""

import copy
import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from nonet.base.errors import RegistrationError
from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase

ERROR = ValueError("no")


def waits(policy: RetryPolicyBase, attempts: int) -> list[float | None]:
    """Seconds until the next attempt after each failed one, to a tenth; None: given up."""
    found: list[float | None] = []
    for attempt in range(1, attempts + 1):
        before = datetime.now(UTC)
        at = policy.schedule_retry(attempt, ERROR)
        found.append(None if at is None else round((at - before).total_seconds(), 1))
    return found


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
def test_max_retries_means_retries(policy: RetryPolicyBase, expected: list[float | None]) -> None:
    """`max_retries=n` grants n retries: the base after the first failure, then doubling."""
    assert waits(policy, len(expected)) == expected


@given(
    st.floats(0, allow_nan=False, allow_infinity=False),
    st.integers(1, 10**6),
    st.none() | st.floats(min_value=1e-3, allow_nan=False),
)
def test_a_retry_is_never_later_than_a_year(base: float, attempt: int, cap: float | None) -> None:
    """No combination of numbers makes a date that cannot be stored."""
    policy = ExponentialBackoff(base_delay_seconds=base, max_retries=10**6, cap=cap, jitter=1)
    assert timedelta(0) <= policy.delay(attempt) <= timedelta(days=365)
    at = policy.schedule_retry(attempt, ERROR)
    assert at is not None
    assert at <= datetime.now(UTC) + 2 * timedelta(days=365)


@given(st.floats(0, 1))
def test_jitter_spreads_around_the_delay(jitter: float) -> None:
    """A delay of 10 s with a jitter of j lies within 10 ∓ 10 j seconds."""
    policy = ExponentialBackoff(base_delay_seconds=10, jitter=jitter)
    before = datetime.now(UTC)
    at = policy.schedule_retry(1, ERROR)
    assert at is not None
    assert 10 - 10 * jitter - 0.001 <= (at - before).total_seconds() <= 10 + 10 * jitter + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"base_delay_seconds": -1},
        {"base_delay_seconds": math.nan},
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"cap": 0},
        {"jitter": 1.1},
        {"max_retrys": 3},
    ],
)
def test_senseless_fields_are_refused(fields: dict[str, float]) -> None:
    """A policy that is written in configuration is checked when it is made."""
    with pytest.raises(ValidationError):
        ExponentialBackoff.model_validate(fields)


def test_a_policy_of_ones_own_sees_the_exception() -> None:
    """A subclass decides by the real exception object."""

    class OnlyTimeouts(RetryPolicyBase):
        pause: float = 5

        def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
            if isinstance(exception, TimeoutError):
                return datetime.now(UTC) + timedelta(seconds=self.pause)
            return None

    assert waits(OnlyTimeouts(), 1) == [None]
    assert OnlyTimeouts(pause=1).schedule_retry(1, TimeoutError()) is not None


def misspelt() -> None:
    arguments: Any = {"base_delay": 3}
    ExponentialBackoff(**arguments)


def by_position() -> None:
    policy: Any = ExponentialBackoff
    policy(3)


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


FIELDS = "base_delay_seconds, max_retries, cap, jitter"


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (
            misspelt,
            TypeError,
            f"ExponentialBackoff: unknown argument 'base_delay', known are {FIELDS}. "
            "Did you mean base_delay_seconds?",
        ),
        (
            by_position,
            TypeError,
            "ExponentialBackoff: pass arguments by name: "
            "base_delay_seconds=…, max_retries=…, cap=…, jitter=…",
        ),
        (
            with_own_init,
            AttributeError,
            "Own.pause cannot be set: a policy is frozen; declare arguments as annotated "
            "fields (`pause: float = 30`), without an __init__",
        ),
        (
            with_async_rule,
            RegistrationError,
            f"{__name__}.with_async_rule.<locals>.Waits: schedule_retry is not awaited: write "
            "`def schedule_retry`, without async",
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    make: Callable[[], None], error: type[Exception], told: str
) -> None:
    """What pydantic would say in its own words, or nobody until the first failure."""
    with pytest.raises(error) as refused:
        make()
    assert str(refused.value) == told


def test_a_policy_can_be_copied() -> None:
    """What makes one refuses no copy, and no pickle."""
    policy = ExponentialBackoff(max_retries=3)
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy


def test_a_policy_without_a_rule_says_so() -> None:
    """The base class decides nothing."""
    with pytest.raises(NotImplementedError, match="RetryPolicyBase does not define"):
        RetryPolicyBase().schedule_retry(1, ERROR)

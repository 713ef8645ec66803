"""Retry policies: when a failed attempt is tried again. Pure; no clock, no I/O."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

_YEAR = timedelta(days=365).total_seconds()


class RetryPolicyBase(BaseModel):
    """Base of retry policies; subclass it and override `schedule_retry`.

    Fields of a subclass are validated by pydantic, so a policy can be written in configuration.

    Example:
        class OnlyTimeouts(RetryPolicyBase):
            pause_seconds: float = 5

            def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
                if isinstance(exception, TimeoutError):
                    return datetime.now(UTC) + timedelta(seconds=self.pause_seconds)
                return None

        class Download(BaseTask):
            retry_policy = OnlyTimeouts(pause_seconds=60)
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """The instant of the next attempt, or None to give up.

        Args:
            attempt: number of the attempt that just failed, counted from 1.
            exception: the real exception object that ended it.

        Returns:
            An aware datetime (a naive one is read as UTC), or None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define schedule_retry()")


class NoRetry(RetryPolicyBase):
    """Never retry: the first failure is final. The default.

    Example:
        class Notify(BaseTask):
            retry_policy = NoRetry()
    """

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """Never; see `RetryPolicyBase.schedule_retry`."""
        return None


class ExponentialBackoff(RetryPolicyBase):
    """Retry after `base_delay_seconds`, then after twice as long each time.

    Args:
        base_delay_seconds: delay before the first retry, in seconds.
        max_retries: retries, so a task runs at most ``max_retries + 1`` times.
        cap: longest delay, in seconds; a year at most, also when it is None.
        jitter: share of the delay that is drawn at random, 0 … 1: with 0.2 a delay of 10 s
            becomes 8 … 12 s.

    Example:
        >>> policy = ExponentialBackoff(base_delay_seconds=10, max_retries=3)
        >>> [policy.delay(attempt).total_seconds() for attempt in (1, 2, 3)]
        [10.0, 20.0, 40.0]
    """

    base_delay_seconds: float = Field(default=10, ge=0)
    max_retries: int = Field(default=5, ge=0)
    cap: float | None = Field(default=None, gt=0)
    jitter: float = Field(default=0, ge=0, le=1)

    def delay(self, attempt: int) -> timedelta:
        """The pause after a failed attempt, without jitter.

        Args:
            attempt: its number, counted from 1.
        """
        # 2.0**1023 is the largest power a float holds; a year keeps dates valid.
        seconds = self.base_delay_seconds * 2.0 ** min(attempt - 1, 60)
        longest = min(self.cap or _YEAR, _YEAR)
        return timedelta(seconds=min(seconds, longest))

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """After the pause, whatever was raised; see `RetryPolicyBase.schedule_retry`."""
        if attempt > self.max_retries:
            return None
        spread = 1 + self.jitter * random.uniform(-1, 1)
        return datetime.now(UTC) + self.delay(attempt) * spread

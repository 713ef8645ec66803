"""A custom retry policy, which retries only one type of exception."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet import RetryPolicyBase
from nonet_example.storage import StorageUnavailable


class WhileUnavailable(RetryPolicyBase):
    """Retry while a storage element is out of service; any other error is final.

    The configuration sets the fields as arguments:
    ``retry-policy: {class: WhileUnavailable, args: {every_seconds: 60}}``.
    """

    every_seconds: float = 30
    max_retries: int = 10

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        if attempt > self.max_retries or not isinstance(exception, StorageUnavailable):
            return None
        return datetime.now(UTC) + timedelta(seconds=self.every_seconds)

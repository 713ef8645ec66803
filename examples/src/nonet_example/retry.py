"""A retry policy of our own: it looks at what was raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet import RetryPolicyBase
from nonet_example.storage import StorageUnavailable


class WhileUnavailable(RetryPolicyBase):
    """Try again while a storage element is out of service; everything else is final.

    The fields are arguments in the configuration, too:
    ``retry-policy: {class: WhileUnavailable, args: {every_seconds: 60}}``.
    """

    every_seconds: float = 30
    max_retries: int = 10

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        if attempt > self.max_retries or not isinstance(exception, StorageUnavailable):
            return None
        return datetime.now(UTC) + timedelta(seconds=self.every_seconds)

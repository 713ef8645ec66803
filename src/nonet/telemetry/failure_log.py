"""Log a failure that repeats: the first one, then a summary each minute, then its end."""

from __future__ import annotations

import logging
import re
import time
from datetime import UTC, datetime

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.telemetry.outage import REDIS

_SUMMARY_SECONDS = 60.0
# Further kinds of errors in one outage appear in its summaries only.
_MOST_KINDS = 20


class FailureLog:
    """The successes and failures of one repeated activity.

    If Redis does not answer, `nonet.telemetry.outage` logs that for the whole process.

    An expected failure (a `NonetError`, such as an unavailable server) is logged as a warning, any
    other as an error with its traceback.

    Args:
        name: subject of the log lines, such as ``delayed promotion``.
        logger: receives the log lines.

    Attributes:
        failures: number of failures since the process started.
        error: the current failure; empty after a success.
        last_success: UTC; None before the first success.
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self.failures = 0
        self.error = ""
        self.last_success: datetime | None = None
        self._name = name
        self._logger = logger
        # The errors of this outage that were logged.
        self._kinds: set[str] = set()
        self._in_a_row = 0
        self._began = self._logged_at = 0.0

    def failed(self, error: BaseException, retry_in: float | None = None) -> None:
        """Count a failure. Log each kind of error once, then a summary each minute.

        Args:
            retry_in: seconds until the next attempt, for the log line.
        """

        from nonet.rules.outcomes import summarize  # each `--help` imports this module

        why, now = summarize(error), time.monotonic()
        self.failures += 1
        self.error = why.brief
        if isinstance(error, ServerUnreachableError) and error.server == "Redis":
            REDIS.failed(self._name, why.text)
            return
        if not self._in_a_row:
            self._began = now
        self._in_a_row += 1
        is_expected = issubclass(type(error), NonetError)
        level = logging.WARNING if is_expected else logging.ERROR
        text = why.text if is_expected else f"{why.type}: {why.text}"
        kind = re.sub(r"\d+", "", text)  # ports and seconds in it may differ each time
        # Two errors may alternate: log each once.
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            retry = "" if retry_in is None else f"retry_in={retry_in:.1f}s "
            info = None if is_expected else error
            self._logger.log(level, "%s failed: %serror=%s", self._name, retry, text, exc_info=info)
        elif now - self._logged_at >= _SUMMARY_SECONDS:
            self._logger.log(
                level,
                "%s still fails: failures=%d seconds=%.0f error=%s",
                self._name,
                self._in_a_row,
                now - self._began,
                text,
            )
        else:
            return
        self._logged_at = now

    def succeeded(self) -> None:
        """Record a success; if failures precede it, log how long they lasted."""
        self.last_success = datetime.now(UTC)
        self.error = ""
        if REDIS.is_unavailable:
            REDIS.recovered(self._name)
        if not self._in_a_row:
            return
        seconds = time.monotonic() - self._began
        self._logger.info(
            "%s is back after %.0f s: failures=%d", self._name, seconds, self._in_a_row
        )
        self._in_a_row = 0
        self._kinds.clear()

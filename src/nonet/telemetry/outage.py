"""Log an outage of Redis once for a process: when it goes, each 30 s, and when it is back.

Interruptions of less than a second are not outages: they are counted, and logged once a minute.

All parts of a process notice an outage at about the same time. They report to `REDIS` instead of
logging on their own.
"""

from __future__ import annotations

import logging
import time

from nonet.base.forks import Lock

logger = logging.getLogger(__name__)

_SUMMARY_SECONDS = 30.0
_SHORT_SECONDS = 1.0
_INTERRUPTIONS_SECONDS = 60.0
# A call that was sent before Redis came back may fail after the first answer.
_QUIET_SECONDS = 1.0


class Outage:
    """The outages of Redis, as this process sees them. Thread-safe.

    Attributes:
        is_unavailable: whether Redis does not answer now.
    """

    def __init__(self) -> None:
        self.is_unavailable = False
        self._waiting: set[str] = set()
        self._began = self._failed_at = self._logged_at = 0.0
        # The first answer since the last failure; 0: none yet.
        self._answered_at = 0.0
        # Whether this outage was logged.
        self._is_logged = False
        self._interruptions, self._told_at = 0, float("-inf")
        self._lock = Lock()

    def failed(self, activity: str, reason: str) -> None:
        """Record that a call had no answer.

        Args:
            activity: what will call again; it counts as waiting until `recovered`.
        """
        with self._lock:
            now = time.monotonic()
            self._waiting.add(activity)
            self._failed_at, self._answered_at = now, 0.0
            if not self.is_unavailable:
                self.is_unavailable, self._began, self._is_logged = True, now, False
                return
            if not self._is_logged:
                if now - self._began < _SHORT_SECONDS:
                    return
                self._is_logged = True
                logger.warning("Redis is unavailable: %s; waiting", reason)
            elif now - self._logged_at >= _SUMMARY_SECONDS:
                logger.warning(
                    "Redis is still unavailable: seconds=%.0f waiting=%d error=%s",
                    now - self._began,
                    len(self._waiting),
                    reason,
                )
            else:
                return
            self._logged_at = now

    def recovered(self, activity: str) -> None:
        """Record that an activity no longer waits. This does not mean that Redis answered."""
        with self._lock:
            self._waiting.discard(activity)

    def answered(self) -> None:
        """Record an answer. It ends an outage if no call has failed just now."""
        with self._lock:
            now = time.monotonic()
            self._answered_at = self._answered_at or now
            if not self.is_unavailable or now - self._failed_at < _QUIET_SECONDS:
                return
            self.is_unavailable = False
            self._waiting.clear()
            seconds = self._answered_at - self._began
            if not self._is_logged:
                self._count_interruption(now)
                return
        logger.warning("Redis is back after %.0f s", seconds)

    def _count_interruption(self, now: float) -> None:
        self._interruptions += 1
        if now - self._told_at < _INTERRUPTIONS_SECONDS:
            return
        logger.info("reopened lost connections to Redis: times=%d", self._interruptions)
        self._interruptions, self._told_at = 0, now


REDIS = Outage()

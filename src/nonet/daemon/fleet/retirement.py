"""Retirement: a worker ends itself when it has been idle for a while, or is old."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable

from nonet.daemon.fleet.worker_process import Line
from nonet.daemon.service import Stop

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 0.1


class Retirement:
    """Drain a worker that is not needed, or is old.

    Args:
        idle_seconds: returns how long the worker has been idle.
        retire: leaves the stack of idle workers; False: there is work, so the worker must stay.
        stop: drains the worker.
        idle_exit: idle seconds after which it ends; None: never.
        max_lifetime: seconds after which it ends, a tenth more or less; None: never.
        line: line to the supervisor of its fleet, which must agree; None outside a fleet.
    """

    def __init__(
        self,
        idle_seconds: Callable[[], float],
        retire: Callable[[], Awaitable[bool]],
        stop: Stop,
        *,
        idle_exit: float | None = None,
        max_lifetime: float | None = None,
        line: Line | None = None,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._retire = retire
        self._stop = stop
        self._idle_exit = idle_exit
        self._line = line
        self._ends_at = None if max_lifetime is None else time.monotonic() + spread(max_lifetime)

    async def tick(self) -> float:
        """Drain the worker if it is time; return the seconds until the next check."""
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            logger.info("draining: maximum lifetime reached")
            self._stop.drain()
            return _LOOK_SECONDS
        if self._idle_exit is None:
            return _LOOK_SECONDS
        left = self._idle_exit - self._idle_seconds()
        if left > 0:
            self._stay()
            return min(left, _LOOK_SECONDS)
        if self._line is not None and not self._line.may_leave.is_set():
            self._line.ask_to_leave()
            return await self._hear(self._line)
        if await self._retire():
            logger.info("draining: idle_seconds=%.1f", self._idle_seconds())
            self._stop.drain()
        else:
            self._stay()
        return _ANSWER_SECONDS

    def _stay(self) -> None:
        if self._line is not None and self._line.may_leave.is_set():
            self._line.stay()

    async def _hear(self, line: Line) -> float:
        """Wait a second for the supervisor's answer; a supervisor that refuses sends none."""
        asked = time.monotonic()
        while not line.may_leave.is_set() and time.monotonic() < asked + _LOOK_SECONDS:
            await self._stop.sleep(_ANSWER_SECONDS)
            if self._stop.requested.is_set():
                break
        return 0.0


def spread(seconds: float) -> float:
    """Vary a time by a tenth, so that workers that started together do not end together."""
    return seconds * random.uniform(0.9, 1.1)

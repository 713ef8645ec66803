"""Retirement: a worker ends by itself when it has had nothing to do for a while, or is old."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from nonet.daemon.fleet.worker_process import Line
from nonet.daemon.service import Stop

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 0.1


class Idler(Protocol):
    """What a retirement asks a worker."""

    @property
    def idle_seconds(self) -> float:
        """For how long nothing has run in it."""
        ...


class Retirement:
    """Drains a worker that is not needed, or is old.

    Args:
        worker: which one.
        retire: leaves the stack of idle workers; False: there is work, so it must stay.
        stop: drains the worker.
        idle_exit: seconds without any task after which it ends; None: it does not.
        max_lifetime: seconds after which it ends, a tenth more or less; None: it does not.
        line: to the supervisor of its fleet, who is asked first; None: it is no fleet's.
    """

    def __init__(
        self,
        worker: Idler,
        retire: Callable[[], Awaitable[bool]],
        stop: Stop,
        *,
        idle_exit: float | None = None,
        max_lifetime: float | None = None,
        line: Line | None = None,
    ) -> None:
        self._worker = worker
        self._retire = retire
        self._stop = stop
        self._idle_exit = idle_exit
        self._line = line
        self._ends_at = None if max_lifetime is None else time.monotonic() + spread(max_lifetime)

    async def tick(self) -> float:
        """Look whether it is time to end; the seconds until the next look."""
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            logger.info("old enough: drains")
            self._stop.drain()
            return _LOOK_SECONDS
        if self._idle_exit is None:
            return _LOOK_SECONDS
        left = self._idle_exit - self._worker.idle_seconds
        if left > 0:
            self._stay()
            return min(left, _LOOK_SECONDS)
        if self._line is not None and not self._line.may_leave.is_set():
            self._line.ask_to_leave()
            return await self._hear(self._line)
        if await self._retire():
            logger.info("nothing to do for %.1f s: drains", self._worker.idle_seconds)
            self._stop.drain()
        else:
            self._stay()
        return _ANSWER_SECONDS

    def _stay(self) -> None:
        if self._line is not None and self._line.may_leave.is_set():
            self._line.stay()

    async def _hear(self, line: Line) -> float:
        """The answer of the supervisor comes within a moment, or not at all."""
        asked = time.monotonic()
        while not line.may_leave.is_set() and time.monotonic() < asked + _LOOK_SECONDS:
            await self._stop.sleep(_ANSWER_SECONDS)
            if self._stop.requested.is_set():
                break
        return 0.0


def spread(seconds: float) -> float:
    """A tenth more or less, so that those that began together do not end together."""
    return seconds * random.uniform(0.9, 1.1)

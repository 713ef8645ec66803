"""Run plain functions in a few threads, because each may hold a database connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from nonet.worker.attempt.attempt import Attempt

logger = logging.getLogger(__name__)


class FunctionThreads(Executor):
    """Runs plain ``execute`` functions, each in a thread of its own.

    An attempt takes a place before it begins, so that its time limits do not count the wait. The
    place is free again when the thread has ended. An attempt that ignores its time limit frees its
    place at once, but at most as many such attempts as there are places: each keeps its memory.

    Args:
        places: how many attempts run at a time.
        freed: called when no attempt waits any longer, so that the worker may fetch again.

    Attributes:
        places: see above.
        waiting: how many attempts wait for a place.
    """

    def __init__(self, places: int, freed: Callable[[], None]) -> None:
        self.places = places
        self._freed = freed
        self._free = asyncio.Semaphore(places)
        self._taken = self._overdue = 0
        self.waiting = 0
        # Pools of at most one thread each. A pool of several may start a thread although one is
        # about to be idle, and would end up with more threads than running attempts.
        self._idle: list[ThreadPoolExecutor] = []
        self._is_closed = False

    @property
    def free(self) -> int:
        """How many attempts may begin without waiting."""
        return max(0, self.places - self._taken - self.waiting)

    async def take_place(self) -> None:
        """Wait for a place."""
        self.waiting += 1
        try:
            await self._free.acquire()
            self._taken += 1
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._freed()

    def give_back_place(self, attempt: Attempt) -> None:
        """Free the place of an ended attempt, at once or when its thread has ended."""
        running = [left for left in attempt.left if isinstance(left, Future) and not left.done()]
        if not running:
            self._give_back()
            return
        is_late = attempt.timed_out is not None
        is_overdue = is_late and self._overdue < self.places
        self._overdue += is_overdue
        if is_overdue:
            self._give_back()
        elif is_late:
            logger.error(
                "%d plain functions ignore their cancellation, more than the %d threads of this "
                "worker: restart it",
                self._overdue + 1,
                self.places,
            )
        loop = asyncio.get_running_loop()

        def ended() -> None:
            if is_overdue:
                self._overdue -= 1
            else:
                self._give_back()

        running[0].add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(ended))

    def _give_back(self) -> None:
        self._taken -= 1
        self._free.release()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor`; never waits for a thread."""
        if self._idle:
            thread = self._idle.pop()
        else:
            thread = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
        future = thread.submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self._keep(thread))
        return future

    def _keep(self, thread: ThreadPoolExecutor) -> None:
        """Keep an idle thread for the next attempt, unless there are enough."""
        if self._is_closed or len(self._idle) >= self.places:
            thread.shutdown(wait=False)
        else:
            self._idle.append(thread)

    def close(self) -> None:
        """End all threads without waiting for busy ones."""
        self._is_closed = True
        for thread in self._idle:
            thread.shutdown(wait=False)

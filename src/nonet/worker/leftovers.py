"""What goes on although its attempt is over, and the slots that it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

logger = logging.getLogger(__name__)


class Leftovers:
    """Threads and asyncio tasks that could not be stopped, until they end.

    Args:
        slots: of the worker.
        freed: called when one has ended.
    """

    def __init__(self, slots: int, freed: Callable[[], None]) -> None:
        self._slots = slots
        self._freed = freed
        # Threads of attempts that were cut off; each keeps its slot.
        self._abandoned: set[Future[Any]] = set()
        # What goes on beyond its time; it frees its slot, unless there are too many.
        self._given_up: set[Future[Any] | asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self._abandoned or self._given_up)

    @property
    def slots_taken(self) -> int:
        """Slots that they keep from others.

        What was given up frees as many as there are; without a bound its threads would fill the
        memory.
        """
        return len(self._abandoned) + self._overdue

    @property
    def _overdue(self) -> int:
        return max(0, len(self._given_up) - self._slots)

    def abandon(self, thread: Future[Any]) -> None:
        """Count a thread that cannot be stopped as a slot in use, until it ends."""
        self._keep_until_end(thread, self._abandoned)

    def give_up(self, left: Future[Any] | asyncio.Task[Any]) -> None:
        """Let others have the slot of what goes on beyond its time."""
        self._keep_until_end(left, self._given_up)
        if self._overdue:
            logger.error(
                "%d attempts go on beyond their time and take %d of %d slots: restart this worker",
                *(len(self._given_up), self._overdue, self._slots),
            )

    def _keep_until_end(self, left: Any, kept: set[Any]) -> None:
        """`left` is a future of a thread or an asyncio task, which call back in the same way."""
        loop = asyncio.get_running_loop()

        def ended(done: object) -> None:
            kept.discard(done)
            self._freed()

        kept.add(left)
        left.add_done_callback(
            lambda done: loop.is_closed() or loop.call_soon_threadsafe(ended, done)
        )

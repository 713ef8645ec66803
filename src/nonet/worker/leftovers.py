"""Code that runs on although its attempt has ended, and the slots that it takes."""

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
        self._in_slots: set[object] = set()
        self._overdue: set[object] = set()

    def __len__(self) -> int:
        return len(self._in_slots) + len(self._overdue)

    @property
    def slots_taken(self) -> int:
        """Slots that they keep from others.

        Overdue code frees as many slots as there are; without that bound its threads would fill the
        memory.
        """
        return len(self._in_slots) + self._beyond

    @property
    def _beyond(self) -> int:
        return max(0, len(self._overdue) - self._slots)

    def add(self, left: Future[Any] | asyncio.Task[Any], *, is_overdue: bool) -> None:
        """Keep a thread or an asyncio task until it ends.

        Args:
            is_overdue: it has had its time: another attempt may have its slot.
        """
        kept = self._overdue if is_overdue else self._in_slots
        loop = asyncio.get_running_loop()

        def ended(done: object) -> None:
            kept.discard(done)
            self._freed()

        kept.add(left)
        left.add_done_callback(
            lambda done: loop.is_closed() or loop.call_soon_threadsafe(ended, done)
        )
        if is_overdue and self._beyond:
            logger.error(
                "code of %d attempts ignores its cancellation and takes %d of %d slots: "
                "restart this worker",
                *(len(self._overdue), self._beyond, self._slots),
            )

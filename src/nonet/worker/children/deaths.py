"""Report the deaths of child processes as events, without flooding the event stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from nonet.base.actor import process_name
from nonet.base.errors import NonetError

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 10.0
_MOST_NAMED = 10


class ChildDeaths:
    """Writes at most one event in ten seconds; it counts the deaths in between.

    Args:
        log: writes an event: its kind, who reports it, its text.
    """

    def __init__(self, log: Callable[[str, str, str], Awaitable[None]]) -> None:
        self._log = log
        self._name = process_name()
        self._unreported = 0
        self._next = 0.0
        self._writing: set[asyncio.Task[None]] = set()

    def report(self, pid: int, tasks: Sequence[str], error: str) -> None:
        """Report the death of a child.

        Args:
            tasks: the tasks that it had, each as ``ID (CLASS)``.
            error: how it died.
        """
        now = time.monotonic()
        if now < self._next:
            self._unreported += 1
            return
        named = ", ".join(tasks[:_MOST_NAMED])
        named += f" and {len(tasks) - _MOST_NAMED} more" if len(tasks) > _MOST_NAMED else ""
        text = f"child process {pid} of {self._name} died with {named}: {error}"
        if self._unreported:
            text += f" ({self._unreported} others died since the last event)"
        self._next, self._unreported = now + _PAUSE_SECONDS, 0
        task = asyncio.create_task(self._write(text))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, text: str) -> None:
        try:
            await self._log("child-lost", self._name, text)
        except NonetError as error:
            logger.debug("event not written: %s", error)

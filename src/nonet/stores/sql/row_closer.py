"""Deletes the rows of durable tasks that have ended, beside the work."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Outbox

logger = logging.getLogger(__name__)

_BATCH = 200
# Ids that wait while SQL is away. The relay finds the rows of those beyond.
_MOST = 10_000
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 1.0


class RowCloser:
    """Deletes rows in batches: what ends while a batch is under way goes with the next.

    No slot of the worker waits for it. What it does not get done, because the worker dies or SQL is
    away for long, the relay does.

    Args:
        outbox: opens the SQL store on first use.
    """

    def __init__(self, outbox: Callable[[], Awaitable[Outbox]]) -> None:
        self._outbox = outbox
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def close(self, id: str) -> None:
        """Have the row of a task deleted that was settled for good."""
        if len(self._waiting) >= _MOST:
            return
        self._waiting[id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(
                self._run(), name="rows of durable tasks", context=contextvars.Context()
            )

    async def aclose(self) -> None:
        """Wait for what is under way, but not long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while batch := list(islice(self._waiting, _BATCH)):
            try:
                await (await self._outbox()).close(batch)
            except Exception as error:  # the tasks have ended; only their rows are left
                logger.warning("rows of %d durable tasks stay: %s", len(self._waiting), error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for id in batch:
                del self._waiting[id]

"""Deletes the rows of durable tasks that have ended, in the background."""

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
# Ids to remember while SQL is unavailable. The relay deletes the rows of all further tasks.
_MOST = 10_000
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 1.0


class RowCloser:
    """Deletes rows in batches: tasks that end while a batch is in flight go into the next one.

    Slots of the worker do not wait for it. If the worker dies, or SQL is unavailable for long, the
    relay deletes the remaining rows.

    Args:
        outbox: opens the SQL store on first use.
    """

    def __init__(self, outbox: Callable[[], Awaitable[Outbox]]) -> None:
        self._outbox = outbox
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def close(self, id: str) -> None:
        """Schedule the deletion of a row whose task was settled for good."""
        if len(self._waiting) >= _MOST:
            return
        self._waiting[id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(
                self._run(), name="rows of durable tasks", context=contextvars.Context()
            )

    async def aclose(self) -> None:
        """Wait at most a second for the batches in flight."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while batch := list(islice(self._waiting, _BATCH)):
            try:
                await (await self._outbox()).close(batch)
            except Exception as error:  # the tasks have ended; only their rows remain
                logger.warning(
                    "could not delete the rows of %d durable tasks, trying again in %g s: %s",
                    len(self._waiting),
                    _RETRY_SECONDS,
                    error,
                )
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for id in batch:
                del self._waiting[id]

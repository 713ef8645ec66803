"""Settle deliveries in Redis, merging those that end at about the same time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nonet.base.errors import OF_THE_SERVER
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import Scripts

logger = logging.getLogger(__name__)

# Limits of one call of the settle script, so that it never blocks Redis for long.
_MOST_TASKS = 100
_MOST_BYTES = 1024 * 1024
_CLOSE_SECONDS = 1.0

Answered = Callable[[str | BaseException], None]
"""Called once with ``OK``, ``STALE``, ``LOST`` or an error. It must not raise."""


class Settlements:
    """Settles deliveries of one namespace.

    The first call is sent at the end of the current step of the event loop, with all deliveries
    that end in that step. Those that end while it is under way are sent together when it is
    answered; nothing waits for a timer. Each delivery gets its own answer or error.

    Args:
        scripts: run the scripts.
        seen: what the process has seen of Redis.
        keeping: see `nonet.stores.queue.broker.Broker`.
        lock_ttl_ms: TTL of locks that define none.
    """

    def __init__(self, scripts: Scripts, seen: EpochSeen, keeping: str, lock_ttl_ms: int) -> None:
        self._scripts = scripts
        self._seen = seen
        self._keeping = keeping
        self._lock_ttl_ms = lock_ttl_ms
        self._waiting: deque[_Asked] = deque()
        self._sender: asyncio.Task[None] | None = None

    def ask(self, args: Sequence[Any], size: int, tasks: int = 1) -> asyncio.Future[str]:
        """Settle a delivery with the next call, even if the caller is cancelled meanwhile.

        Args:
            args: arguments of the settle script for this delivery.
            size: their approximate length in bytes.
            tasks: number of tasks that are settled or submitted.

        Returns:
            A future with ``OK``, ``STALE`` or ``LOST``, or an error.

        Raises:
            NotBoundError: the broker is in use in another event loop that still runs.
        """
        self._scripts.lane.check_loop()
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.send(args, size, partial(_resolve, answer), tasks)
        return answer

    def send(self, args: Sequence[Any], size: int, answered: Answered, tasks: int = 1) -> None:
        """Settle a delivery as `ask` does, without a future: thousands end in a second."""
        self._waiting.append((args, size, tasks, answered))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="settlements")

    async def aclose(self) -> None:
        """Wait briefly for calls under way: Redis may not answer."""
        if self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender}, timeout=_CLOSE_SECONDS)
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def _send(self) -> None:
        batch: list[_Asked] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                await self._settle(batch)
        except BaseException as error:
            left = (*batch, *self._waiting)
            self._waiting.clear()
            for *_, answered in left:
                answered(error)
            raise

    def _next_batch(self) -> list[_Asked]:
        batch: list[_Asked] = []
        tasks = size = 0
        while self._waiting:
            asked = self._waiting[0]
            tasks += asked[2]
            size += asked[1]
            if batch and (tasks > _MOST_TASKS or size > _MOST_BYTES):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _settle(self, batch: Sequence[_Asked]) -> None:
        args = [part for asked in batch for part in asked[0]]
        times = f"{self._lock_ttl_ms}|{self._seen.latest}"
        try:
            answers, is_safe = await self._scripts.run_confirmed(
                "settle", self._keeping, times, *args
            )
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, OF_THE_SERVER):
                await self._settle_alone(batch)
                return
            for *_, answered in batch:
                answered(error)
            return
        if not is_safe:
            # The settle succeeded. If the master fails before replicating it, the tasks run again.
            logger.warning("settle not confirmed by enough replicas deliveries=%d", len(batch))
        if answers == b"OK":
            answers = [b"OK"] * len(batch)
        failed = []
        for asked, text in zip(batch, answers, strict=True):
            if text == b"FAILED":
                failed.append(asked)
            else:
                asked[3](text.decode())
        await self._settle_alone(failed)

    async def _settle_alone(self, batch: Sequence[_Asked]) -> None:
        """Send each settlement as a call of its own, so that each caller gets its own error."""
        await asyncio.gather(*(self._settle([asked]) for asked in batch))


_Asked = tuple[Sequence[Any], int, int, Answered]


def _resolve(future: asyncio.Future[str], answer: str | BaseException) -> None:
    if future.done():  # its caller was cancelled
        return
    if isinstance(answer, str):
        future.set_result(answer)
    elif isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.cancel()

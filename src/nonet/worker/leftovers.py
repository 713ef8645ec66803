"""Track code that ignores its cancellation, and the slots and locks that it keeps."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from nonet.base.errors import NonetError
from nonet.daemon.watchdog import Watchdog
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.holds import hold_of_code
from nonet.stores.queue.leases import Lease
from nonet.tasks.locks import has_structural
from nonet.worker.attempt.attempt import Attempt

logger = logging.getLogger(__name__)


class Leftovers:
    """Threads and asyncio tasks that still run although their attempt has ended.

    Args:
        slots: number of slots of the worker.
        freed: called when one of them has ended.
        watchdog: renews the locks that its tasks keep.
    """

    def __init__(
        self, slots: int, freed: Callable[[], None], watchdog: Watchdog, broker: Broker
    ) -> None:
        self._slots = slots
        self._freed = freed
        self._watchdog = watchdog
        self._broker = broker
        self._keepers: set[asyncio.Task[None]] = set()
        self._in_slots: set[object] = set()
        self._overdue: set[object] = set()

    def __len__(self) -> int:
        return len(self._in_slots) + len(self._overdue)

    @property
    def slots_taken(self) -> int:
        """How many slots other tasks cannot use.

        Code that exceeded its time limit frees its slot, but each slot is freed only once.
        Otherwise the threads of such code could use up the memory.
        """
        return len(self._in_slots) + self._beyond

    @property
    def _beyond(self) -> int:
        return max(0, len(self._overdue) - self._slots)

    def add(self, attempt: Attempt, left: Future[Any] | asyncio.Task[Any]) -> None:
        """Take over a thread or asyncio task, so that its attempt can end without it."""
        attempt.left = (*attempt.left, left)
        # It exceeded its time limit, so another attempt gets the slot.
        is_overdue = attempt.timed_out is not None or isinstance(left, asyncio.Task)
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
                len(self._overdue),
                self._beyond,
                self._slots,
            )

    def keep_locks(self, attempt: Attempt, since: float) -> None:
        """Renew the locks that the settle script kept for abandoned code, until the code ends.

        Args:
            since: monotonic time before that settle.
        """
        if has_structural(attempt.locks):
            keeping = self._keep_locks(attempt, since)
            keeper = asyncio.create_task(keeping, context=contextvars.Context())
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)

    async def _keep_locks(self, attempt: Attempt, since: float) -> None:
        hold = hold_of_code(attempt.delivery)
        lease = Lease(hold, "0", attempt.delivery.fence, attempt.lease.ttl)
        self._watchdog.hold(lease, since, lambda reason: None)
        await asyncio.wait([_awaitable(left) for left in attempt.left])
        self._watchdog.drop(lease)
        with suppress(NonetError):  # if this fails, the locks expire
            await self._broker.unhold(hold)


def _awaitable(left: Future[Any] | asyncio.Task[Any]) -> asyncio.Future[Any]:
    return left if isinstance(left, asyncio.Task) else asyncio.wrap_future(left)

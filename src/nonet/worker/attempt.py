"""One delivery in the hands of a worker: its lease, its context and why it may be cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from nonet.execution import TaskContext
from nonet.locks import rate_limited
from nonet.stores.broker import Delivery
from nonet.stores.leases import Lease

_TOKEN_SECONDS = 0.5


class Attempt:
    """A delivery that runs.

    Attributes:
        delivery: what the broker handed over.
        lease: what the watchdog renews.
        locks, held: what it was admitted with, see `nonet.locks.encode_locks`.
        since: monotonic time before the locks were asked for.
        context: what `context()` returns inside the task.
        cut_off: why the framework cancelled it, or None.
        started: whether ``execute`` was called.
        in_thread: whether it was called in a thread, which no cancellation ends.
        lost: why nothing that it does counts any more, or None.
    """

    lease: Lease

    def __init__(self, delivery: Delivery, since: float) -> None:
        self.delivery = delivery
        self.locks = delivery.locks
        self.held = delivery.held
        self.since = since
        self.context = TaskContext(
            id=delivery.id,
            name="",
            attempt=delivery.attempt,
            fence=int(delivery.fence),
            labels={},
        )
        self.cut_off: str | None = None
        self.started = False
        self.in_thread = False
        self.lost: str | None = None
        self._loop = asyncio.get_running_loop()
        self._cancellable: asyncio.Task[Any] | None = None

    def relock(self, locks: str, held: str, since: float) -> None:
        """It was admitted with other locks than it was delivered with."""
        self.locks, self.held, self.since = locks, held, since

    def is_token_stale(self) -> bool:
        """Whether it took a token of a rate limiter and has not started soon enough after.

        The limit is kept at the time of the grant; what starts later could meet the next ones.
        """
        waited = time.monotonic() - self.since
        return waited > _TOKEN_SECONDS and rate_limited(self.locks, self.held)

    def describe(self, name: str, labels: Mapping[str, Any], group: str) -> None:
        """Fill in what the envelope says."""
        self.context.name = name
        self.context.labels = labels
        self.context.group = group

    def enter(self) -> None:
        """From here on `cut` cancels the current asyncio task."""
        self._cancellable = asyncio.current_task()
        if self.cut_off is not None and self._cancellable is not None:
            self._cancellable.cancel()

    def leave(self) -> None:
        """From here on nothing is cancelled: a settlement must not be cut."""
        self._cancellable = None

    def lose(self, reason: str) -> None:
        """Void the attempt at once, cancel it soon; called by any thread."""
        self.lost = reason
        self.context.lose_lease(reason)
        if not self._loop.is_closed():  # a thread of the task may have outlived it
            self._loop.call_soon_threadsafe(self.cut, reason)

    def cut(self, reason: str) -> None:
        """Cancel what runs, if anything runs."""
        if self.cut_off is None:
            self.cut_off = reason
            if self._cancellable is not None:
                self._cancellable.cancel()

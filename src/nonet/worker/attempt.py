"""One delivery in the hands of a worker: its lease, its context and why it may be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nonet.stores.broker import Delivery
from nonet.stores.leases import Lease
from nonet.task import TaskContext


class Attempt:
    """A delivery that runs.

    Attributes:
        delivery: what the broker handed over.
        context: what `context()` returns inside the task.
        cut_off: why the framework cancelled it, or None.
        started: whether ``execute`` was called.
        in_thread: whether it was called in a thread, which no cancellation ends.
    """

    def __init__(self, delivery: Delivery, lease: Lease) -> None:
        self.delivery = delivery
        self.lease = lease
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
        """Called by the watchdog's thread: void the attempt at once, cancel it soon."""
        self.lost = reason
        self.context.lose_lease(reason)
        self._loop.call_soon_threadsafe(self.cut, reason)

    def cut(self, reason: str) -> None:
        """Cancel what runs, if anything runs."""
        if self.cut_off is None:
            self.cut_off = reason
            if self._cancellable is not None:
                self._cancellable.cancel()

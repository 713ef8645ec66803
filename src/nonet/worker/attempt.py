"""One delivery in the hands of a worker: its lease, its context and why it may be cut off."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nonet.errors import TaskTimeoutError
from nonet.execution import TaskContext
from nonet.locks import rate_limited
from nonet.message import Envelope
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
        timed_out: which time limit it exceeded, or None.
        vo: of its task, see `nonet.task.vo_of`; empty for none.
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
        self.timed_out: TaskTimeoutError | None = None
        self.vo = ""
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

    def describe(self, envelope: Envelope) -> None:
        """Fill in what the envelope says."""
        self.context.name = envelope.name
        self.context.labels = envelope.labels
        self.context.group = envelope.group
        # What its class says of it counts as soon as it is made.
        self.vo = str(envelope.args.get("vo") or envelope.labels.get("vo") or "")

    def enter(self, cancellable: asyncio.Task[Any] | None = None) -> None:
        """From here on `cut` and `time_out` cancel this asyncio task, else the current one."""
        self._cancellable = cancellable or asyncio.current_task()
        if self.cut_off is not None and self._cancellable is not None:
            self._cancellable.cancel()

    def leave(self) -> None:
        """From here on nothing is cancelled: a settlement must not be cut."""
        self._cancellable = None

    def time_out(self, error: TaskTimeoutError, *, for_good: bool = False) -> None:
        """Let the attempt fail with `error`, unless it was cut off before; cancel what runs.

        Args:
            for_good: nothing that it still does counts. Else a thread, which cannot be cancelled,
                is only told when it asks.
        """
        if self.cut_off is not None:
            return
        self.timed_out = error
        self.context.time_out(error)
        if for_good:
            self.context.lose_lease(str(error))
        if self._cancellable is not None and (for_good or not self.in_thread):
            self._cancellable.cancel()

    def leave_thread(self) -> None:
        """The thread in which ``execute`` was called has ended; what it returned may be awaited.

        Raises:
            TaskTimeoutError: the soft limit has passed meanwhile.
        """
        self.in_thread = False
        if self.timed_out is not None:
            raise self.timed_out

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

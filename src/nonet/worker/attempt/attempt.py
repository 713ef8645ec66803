"""One delivery in the hands of a worker: how far it has come, its lease, and why it is to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum, auto
from functools import cache
from typing import Any

from nonet.base.errors import TaskTimeoutError
from nonet.base.streams import Size
from nonet.client.client import Client
from nonet.config.overrides import Effective
from nonet.messages.message import Envelope
from nonet.rules.outcomes import Cancelled, HandedBack, Lost, Outcome
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Lease
from nonet.tasks.execution import Prepared, TaskContext, enter_subject
from nonet.tasks.locks import rate_limited
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import BaseTask, Options
from nonet.telemetry.tracing import AttemptSpan, current_trace

_TOKEN_SECONDS = 0.5


class AttemptContext(TaskContext):
    """What `context()` returns in a worker."""

    _client: Client
    _limit: int

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery.id, "", delivery.used + 1, int(delivery.fence), {})
        self._delivery = delivery

    def serve_with(self, client: Client, message_limit: int) -> None:
        """From here on it can save, submit and read, in the running event loop."""
        self._client = client
        self._limit = message_limit
        self._loop = asyncio.get_running_loop()

    async def _read_group(self, group: str) -> Sequence[Any]:
        return await self._client.group_results(group)

    def _prepare(self, task: BaseTask, options: Options) -> Prepared:
        # Sent when this attempt is settled, which is why it has no span of its own.
        return self._client.envelopes.prepare(task, options, trace=current_trace())

    async def _save(self, data: bytes) -> bool:
        if len(data) > self._limit:
            raise ValueError(
                f"the checkpoint has {len(data)} bytes, the limit is {self._limit} "
                "(NONET_MESSAGE_LIMIT); save a reference to large data instead"
            )
        return await self._client.broker.checkpoint(self._delivery, data)


class Stage(Enum):
    """How far an attempt has come in this process."""

    BEGINNING = auto()  # it is identified and placed
    WAITING = auto()  # for a child process, or for its turn
    IN_LOOP = auto()  # its author's code may run in this event loop: execute, its retry policy
    IN_CHILD = auto()
    SETTLING = auto()  # its code has ended, and with it the use of a slot
    BURYING = auto()  # it is dead, and is written to SQL


class Ending:
    """Why an attempt is to end before its code has; each is None until it is so.

    Any thread may void an attempt, so each is set by itself.

    Attributes:
        cut_off: this worker stops, or cannot go on with it.
        timed_out: the limit of time that it has exceeded.
        cancelled: who wants it to end, and why.
        lost: its lease is gone: nothing that it does counts.
    """

    cut_off: str | None = None
    timed_out: TaskTimeoutError | None = None
    cancelled: str | None = None
    lost: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether this process has asked it to end, for another reason than its own limits."""
        return not (self.lost is self.cut_off is self.cancelled is None)

    def outcome(self, *, started: bool) -> Outcome:
        """How an attempt ends that was asked to.

        >>> ending = Ending()
        >>> ending.cut_off, ending.cancelled = "the worker stopped", "by ann: wrong data"
        >>> ending.outcome(started=True)
        Cancelled(reason='by ann: wrong data')
        """
        if self.lost is not None:
            return Lost(self.lost)
        if self.cancelled is not None:
            return Cancelled(self.cancelled)
        return HandedBack(self.cut_off or "", started=started)


class Attempt:
    """A delivery that runs.

    Attributes:
        delivery: what the broker handed over.
        lease: what the watchdog renews.
        locks, held: what it was admitted with, see `nonet.tasks.locks.encode_locks`.
        since: monotonic time before the locks were asked for.
        context: what `context()` returns inside the task.
        task_class: of its task; None: this worker does not know it, or it is not identified yet.
        envelope: its message, once it was read.
        effective: what holds for it, as far as its VO is known before it is made.
        stage: how far it has come.
        ending: why it is to end.
        started: whether ``execute`` was called.
        in_thread: whether it was called in a thread, which no cancellation ends.
        hard_at: when it has used up its hard timeout (monotonic), or None.
        vo: of its task, see `nonet.tasks.task.vo_of`; empty for none.
        size: of the stream from which it came.
        trace: what its envelope says of who submitted it.
        span: of it, until it has ended; None: nobody collects spans.
        tallied: where its end is to be counted, see `nonet.worker.tally`; None: nowhere.
        left: threads and asyncio tasks that run its code although they were cancelled.
        on_left: called when its locks were kept for them, with a time (monotonic) before that.
    """

    lease: Lease

    # Most attempts change few of these: one is made for each delivery.
    task_class: TaskClass | None = None
    envelope: Envelope
    effective: Effective
    stage: Stage = Stage.BEGINNING
    started = False
    in_thread: bool = False
    hard_at: float | None = None
    vo: str = ""
    tallied: Any = None
    trace: str = ""
    span: AttemptSpan | None = None
    left: tuple[Future[Any] | asyncio.Task[Any], ...] = ()
    on_left: Callable[[float], None] | None = None
    _share: Callable[[float], None] | None = None
    _cancellable: asyncio.Task[Any] | None = None

    def __init__(self, delivery: Delivery, since: float) -> None:
        self.delivery = delivery
        self.locks: str = delivery.locks
        self.held: str = delivery.held
        self.since: float = since
        self.context: AttemptContext = AttemptContext(delivery)
        self.size: Size = _size_of(delivery.stream_key)
        self.ending: Ending = Ending()
        self._deadline = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def code(self) -> asyncio.Task[Any] | None:
        """What runs the task's own code in this event loop now."""
        return self._cancellable if self._share is None else None

    @property
    def goes_on(self) -> bool:
        """Whether some of its code runs although it was cancelled."""
        return any(not left.done() for left in self.left)

    def renewed(self, deadline: float) -> None:
        """Its lease holds until then (monotonic); called by the watchdog, in any thread."""
        self._deadline = deadline
        if (share := self._share) is not None:
            share(deadline)

    @property
    def deadline(self) -> float:
        """Until when its lease holds (monotonic)."""
        return self._deadline

    def share_deadline(self, share: Callable[[float], None] | None) -> None:
        """Call `share` with the deadline now, and with each later one; None: no more."""
        self._share = share
        if share is not None:
            share(self._deadline)

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
        """Fill in what the envelope says; from now on log lines name the task and this attempt."""
        self.envelope = envelope
        self.context.name = envelope.name
        self.context.labels = envelope.labels
        self.context.group = envelope.group
        # What its class says of it counts as soon as it is made.
        self.vo = str(envelope.args.get("vo") or envelope.labels.get("vo") or "")
        self.trace = envelope.trace
        enter_subject(self.context)

    def enter(self, cancellable: asyncio.Task[Any] | None = None) -> None:
        """From here on `cut` and `time_out` cancel this asyncio task, else the current one."""
        self._cancellable = cancellable or asyncio.current_task()
        if self.ending.cut_off is not None or self.ending.cancelled is not None:
            self._stop()

    def leave(self) -> None:
        """From here on nothing is cancelled: a settlement must not be cut."""
        self._cancellable = None

    def time_out(self, error: TaskTimeoutError, *, for_good: bool = False) -> None:
        """Let the attempt fail with `error`, unless it was cut off before; cancel what runs.

        Args:
            for_good: nothing that it still does counts. Else a thread, which cannot be cancelled,
                is only told when it asks.
        """
        if self.ending.cut_off is not None:
            return
        self.ending.timed_out = error
        self.context.time_out(error)
        if for_good:
            self.context.lose_lease(str(error))
        if for_good or not self.in_thread:
            self._stop()

    def leave_thread(self) -> None:
        """The thread in which ``execute`` was called has ended; what it returned may be awaited.

        Raises:
            TaskTimeoutError: the soft limit has passed meanwhile.
        """
        self.in_thread = False
        if self.ending.timed_out is not None:
            raise self.ending.timed_out

    def lose(self, reason: str) -> None:
        """Void the attempt at once, cancel it soon; called by any thread."""
        self.ending.lost = reason
        self.context.lose_lease(reason)
        if not self._loop.is_closed():  # a thread of the task may have outlived it
            self._loop.call_soon_threadsafe(self.cut, reason)

    def cancel(self, reason: str) -> None:
        """Somebody wants the task to end: cancel what runs, once.

        Args:
            reason: who, and why.
        """
        if self.ending.cancelled is None and self.ending.cut_off is None:
            self.ending.cancelled = reason
            if self.in_thread:  # which learns of it when it asks
                self.context.lose_lease(f"cancelled {reason}")
            self._stop()

    def cut(self, reason: str) -> None:
        """Cancel what runs, if anything runs."""
        if self.ending.cut_off is None:
            self.ending.cut_off = reason
            self._stop()

    def _stop(self) -> None:
        if self._cancellable is not None:
            self._cancellable.cancel()


@cache
def _size_of(stream_key: str) -> Size:
    return Size(stream_key.rpartition(":")[2])


def uncancel() -> None:
    """The current asyncio task was asked to stop, and does so in its own way."""
    current = asyncio.current_task()
    while current is not None and current.cancelling():
        current.uncancel()

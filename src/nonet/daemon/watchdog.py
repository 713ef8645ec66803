"""The watchdog: threads that renew leases and detect lost ones.

One thread renews over its own connection, so that a blocked event loop loses no leases. A renewal
may hang while Redis is silent, so a second thread enforces deadlines by the local monotonic clock.
It declares a lease lost before the lease ends on the server and another worker may start. Code that
relies on a lease can also call `Watchdog.check`, in case the thread has not noticed yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import cache

import msgspec

from nonet.stores.queue.leases import Lease, Leases
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.05
_STOP_SECONDS = 1.0
# A thread that merely waits to be scheduled is never this late.
_STUCK_SECONDS = 60.0
_NEVER = float("inf")
_OVERDUE = "the lease could not be renewed in time"


class _Held(msgspec.Struct, eq=False):
    lease: Lease
    deadline: float
    on_lost: Callable[[str], None]
    on_renewed: Callable[[float], None]

    def renew(self, deadline: float) -> None:
        self.deadline = deadline
        self.on_renewed(deadline)


class _Sleep:
    """The sleep of a thread, which other threads can shorten."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        # Infinite while the thread is awake: it rereads all deadlines before it sleeps.
        self.until = _NEVER

    def until_time(self, when: float) -> None:
        """Sleep until `when` (monotonic), or until `wake_by` names an earlier time.

        Args:
            when: must be computed after the last sleep, so that no `wake_by` is missed.
        """
        self.until = when
        self._wake.wait(min(max(0.0, when - time.monotonic()), threading.TIMEOUT_MAX))
        self.until = _NEVER  # later calls of `wake_by` must wake it again
        self._wake.clear()

    def wake_by(self, when: float) -> None:
        """End the sleep if it would last beyond `when`."""
        if when < self.until:
            self._wake.set()


class Watchdog:
    """Renew all leases of one process with one script call per beat.

    Args:
        leases: the store; only the watchdog's thread uses it.
        interval: seconds between two beats; shorter while a short lease is held.
        registered_for: seconds that a registration lasts; None: the process is not registered.
        on_unregistered: called in a thread of the watchdog, with the reason, when no beat has
            succeeded for that time (less a margin). Called again only after a beat has succeeded.
        why_late: returns what kept the threads from running, to be added to the reason of a loss;
            may be empty.

    Attributes:
        renewed_at: monotonic time before the last beat that Redis answered.
        losses: number of lost leases.
    """

    def __init__(
        self,
        leases: Leases,
        interval: float,
        *,
        registered_for: float | None = None,
        on_unregistered: Callable[[str], None] = lambda reason: None,
        why_late: Callable[[], str] = str,
    ) -> None:
        self._leases = leases
        self._interval = interval
        self._trusted_for = _NEVER if registered_for is None else _safe(registered_for)
        self._on_unregistered = on_unregistered
        self._why_late = why_late
        # When the registration counts as lost. Infinite before the first beat and after the report.
        self._registered_until = _NEVER
        self._held: dict[Lease, _Held] = {}
        self._stopping = False
        self.renewed_at = -_NEVER
        self.losses = 0
        self._counting = threading.Lock()
        self._failures = FailureLog("watchdog beat", logger)
        self._last_beat = 0.0
        self._next_beat = 0.0
        # When the beating thread must wake; infinite while it is awake.
        self._due = _NEVER
        self._beats, self._deadlines = _Sleep(), _Sleep()
        self._thread = threading.Thread(target=self._run, name="nonet-watchdog", daemon=True)
        self._enforcer = threading.Thread(
            target=self._enforce_deadlines, name="nonet-deadlines", daemon=True
        )

    def start(self) -> None:
        """Beat once, to register the worker, then start the threads.

        Raises:
            Exception: the first beat failed.
        """
        self._beat()
        self._thread.start()
        self._enforcer.start()

    def stop(self) -> None:
        """End the threads and close the connection."""
        self._stopping = True
        for sleep in (self._beats, self._deadlines):
            sleep.wake_by(-_NEVER)
        if self._enforcer.ident is not None:
            self._enforcer.join(_STOP_SECONDS)
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():  # else it still waits for Redis, and ends with its beat
            self._leases.close()

    def hold(
        self,
        lease: Lease,
        since: float,
        on_lost: Callable[[str], None],
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> float:
        """Keep a lease alive, and return its deadline (monotonic).

        It is lost at once if its deadline has passed.

        Args:
            since: monotonic time before the lease was requested.
            on_lost: called once, with the reason, in the thread that notices: one of the
                watchdog's, or the caller of `hold` or `check`.
            on_renewed: called in the same threads with each later deadline.
        """
        deadline = since + _safe(lease.ttl)
        item = self._held[lease] = _Held(lease, deadline, on_lost, on_renewed)
        if time.monotonic() >= deadline:
            self._lose(item, _OVERDUE)
        beat = self._last_beat + lease.ttl / 3
        if beat < self._beats.until:
            self._beats.wake_by(beat)
        if deadline < self._deadlines.until:
            self._deadlines.wake_by(deadline)
        return deadline

    def check(self, lease: Lease) -> None:
        """Declare a held lease lost if its deadline has passed. Thread-safe."""
        item = self._held.get(lease)
        if item is not None and time.monotonic() >= item.deadline:
            self._lose(item, _OVERDUE)

    def drop(self, lease: Lease) -> None:
        """Forget a lease that was settled or released."""
        self._held.pop(lease, None)

    @property
    def is_registered(self) -> bool:
        """Whether this process is registered: other processes then consider it alive."""
        return time.monotonic() < self.renewed_at + self._trusted_for

    def stuck(self) -> str:
        """Why the leases are not renewed; empty if they are, or if only Redis is silent."""
        for thread in (self._thread, self._enforcer):
            if thread.ident is not None and not thread.is_alive() and not self._stopping:
                return f"the thread {thread.name} has ended"
        late = time.monotonic() - self._due
        if late > _STUCK_SECONDS:
            return f"the watchdog has not run for {late:.0f} s"
        return ""

    def beat_soon(self) -> None:
        """Beat now, because leases may have been lost. Thread-safe."""
        self._next_beat = 0.0
        self._beats.wake_by(-_NEVER)

    def _run(self) -> None:
        while not self._stopping:
            next_beat = self._next_beat_time()
            self._due = max(time.monotonic(), next_beat)
            self._beats.until_time(next_beat)
            self._due = _NEVER  # a beat may take as long as Redis is silent
            if not self._stopping and time.monotonic() >= self._next_beat_time():
                self._try_beat()

    def _next_beat_time(self) -> float:
        shortest = min((h.lease.ttl / 3 for h in list(self._held.values())), default=self._interval)
        return min(self._next_beat, self._last_beat + shortest)

    def _try_beat(self) -> None:
        try:
            self._beat()
            self._failures.succeeded()
        except Exception as error:  # the thread must live to report the leases that expire
            pause = min(1.0, self._interval)
            self._failures.failed(error, pause)
            self._next_beat = time.monotonic() + pause

    def _beat(self) -> None:
        sent = self._last_beat = time.monotonic()
        self._next_beat = sent + self._interval
        held = list(self._held.values())
        lost = self._leases.renew([item.lease for item in held])
        self.renewed_at = sent
        for item in held:
            if item.lease.key not in lost:
                item.renew(sent + _safe(item.lease.ttl))
        if lost:
            # A lease that was settled during the beat is about to be dropped.
            threading.Event().wait(_SETTLE_SECONDS)
        for item in held:
            if item.lease.key in lost and self._held.get(item.lease) is item:
                self._lose(item, "the lease or a lock was taken away")
        self._registered_until = sent + self._trusted_for
        self._deadlines.wake_by(self._registered_until)
        self._leases.advertise()
        self._leases.add_figures()

    def _enforce_deadlines(self) -> None:
        while not self._stopping:
            held = list(self._held.values())
            self._deadlines.until_time(min([h.deadline for h in held] + [self._registered_until]))
            for item in list(self._held.values()):
                if not self._stopping:
                    self.check(item.lease)
            self._check_registration()

    def _check_registration(self) -> None:
        if time.monotonic() < self._registered_until or self._stopping:
            return
        self._registered_until = _NEVER  # report it once
        reason = "this worker could not renew its registration"
        logger.warning("registration lost: seconds=%.1f", time.monotonic() - self.renewed_at)
        self._on_unregistered(reason)

    def _lose(self, item: _Held, reason: str) -> None:
        # If a settle has dropped the lease meanwhile, nothing was lost.
        if self._held.pop(item.lease, None) is not None:
            with self._counting:
                self.losses += 1
            if why := self._why_late():
                reason = f"{reason}: {why}"
            # First of all, stop the attempt from relying on the lease.
            item.on_lost(reason)
            logger.warning("lease lost: task_id=%s reason=%s", item.lease.id, reason)


@cache  # few TTLs differ
def _safe(ttl: float) -> float:
    """Return how long to rely on a lease of `ttl` seconds.

    The margin covers clock drift and the time to cancel the attempt.
    """
    return ttl - min(2.0, ttl / 10)

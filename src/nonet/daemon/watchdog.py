"""The watchdog: threads that keep leases alive and notice when one is lost.

One with a connection of its own beats, so that a blocked event loop loses nothing. What it cannot
renew in time is lost by the local monotonic clock, before the server's lease ends and somebody
else may start: another thread sees to that, as a beat takes long while Redis is silent. Whoever
relies on a lease may `Watchdog.check` its deadline, too: it may have passed before it came here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nonet.stores.queue.leases import Lease, Leases

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.05
_STOP_SECONDS = 1.0
# So late no thread is that only waits for its turn.
_STUCK_SECONDS = 60.0
_NEVER = float("inf")
_OVERDUE = "the lease could not be renewed in time"


@dataclass(slots=True)
class _Held:
    lease: Lease
    deadline: float
    on_lost: Callable[[str], None]
    on_renewed: Callable[[float], None]

    def renew(self, deadline: float) -> None:
        self.deadline = deadline
        self.on_renewed(deadline)


class _Sleep:
    """The sleep of a thread, which others can shorten."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        # Infinite while the thread is awake and looks what there is to do.
        self.until = _NEVER

    def until_time(self, when: float) -> None:
        """Sleep until `when` (monotonic), or `wake_by` says that there is something earlier.

        Args:
            when: computed after the last sleep.
        """
        self.until = when
        self._wake.wait(min(max(0.0, when - time.monotonic()), threading.TIMEOUT_MAX))
        self.until = _NEVER  # what comes from now on is not looked at yet
        self._wake.clear()

    def wake_by(self, when: float) -> None:
        """Let it not sleep longer than until `when`."""
        if when < self.until:
            self._wake.set()


class Watchdog:
    """Renews all leases of one process in one script a beat.

    Args:
        leases: the store; used by the watchdog's thread only.
        interval: seconds between two beats; shorter while a short lease is held.
        registered_for: seconds that a registration lasts; None: there is none to watch.
        on_unregistered: called with the reason, in a thread of the watchdog's, when no beat has
            succeeded for that time (less a margin); again only after a later beat did.

    Attributes:
        renewed_at: monotonic time before the last beat that Redis answered.
        losses: how many leases were lost.
    """

    def __init__(
        self,
        leases: Leases,
        interval: float,
        *,
        registered_for: float | None = None,
        on_unregistered: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._leases = leases
        self._interval = interval
        self._trusted_for = _NEVER if registered_for is None else _safe(registered_for)
        self._on_unregistered = on_unregistered
        # Until somebody was told: infinite before the first beat, and after it was told.
        self._registered_until = _NEVER
        self._held: dict[str, _Held] = {}
        self._stopping = False
        self.renewed_at = -_NEVER
        self.losses = 0
        self._counting = threading.Lock()
        self._last_beat = 0.0
        self._next_beat = 0.0
        # When the thread that beats is to wake, infinite while it is awake.
        self._due = _NEVER
        self._beats, self._deadlines = _Sleep(), _Sleep()
        self._thread = threading.Thread(target=self._run, name="nonet-watchdog", daemon=True)
        self._enforcer = threading.Thread(
            target=self._enforce_deadlines, name="nonet-deadlines", daemon=True
        )

    def start(self) -> None:
        """Beat once, so that the worker is registered, then go on in the threads.

        Raises:
            Exception: of the first beat.
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
        if not self._thread.is_alive():  # else Redis is silent, and the thread ends with its beat
            self._leases.close()

    def hold(
        self,
        lease: Lease,
        since: float,
        on_lost: Callable[[str], None],
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Keep a lease alive; one whose deadline has passed already is lost at once.

        Args:
            since: monotonic time before the lease was asked for.
            on_lost: called once, with the reason, in the thread that notices: one of the
                watchdog's, or that of a `hold` or `check`.
            on_renewed: called with each deadline (monotonic) from the first on, likewise.
        """
        deadline = since + _safe(lease.ttl)
        item = self._held[lease.key] = _Held(lease, deadline, on_lost, on_renewed)
        on_renewed(deadline)
        if time.monotonic() >= deadline:
            self._lose(item, _OVERDUE)
        self._beats.wake_by(self._last_beat + lease.ttl / 3)
        self._deadlines.wake_by(deadline)

    def check(self, lease: Lease) -> None:
        """Declare a held lease lost if its deadline has passed; from any thread."""
        item = self._held.get(lease.key)
        if item is not None and time.monotonic() >= item.deadline:
            self._lose(item, _OVERDUE)

    def drop(self, lease: Lease) -> None:
        """Forget a lease that was settled or released."""
        self._held.pop(lease.key, None)

    @property
    def is_registered(self) -> bool:
        """Whether others have to believe that this process is alive."""
        return time.monotonic() < self.renewed_at + self._trusted_for

    def stuck(self) -> str:
        """Why nobody keeps the leases alive, or empty. That Redis is silent is no reason."""
        for thread in (self._thread, self._enforcer):
            if thread.ident is not None and not thread.is_alive() and not self._stopping:
                return f"the thread {thread.name} has ended"
        late = time.monotonic() - self._due
        if late > _STUCK_SECONDS:
            return f"the watchdog has not come round for {late:.0f} s"
        return ""

    def beat_soon(self) -> None:
        """Renew now: something may have happened to the leases. From any thread."""
        self._next_beat = 0.0
        self._beats.wake_by(-_NEVER)

    def _run(self) -> None:
        while not self._stopping:
            next_beat = self._next_beat_time()
            self._due = max(time.monotonic(), next_beat)
            self._beats.until_time(next_beat)
            self._due = _NEVER  # a beat takes as long as Redis is silent
            if not self._stopping and time.monotonic() >= self._next_beat_time():
                self._try_beat()

    def _next_beat_time(self) -> float:
        shortest = min((h.lease.ttl / 3 for h in list(self._held.values())), default=self._interval)
        return min(self._next_beat, self._last_beat + shortest)

    def _try_beat(self) -> None:
        try:
            self._beat()
        except Exception as error:
            # Leases run out by themselves; the thread must live to say so.
            logger.warning("watchdog beat failed: %s", error)
            self._next_beat = time.monotonic() + min(1.0, self._interval)

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
            # One that was settled while the beat was under way is about to be dropped.
            threading.Event().wait(_SETTLE_SECONDS)
        for item in held:
            if item.lease.key in lost and self._held.get(item.lease.key) is item:
                self._lose(item, "the lease or a lock was taken away")
        self._registered_until = sent + self._trusted_for
        self._deadlines.wake_by(self._registered_until)
        self._leases.advertise()

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
        self._registered_until = _NEVER  # said once
        reason = "this worker could not renew its registration"
        logger.warning("%s for %.1f s", reason, time.monotonic() - self.renewed_at)
        self._on_unregistered(reason)

    def _lose(self, item: _Held, reason: str) -> None:
        # A settle may have dropped it meanwhile; then nothing was lost.
        if self._held.pop(item.lease.key, None) is not None:
            with self._counting:
                self.losses += 1
            item.on_lost(reason)  # first: whoever asks meanwhile must not believe that it holds
            logger.warning("task %s: %s", item.lease.id, reason)


def _safe(ttl: float) -> float:
    """How long a lease of `ttl` seconds may be trusted: less a margin for clocks and cancelling."""
    return ttl - min(2.0, ttl / 10)

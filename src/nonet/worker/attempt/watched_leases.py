"""The lease of an attempt: handed to the watchdog, and replaced when the task's locks change."""

from __future__ import annotations

import time
from functools import partial

from nonet.daemon.watchdog import Watchdog
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Lease
from nonet.tasks.locks import leased_ttl_ms
from nonet.worker.attempt.attempt import Attempt


class WatchedLeases:
    """Keeps the leases of one worker's attempts alive.

    Args:
        watchdog: renews them in its own thread.
        lease: seconds that a lease lasts without renewal.
        lock_ttl: seconds that a lock lasts without renewal, unless the lock says otherwise.
    """

    def __init__(self, broker: Broker, watchdog: Watchdog, lease: float, lock_ttl: float) -> None:
        self._broker = broker
        self._watchdog = watchdog
        self._lease = lease
        self._lock_ttl_ms = round(lock_ttl * 1000)

    def hold(self, attempt: Attempt) -> None:
        """Renew the lease of an attempt, as often as its locks require."""
        delivery, ttl = attempt.delivery, self._lease
        if attempt.locks or attempt.held:
            lock_ttl_ms = leased_ttl_ms(attempt.locks, attempt.held, self._lock_ttl_ms)
            ttl = min(ttl, lock_ttl_ms / 1000) if lock_ttl_ms else ttl
        attempt.lease = Lease(
            delivery.id, delivery.gen, delivery.fence, ttl, delivery.stream_key, delivery.entry
        )
        attempt.deadline = self._watchdog.hold(
            attempt.lease, attempt.since, attempt.lose, attempt.renewed
        )
        check = partial(self._watchdog.check, attempt.lease)
        attempt.context.check_lease_with(check, attempt.deadline)

    async def readmit(self, attempt: Attempt, lines: str) -> str | None:
        """Replace the locks of an attempt; see `readmit`."""
        refused = await readmit(self._broker, attempt, lines)
        if refused is None and attempt.lost is None:
            earlier = attempt.lease
            self.hold(attempt)
            attempt.renewed(attempt.deadline)
            self._watchdog.drop(earlier)
        return refused


async def readmit(broker: Broker, attempt: Attempt, lines: str) -> str | None:
    """Take these locks instead of the ones of the delivery, all or none.

    Returns:
        The lock that refused, or None if the task has all of them.
    """
    since = time.monotonic()
    admitted, answer = await broker.admit(attempt.delivery, lines)
    if not admitted:
        return answer
    attempt.relock(lines, answer, since)
    return None

"""What the watchdog thread does in Redis: one script a beat, on a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nonet.keys import prefix
from nonet.stores.epoch import EpochSeen
from nonet.stores.redis import connect_sync, run_sync


@dataclass(frozen=True, slots=True)
class Lease:
    """One delivery, or one hold of locks, to be renewed.

    Attributes:
        stream_key: where its entry is pending; empty for a hold.
        ttl: seconds that the shortest of its leases lasts.
    """

    id: str
    gen: str
    fence: str
    ttl: float
    stream_key: str = ""
    entry: str = ""

    @property
    def key(self) -> str:
        """``id/gen``: one delivery of one task."""
        return f"{self.id}/{self.gen}"


class Leases:
    """Renews leases and the registration of a worker, synchronously.

    Args:
        worker: incarnation to register with every beat; empty for a process that only holds.
        info: what the worker says of itself, JSON.
        worker_ttl, lock_ttl: seconds.
        timeout_seconds: for one beat; must be well below the shortest lease.
        epoch: what this process knows of the epoch of Redis; each beat tells more.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        worker: str,
        info: str,
        *,
        worker_ttl: float,
        lock_ttl: float,
        timeout_seconds: float,
        epoch: EpochSeen | None = None,
    ) -> None:
        self._client = connect_sync(url, timeout_seconds=timeout_seconds)
        self._prefix = prefix(namespace)
        self._epoch = epoch or EpochSeen()
        self._head = (worker, round(worker_ttl * 1000), round(lock_ttl * 1000))
        self._info = info

    def tell(self, info: str) -> None:
        """What the worker says of itself from the next beat on; from any thread."""
        self._info = info

    def renew(self, leases: Sequence[Lease]) -> set[str]:
        """One beat; ``id/gen`` of each lease that is lost.

        Raises:
            Exception: of the Redis client; the beat has failed.
        """
        args = [
            part
            for lease in leases
            for part in (lease.id, lease.gen, lease.fence, lease.stream_key, lease.entry)
        ]
        head = (*self._head, self._info, self._epoch.seen)
        answer = run_sync(self._client, self._prefix, "renew", *head, *args)
        self._epoch.see(answer)
        return {key.decode() for key in answer[2:]}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

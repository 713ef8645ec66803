"""What the watchdog thread does in Redis: one script a beat, on a connection of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nonet.base.keys import prefix
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import connect_sync, run_sync


@dataclass(slots=True)
class Lease:
    """One delivery, or one hold of locks, to be renewed.

    Attributes:
        stream_key: where its entry is pending; empty for a hold.
        ttl: seconds that the shortest of its leases lasts.
        key: ``id/gen``: one delivery of one task.
    """

    id: str
    gen: str
    fence: str
    ttl: float
    stream_key: str = ""
    entry: str = ""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = f"{self.id}/{self.gen}"


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker says of itself with a beat.

    Attributes:
        info: JSON, for people.
        off: why it takes nothing, or empty.
        versions: the classes that it knows, and which version each is of.
        knows: short for them, the same in all workers that know the same.
        counts: what happened since it was asked before, for the counters of the namespace.
    """

    info: str
    off: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    knows: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


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
        self._prefix = prefix(namespace)
        self._client = connect_sync(url, self._prefix, timeout_seconds=timeout_seconds)
        self._epoch = epoch or EpochSeen()
        self._head = (worker, round(worker_ttl * 1000), round(lock_ttl * 1000))
        self._say: Callable[[], Said] = lambda: Said(info)
        self._said = Said(info)
        self._counts: Counter[str] = Counter()

    def ask(self, say: Callable[[], Said]) -> None:
        """Ask the worker with each beat what it says of itself, in the thread that beats."""
        self._say = say

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
        self._said = self._say()
        self._counts.update(self._said.counts)
        head = (*self._head, self._said.info, self._epoch.seen)
        answer = run_sync(self._client, self._prefix, "renew", *head, *args)
        self._epoch.see(answer)
        return {key.decode() for key in answer[2:]}

    def advertise(self) -> None:
        """Tell, after a beat, which classes the worker knows, and what else its script takes.

        Raises:
            Exception: of the Redis client; it is told with the next beat.
        """
        said, counts = self._said, dict(self._counts)
        if not said.knows:
            return
        pairs = [part for pair in counts.items() for part in pair]
        args = (*self._head[:2], said.knows, said.off)
        known = run_sync(self._client, self._prefix, "advertise", *args, len(counts), *pairs)
        self._counts.subtract(counts)
        self._counts = +self._counts
        if not known:  # the first of its kind, or Redis has lost its data
            pairs = [part for pair in said.versions.items() for part in pair]
            run_sync(self._client, self._prefix, "advertise", *args, 0, *pairs)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

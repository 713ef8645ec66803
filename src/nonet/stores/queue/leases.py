"""Renew the leases of a worker from its watchdog thread: one script call per beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from nonet.base.keys import prefix
from nonet.rules.vectors import packed
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import connect_sync, run_sync


class Lease(msgspec.Struct, eq=False):
    """The lease of one delivery or one hold. Leases are compared by identity.

    Attributes:
        stream_key: stream in which its entry is pending; empty for a hold.
        ttl: duration of its shortest lease, in seconds.
    """

    id: str
    gen: str
    fence: str
    ttl: float
    stream_key: str = ""
    entry: str = ""

    @property
    def key(self) -> str:
        """``id/gen``."""
        return f"{self.id}/{self.gen}"


class BeatReport(Struct, frozen=True):
    """The report that a worker sends with a beat.

    Attributes:
        info: JSON for people.
        off: why it fetches nothing, or empty.
        versions: version of each class that it knows.
        knows: a hash of `versions`, equal in all workers with the same classes and versions.
        counts: number of events since the last report, for the counters of the namespace.
    """

    info: str = ""
    off: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    knows: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


class Counted(Struct, frozen=True):
    """What a worker has counted, as vectors: see `nonet.rules.figures`.

    Attributes:
        classes: by name.
        tenants: by name; first those that the configuration names, then by their tasks.
        named: how many of these the configuration names.
        streams: by name.
    """

    classes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    named: int = 0
    streams: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class Leases:
    """Renews leases and the registration of a worker, synchronously.

    Args:
        worker: incarnation to register with every beat; empty for a process that only holds locks.
        worker_ttl, lock_ttl: seconds until a registration or a lock without its own TTL expires.
        timeout_seconds: limit of one beat; must be well below the shortest lease.
        epoch: the epoch that this process saw last; each beat updates it.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        worker: str,
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
        self._say: Callable[[], BeatReport] = BeatReport
        self._newest = BeatReport()
        self._counts: Counter[str] = Counter()
        self._count: Callable[[], Counted] = Counted
        self._note_offset: Callable[[float], None] = lambda _: None
        # Number of the last report of figures, and its arguments until Redis has answered.
        self._report = 0
        self._unanswered: tuple[str | bytes | int, ...] = ()

    def ask(self, say: Callable[[], BeatReport]) -> None:
        """Set the function that returns the report; each beat calls it in the watchdog thread."""
        self._say = say

    def count(self, count: Callable[[], Counted], note_offset: Callable[[float], None]) -> None:
        """Set the functions of `add_figures`; each beat calls them in the watchdog thread.

        Args:
            count: returns what was counted since its last call.
            note_offset: gets the seconds by which the corrected clock is ahead of the server's.
        """
        self._count, self._note_offset = count, note_offset

    def renew(self, leases: Sequence[Lease]) -> set[str]:
        """Renew all leases; return ``id/gen`` of each lost one.

        Raises:
            Exception: from the Redis client; the beat has failed.
        """
        args = [
            part
            for lease in leases
            for part in (lease.id, lease.gen, lease.fence, lease.stream_key, lease.entry)
        ]
        self._newest = self._say()
        self._counts.update(self._newest.counts)
        newest = self._newest
        head = (*self._head, newest.info, self._epoch.seen, newest.knows, newest.off)
        answer = run_sync(self._client, self._prefix, "renew", *head, *args)
        self._epoch.see(answer)
        return {key.decode() for key in answer[2:]}

    def advertise(self) -> None:
        """Report after a beat the classes that the worker knows, and its counters.

        Raises:
            Exception: from the Redis client; the next beat repeats the report.
        """
        newest, counts = self._newest, dict(self._counts)
        if not newest.knows:
            return
        pairs = [part for pair in counts.items() for part in pair]
        args = (*self._head[:2], newest.knows, newest.off)
        known = run_sync(self._client, self._prefix, "advertise", *args, len(counts), *pairs)
        self._counts.subtract(counts)
        self._counts = +self._counts
        if not known:  # the first worker with these classes, or Redis has lost its data
            pairs = [part for pair in newest.versions.items() for part in pair]
            run_sync(self._client, self._prefix, "advertise", *args, 0, *pairs)

    def add_figures(self) -> None:
        """Report what was counted since the last call, if anything.

        Raises:
            Exception: from the Redis client; the next call repeats the report, which counts once.
        """
        if args := self.next_figures():
            offset = run_sync(self._client, self._prefix, "add_figures", *args)
            self._unanswered = ()
            self._note_offset(int(offset) / 1e6)

    def next_figures(self) -> tuple[str | bytes | int, ...]:
        """Return the arguments of script ``add_figures``; empty if there is nothing to report.

        They are the same until `add_figures` had an answer.
        """
        if not self._unanswered:
            counted = self._count()
            parts = counted.classes, counted.tenants, counted.streams
            rows = [row for part in parts for row in part.items()]
            if not rows:
                return ()
            self._report += 1
            pairs = (part for name, row in rows for part in (name, packed(row)))
            numbers = len(counted.classes), len(counted.tenants), counted.named
            self._unanswered = (*numbers, *pairs)
        return (self._head[0], self._report, *self._unanswered)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

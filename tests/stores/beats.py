"""Beats of workers without a process."""

from __future__ import annotations

from typing import Any, Self

from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import BeatReport, Counted, Lease, Leases


def leases_of(url: str, worker: str = "small-a", info: str = "{}", **times: Any) -> Leases:
    times = {"worker_ttl": 30, "lock_ttl": 30, "timeout_seconds": 5} | times
    leases = Leases(url, "test", worker, **times)
    leases.ask(lambda: BeatReport(info))
    return leases


def lease_of(item: Delivery, ttl: float = 30) -> Lease:
    return Lease(item.id, item.gen, item.fence, ttl, item.stream_key, item.entry)


def beat(url: str, *held: Lease, worker: str = "small-a", **more: Any) -> set[str]:
    """One beat with these leases; the keys of those that are lost."""
    leases = leases_of(url, worker, **more)
    try:
        return leases.renew(held)
    finally:
        leases.close()


class Reports:
    """A worker that reports the figures of a test."""

    def __init__(self, url: str) -> None:
        self.leases = leases_of(url)
        self.offset = -1.0
        self.counted: list[Counted] = []
        self.leases.count(self._next, self._note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leases.close()

    def add(self, *counted: Counted) -> None:
        """Report these one after the other, and once when there is nothing new."""
        self.counted += counted
        for _ in range(len(counted) + 1):
            self.leases.add_figures()

    def _next(self) -> Counted:
        return self.counted.pop(0) if self.counted else Counted({})

    def _note(self, offset: float) -> None:
        self.offset = offset

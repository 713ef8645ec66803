"""Beats of workers without a process."""

from __future__ import annotations

from typing import Any

from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Lease, Leases


def leases_of(url: str, worker: str = "small-a", info: str = "{}", **times: Any) -> Leases:
    times = {"worker_ttl": 30, "lock_ttl": 30, "timeout_seconds": 5} | times
    return Leases(url, "test", worker, info, **times)


def lease_of(item: Delivery, ttl: float = 30) -> Lease:
    return Lease(item.id, item.gen, item.fence, ttl, item.stream_key, item.entry)


def beat(url: str, *held: Lease, worker: str = "small-a", **more: Any) -> set[str]:
    """One beat with these leases; the keys of those that are lost."""
    leases = leases_of(url, worker, **more)
    try:
        return leases.renew(held)
    finally:
        leases.close()

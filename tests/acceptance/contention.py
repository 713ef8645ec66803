"""What the tests of contention share: queues of locks, counted commands, overlapping executions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import records
from acceptance.lock_tasks import lock_of
from acceptance.site import Site
from daemons import Daemon
from waits import until


def scales(scaled: Any, full: Any) -> Any:
    """A scenario in two scales: small for each test run, and full for `make soak`."""
    return pytest.mark.parametrize(
        "scale",
        [pytest.param(scaled, id="scaled"), pytest.param(full, id="full", marks=pytest.mark.soak)],
    )


def workers(site: Site, count: int, *, slots: int, **environment: str) -> list[Daemon]:
    """Start workers side by side, and wait until all are ready."""
    started = [
        site.worker("--concurrency", str(slots), wait=False, **environment) for _ in range(count)
    ]
    return [worker.wait_ready() for worker in started]


async def parked(site: Site, lock: str, count: int) -> None:
    """Wait until so many tasks stand in the queue of a lock."""
    queue = site.key(f"queue:{lock_of(lock).redis_key}")
    await until(lambda: site.redis.zcard(queue) == count, f"{count} wait for {lock!r}")


async def waits(site: Site, id: str) -> None:
    """Wait until a task was refused its locks."""
    key = site.key(f"t:{id}")
    await until(lambda: records.hget(site.redis, key, "state") == "waiting", f"{id} waits")


def in_order(site: Site, ids: Iterable[str]) -> list[str]:
    """Those of `ids` that have started, in the order of their first start."""
    wanted = set(ids)
    return list(dict.fromkeys(event.id for event in site.journal("start") if event.id in wanted))


@dataclass(frozen=True, order=True)
class Span:
    """One execution, from its start to its end (Unix seconds)."""

    start: float
    end: float
    id: str


def spans(site: Site) -> list[Span]:
    """Every execution that has ended, by start."""
    ends = {(event.id, event.fence): event.at for event in site.journal("end")}
    return sorted(
        Span(event.at, ends[event.id, event.fence], event.id)
        for event in site.journal("start")
        if (event.id, event.fence) in ends
    )


def overlaps(spans: Iterable[Span]) -> list[Span]:
    """Those that began before an earlier one had ended."""
    found, latest = [], 0.0
    for span in sorted(spans):
        if span.start < latest:
            found.append(span)
        latest = max(latest, span.end)
    return found

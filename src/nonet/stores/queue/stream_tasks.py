"""The tasks of one priority and size that come next or run, and who has them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nonet.stores.connection.redis import Scripts
from nonet.stores.queue.places import Found, Places, TaskFilter, existing

# In the order in which workers read them.
_KINDS = ("woken", "tasks", "suspects")


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker that has read a stream.

    Attributes:
        worker: its incarnation.
        deliveries: entries that it has and has not settled.
        idle_seconds: time since it last read or renewed one.
    """

    worker: str
    deliveries: int
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class StreamTasks:
    """Some tasks of a stream.

    Attributes:
        queued: those that come next.
        running: those that were fetched first.
        consumers: the workers that have deliveries, most first.
    """

    queued: tuple[Found, ...]
    running: tuple[Found, ...]
    consumers: tuple[Consumer, ...]


async def stream_tasks(scripts: Scripts, name: str, limit: int) -> StreamTasks:
    """Read at most `limit` tasks of each state, whatever the length of the stream.

    Args:
        name: ``PRIORITY:SIZE``.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    places = Places(scripts)

    async def some(wanted: Sequence[str], state: str) -> tuple[Found, ...]:
        found: list[Found] = []
        for kind, place in itertools.product(_KINDS, wanted):
            if len(found) < limit:
                selection = TaskFilter(states=(state,))
                page = await places.page(f"{place} {kind}:{name}", selection, count=limit)
                found += page.found
        return tuple(found[:limit])

    return StreamTasks(
        await some(("unread", "listed"), "queued"),
        await some(("delivered",), "running"),
        await _consumers(scripts, name),
    )


async def _consumers(scripts: Scripts, name: str) -> tuple[Consumer, ...]:
    async with scripts.client.pipeline(transaction=False) as pipe:
        for kind in _KINDS:
            pipe.xinfo_consumers(f"{scripts.prefix}{kind}:{name}", "workers")
        answers = await existing(pipe)
    deliveries: Counter[str] = Counter()
    idle: dict[str, float] = {}
    for each in (row for rows in answers for row in rows or ()):
        worker = each["name"].decode(errors="replace")
        deliveries[worker] += each["pending"]
        idle[worker] = min(idle.get(worker, each["idle"] / 1000), each["idle"] / 1000)
    return tuple(
        Consumer(worker, number, idle[worker])
        for worker, number in deliveries.most_common()
        if number
    )

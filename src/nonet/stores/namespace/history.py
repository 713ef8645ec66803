"""The history: the tasks of a namespace that ended last, and the figures of its classes.

``lib/finish.lua`` records the tasks, ``add_figures.lua`` the figures.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from nonet.base.keys import prefix
from nonet.rules.figures import ClassFigures, class_figures, resolution_for
from nonet.stores.connection.clock import correction, instant, logical_now
from nonet.stores.connection.redis import AsyncRedis, server_errors
from nonet.stores.queue.workers import worker_names
from nonet.tasks.handles import EndedTask

# States by the list that has them. Failures have their own, so that successes push none out.
_LISTS = {"ended:done": ("done", "cancelled"), "ended:failed": ("dead", "expired")}
FAILED = _LISTS["ended:failed"]
STATES = tuple(state for states in _LISTS.values() for state in states)
_COLUMNS, _SHORT = 9, 3
_FLAT = msgspec.msgpack.Decoder(list[int])
# Lines that are read at once; a failure has up to 5 kB.
_PAGES = {"ended:done": 1000, "ended:failed": 100}


@dataclass(frozen=True, slots=True)
class Kept:
    """One line of the history.

    Attributes:
        task: what people see.
        life: identifies this life of the id: with the id, no two lines share it.
        envelope: the message of a failed task; empty if it was too large or not valid.
    """

    task: EndedTask
    life: str
    envelope: bytes = b""


class History:
    """The history of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self._prefix = prefix(namespace)

    async def ended(
        self,
        *,
        states: Collection[str] = (),
        task: str | None = None,
        since: timedelta | None = None,
        limit: int = 100,
    ) -> list[EndedTask]:
        """Return the tasks that ended last, the newest first.

        Args:
            states: only tasks that ended in one of these states; empty: all.
            task: only tasks of this class, by its full or bare name.
            since: only tasks that ended at most this long ago.
            limit: number of tasks at most.

        Raises:
            ValueError: a state is unknown.
            ServerUnreachableError: Redis does not answer.
        """
        unknown = [state for state in states if state not in STATES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(STATES)}")
        found: list[EndedTask] = []
        wanted = [name for name, of in _LISTS.items() if not states or set(states) & set(of)]
        set_by = await correction(self._client, self._prefix)
        earliest = None
        if since is not None:
            async with server_errors(self._client):
                seconds, rest = await self._client.time()
            earliest = instant(seconds * 1_000_000 + rest) - since
        async for kept in self._newest(wanted, set_by):
            if len(found) >= limit or (earliest and kept.task.ended < earliest):
                break
            named = task in (None, kept.task.name, kept.task.name.rpartition(":")[2])
            if named and (not states or kept.task.state in states):
                found.append(kept.task)
        names = await worker_names(self._client, self._prefix, [item.worker for item in found])
        return [dataclasses.replace(item, worker=names.get(item.worker, "")) for item in found]

    async def find(self, id: str) -> Kept | None:
        """Return the last end of a task; None if the history does not have it."""
        set_by = await correction(self._client, self._prefix)
        async for kept in self._newest(list(_LISTS), set_by):
            if kept.task.id == id:
                return kept
        return None

    async def figures(
        self, *, since: timedelta = timedelta(hours=1), task: str | None = None
    ) -> list[ClassFigures]:
        """Return the figures of each class that has some, by name.

        They are kept by minutes for two hours, and by ten minutes for two days. Workers report
        theirs with each beat; what ended without a worker is not counted.

        Args:
            since: of at least this long; a longer time than two days counts as two days.
            task: only this class, by its full or bare name.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        resolution = resolution_for(since)
        slot, span = resolution.slot, min(since.total_seconds(), resolution.kept)
        set_by = await correction(self._client, self._prefix)
        now = await logical_now(self._client, self._prefix)
        last = int(now.timestamp()) // slot
        numbers = range(last - int(span) // slot, last + 1)
        async with server_errors(self._client), self._client.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.hgetall(f"{self._prefix}figures:{slot}:{number}")
            slots = await pipe.execute(raise_on_error=False)
        by_class: dict[str, dict[datetime, dict[int, int]]] = {}
        for number, fields in zip(numbers, slots, strict=True):
            if isinstance(
                fields, Exception
            ):  # a key of a wrong type, which the next report replaces
                continue
            at = instant(number * slot * 1_000_000) - set_by
            for name, packed in fields.items():
                found = name.decode(errors="replace")
                if task in (None, found, found.rpartition(":")[2]):
                    by_class.setdefault(found, {})[at] = _vector(packed)
        first = instant(numbers[0] * slot * 1_000_000) - set_by
        return [
            class_figures(name, by_class[name], first, now - set_by, slot)
            for name in sorted(by_class)
        ]

    async def _newest(self, lists: Sequence[str], set_by: timedelta) -> AsyncIterator[Kept]:
        """Yield what some lists have, the newest first, each end once."""
        seen: set[tuple[str, str]] = set()
        walks = [self._walk(name, set_by) for name in lists]
        heads: list[tuple[float, int, Kept]] = []

        async def advance(which: int) -> None:
            with suppress(StopAsyncIteration):
                kept = await anext(walks[which])
                heapq.heappush(heads, (-kept.task.ended.timestamp(), which, kept))

        for which in range(len(walks)):
            await advance(which)
        while heads:
            _, which, kept = heapq.heappop(heads)
            # A list that grows meanwhile repeats lines, and so does a script that was cut.
            if (kept.task.id, kept.life) not in seen:
                seen.add((kept.task.id, kept.life))
                yield kept
            await advance(which)

    async def _walk(self, name: str, set_by: timedelta) -> AsyncIterator[Kept]:
        last, newer = -1, None
        while True:
            async with server_errors(self._client):
                page = await self._client.lrange(
                    f"{self._prefix}{name}", last - _PAGES[name] + 1, last
                )
            for entry in reversed(page):
                with suppress(ValueError, OverflowError):  # an entry of a foreign client
                    kept = _kept(entry, newer, set_by)
                    newer = kept.task
                    yield kept
            if len(page) < _PAGES[name]:
                return
            last -= len(page)


def _kept(entry: bytes, newer: EndedTask | None, set_by: timedelta) -> Kept:
    """Parse an entry: columns, and for a failure the texts whose lengths are its last columns.

    A short entry has id, ticket and start only; the others are those of the entry after it.
    """
    head, _, body = entry.partition(b"\n")
    columns = head.decode(errors="replace").split("\t")
    if newer is not None and len(columns) == _SHORT:
        id, ticket, started = columns
        since, begun = _time(ticket, set_by), _time(started, set_by)
        task = dataclasses.replace(newer, id=id, attempt=1, submitted=since, started=begun)
        return Kept(task, life=ticket)
    state, id, name, stream, used, submitted, started, ended, worker = columns[:_COLUMNS]
    more, texts, at = columns[_COLUMNS:], [], 0
    if state in FAILED:
        used, *lengths = more
        for length in map(int, lengths):
            texts.append(body[at : at + length])
            at += length
    reason, error_type, error, traceback, envelope = texts or [b""] * 5
    return Kept(
        EndedTask(
            id=id,
            name=name,
            state=state,
            stream=stream,
            # Redis counts an attempt when it has failed; a result document counts its own attempt.
            attempt=int(used) + (bool(started) and not texts),
            submitted=_time(submitted, set_by),
            started=_time(started, set_by),
            ended=instant(ended) - set_by,
            worker=worker,
            error_type=_text(error_type),
            error=more[0] if state == "cancelled" and more else _text(error),
            traceback=_text(traceback),
            reason=_text(reason),
        ),
        life=submitted or ended,
        envelope=envelope,
    )


def _vector(packed: bytes) -> dict[int, int]:
    try:
        flat = _FLAT.decode(packed)
    except msgspec.DecodeError:  # of a foreign client
        return {}
    return dict(zip(flat[::2], flat[1::2], strict=False))


def _time(microseconds: str, set_by: timedelta) -> datetime | None:
    return instant(microseconds) - set_by if microseconds else None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

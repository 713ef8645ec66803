"""The history: the tasks of a namespace that ended last, and the figures of its classes.

``lib/finish.lua`` records the tasks, ``add_figures.lua`` the figures.
"""

from __future__ import annotations

import dataclasses
import heapq
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.stores.connection.clock import correction, instant, logical_now
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.connection.unreadable import readable
from nonet.stores.queue.places import TaskFilter
from nonet.stores.queue.workers import worker_names
from nonet.tasks.handles import EndedTask, TaskStatus

FAILED = ("dead", "expired")
STATES = ("done", "cancelled", *FAILED)
_COLUMNS, _SHORT = 9, 3
# Lines that are read at once; a failure has up to 5 kB.
_PAGES = {"done": 1000, "cancelled": 1000, "dead": 100, "expired": 100}
# How many tasks a page examines.
BUDGET = 20_000
_ALL = 2**40
# Lines that are read at first to complete the status of a task, which mostly ended lately.
_NEWEST = 200
# The most tasks that a script ends at once; all but the last of them have short lines.
_SHORT_LINES = 200
_Position: TypeAlias = tuple[int, str]
Positions: TypeAlias = Mapping[str, _Position]
"""The last line examined in each state: how many lines follow it, and its `Kept.mark`."""


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

    @property
    def mark(self) -> str:
        """What a cursor has instead of id and life, so that addresses are short."""
        return f"{zlib.crc32(f'{self.task.id} {self.life}'.encode()):x}"

    def has_letter(self, task_class: str, generation: int) -> bool:
        """Whether a dead letter is of this task, and not of an earlier one with the same id."""
        return task_class in ("", self.task.name) and generation >= int(self.life or 0)


@dataclass(frozen=True, slots=True)
class EndedFilter:
    """Selects ended tasks.

    Attributes:
        states: some of `STATES`; empty: any.
        task: full or bare class name; empty: any.
        workers: incarnations of workers, one of which ended the task; None: any, or none.
        error: text in the class or the text of the error, in any case of letters; empty: any.
        labels: labels that the task must have. Only failures match, because the history keeps no
            other messages.
        since, until: first and last time of its end, by the logical clock of Redis.
        ids: of tasks; empty: any.

    Raises:
        ValueError: a state is unknown.
    """

    states: Sequence[str] = ()
    task: str = ""
    workers: Sequence[str] | None = None
    error: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    ids: Sequence[str] = ()

    def __post_init__(self) -> None:
        unknown = [state for state in self.states if state not in STATES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(STATES)}")

    @property
    def lists(self) -> list[str]:
        """The states whose lists have such tasks."""
        return [state for state in STATES if not self.states or state in self.states]

    @property
    def is_narrow(self) -> bool:
        """Whether it selects some of the tasks in `lists` only."""
        others = (self.task, self.error, self.labels, self.since, self.until, self.ids)
        return any(others) or self.workers is not None

    def matches(self, kept: Kept, set_by: timedelta) -> bool:
        """Whether a task matches, except for `since`.

        Args:
            set_by: what the logical clock adds to the clock of the server.
        """
        task = kept.task
        return (
            (not self.states or task.state in self.states)
            and self.task in ("", task.name, task.name.rpartition(":")[2])
            and (not self.ids or task.id in self.ids)
            and (self.workers is None or task.worker in self.workers)
            and (not self.until or task.ended + set_by <= self.until)
            and self.error.lower() in f"{task.error_type}: {task.error}".lower()
            and TaskFilter(labels=self.labels).labels_fit(kept.envelope)
        )


@dataclass(frozen=True, slots=True)
class EndedPage:
    """Some of the tasks that ended last.

    Attributes:
        rows: the tasks.
        matched: how many tasks match, if only states are filtered; else the number of `rows`.
        searched: how many tasks were examined.
        total: how many tasks the history has in the lists that were searched.
        cursor: continues behind the last task that was examined; empty at the end.
    """

    rows: Sequence[EndedTask]
    matched: int
    searched: int
    total: int
    cursor: str = ""


class History(RedisStore):
    """The history of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, client: AsyncRedis, namespace: str, cipher: Cipher = NO_KEYS) -> None:
        super().__init__(client, namespace)
        self._cipher = cipher
        self.namespace = namespace

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
        now = await logical_now(self._client, self._prefix)
        earliest = None if since is None else now - since
        selection = EndedFilter(tuple(states), task or "", since=earliest)
        return list((await self.page(selection, limit=limit, budget=_ALL)).rows)

    async def page(
        self, selection: EndedFilter, *, limit: int = 100, budget: int = BUDGET, cursor: str = ""
    ) -> EndedPage:
        """Read one page of the tasks that ended last, the newest first.

        Args:
            limit: the most tasks of the page.
            budget: how many tasks to examine.
            cursor: of the page before; empty: the first page.

        Raises:
            ValueError: a state is unknown, or `cursor` is not one of an earlier page.
            ServerUnreachableError: Redis does not answer.
        """
        total = await self._total(selection)
        found, searched, end = list[EndedTask](), 0, ""
        async with aclosing(self.kept(selection, cursor=cursor)) as walk:
            async for searched, position, kept in walk:
                if kept is not None:
                    found.append(kept.task)
                if len(found) >= limit or searched >= budget:
                    end = cursor_of(position)
                    break
        names = await worker_names(self._client, self._prefix, [item.worker for item in found])
        rows = [dataclasses.replace(item, worker=names.get(item.worker, "")) for item in found]
        matched = len(rows) if selection.is_narrow else max(total, len(rows))
        return EndedPage(rows, matched, searched, max(total, searched), end)

    async def kept(
        self, selection: EndedFilter, *, cursor: str = ""
    ) -> AsyncGenerator[tuple[int, Positions, Kept | None]]:
        """Yield what is kept of the selected tasks, the newest first.

        Yields:
            How many tasks were examined; their last lines, see `cursor_of`; and the task, None if
            it does not match.

        Raises:
            ValueError: a state is unknown, or `cursor` is not one of an earlier walk.
        """
        set_by = await correction(self._client, self._prefix)
        after, searched = _parse(cursor), 0
        async for name, position, kept in self._newest(selection.lists, set_by, after):
            searched += 1
            after[name] = (position, kept.mark)
            if selection.since and kept.task.ended < selection.since - set_by:
                return
            matches = selection.matches(kept, set_by)
            yield searched, after, kept if matches else None

    async def _total(self, selection: EndedFilter) -> int:
        async with self._client.pipeline(transaction=False) as pipe:
            for name in selection.lists:
                pipe.llen(self._key(name))
            return sum(await pipe.execute())

    async def find(self, id: str) -> Kept | None:
        """Return the last end of a task; None if the history does not have it."""
        set_by = await correction(self._client, self._prefix)
        ends = [await self._last_end(state, id, set_by) for state in STATES]
        found = [kept for kept in ends if kept is not None]
        return max(found, key=lambda kept: kept.task.ended, default=None)

    async def completed(self, status: TaskStatus) -> TaskStatus:
        """Add what the history has of a task, if it has ended: stream, times and worker."""
        if status.state not in STATES:
            return status
        set_by = await correction(self._client, self._prefix)
        kept = await self._last_end(status.state, status.id, set_by, _NEWEST)
        if kept is None or status.name not in ("", kept.task.name):
            return status
        return await self.with_end(status, kept.task)

    async def with_end(self, status: TaskStatus, task: EndedTask) -> TaskStatus:
        """Return the status of an ended task with what its line in the history says."""
        names = await worker_names(self._client, self._prefix, [task.worker])
        return replace(
            status,
            stream=task.stream,
            submitted=task.submitted,
            started=task.started,
            finished=status.finished or task.ended,
            worker=names.get(task.worker, ""),
        )

    def _key(self, state: str) -> str:
        return f"{self._prefix}ended:{state}"

    async def _last_end(
        self, name: str, id: str, set_by: timedelta, first: int = _ALL
    ) -> Kept | None:
        """Search one list, and parse only the part of it that has the id.

        Args:
            first: the most lines of the first page.
        """
        last, needle, newer = -1, id.encode(), list[bytes]()
        size = min(first, _PAGES[name])
        while True:
            page = await self._client.lrange(self._key(name), last - size + 1, last)
            if any(needle in entry for entry in page):
                # A short line takes its other columns from a later line, perhaps on the page
                # before.
                for kept in _parsed(self._key(name), [*page, *newer], set_by, self._cipher):
                    if kept.task.id == id:
                        return kept
            if len(page) < size:
                return None
            last, newer, size = last - len(page), page[:_SHORT_LINES], _PAGES[name]

    async def _newest(
        self, lists: Sequence[str], set_by: timedelta, after: Positions
    ) -> AsyncIterator[tuple[str, int, Kept]]:
        """Merge the lines of some lists, the newest first; yield each end once.

        Args:
            after: the last line of each list that was examined before.

        Yields:
            The list, the number of lines after this one, and the line.
        """
        seen: set[tuple[str, str]] = set()
        walks = [self._walk(name, set_by, after.get(name)) for name in lists]
        heads: list[tuple[float, int, int, Kept]] = []

        async def advance(which: int) -> None:
            with suppress(StopAsyncIteration):
                position, kept = await anext(walks[which])
                heapq.heappush(heads, (-kept.task.ended.timestamp(), which, position, kept))

        for which in range(len(walks)):
            await advance(which)
        while heads:
            _, which, position, kept = heapq.heappop(heads)
            # Lines repeat if the list grows during the walk, or if Redis stopped a script.
            if (kept.task.id, kept.life) not in seen:
                seen.add((kept.task.id, kept.life))
                yield lists[which], position, kept
            await advance(which)

    async def _walk(
        self, name: str, set_by: timedelta, after: _Position | None
    ) -> AsyncIterator[tuple[int, Kept]]:
        """Yield the lines of a list from its end, behind the line `after`."""
        # A short line needs the line after it, so begin a few lines before `after`. Tasks that
        # have ended meanwhile moved it further from the end.
        position, newer = max(0, after[0] - _SHORT_LINES) if after else 0, None
        skipped = after and after[1]
        while True:
            last = -1 - position
            page = await self._client.lrange(self._key(name), last - _PAGES[name] + 1, last)
            for entry in reversed(page):
                position += 1
                for kept in _parsed(self._key(name), [entry], set_by, self._cipher, newer):
                    newer = kept.task
                    if skipped is None:
                        yield position - 1, kept
                    elif skipped == kept.mark:
                        skipped = None
            if len(page) < _PAGES[name]:
                return


def _parsed(
    key: str,
    entries: Sequence[bytes],
    set_by: timedelta,
    cipher: Cipher,
    newer: EndedTask | None = None,
) -> Iterator[Kept]:
    """Parse lines of a list, newest first; skip short lines whose newer line is unknown.

    Args:
        newer: the task of the line after the newest one; None: unknown.
    """
    for entry in reversed(entries):
        if newer is None and entry.count(b"\t") == _SHORT - 1:
            continue
        for kept in readable(key, "", [(entry, newer, set_by, cipher)], _kept):
            newer = kept.task
            yield kept


def cursor_of(after: Positions) -> str:
    """Return the cursor that continues behind some lines.

    >>> cursor_of({"done": (99, "1f"), "dead": (3, "e0")})
    '0.99.1f 2.3.e0'
    """
    lines = ((STATES.index(name), *line) for name, line in after.items())
    return " ".join(f"{state}.{position}.{mark}" for state, position, mark in lines)


def _parse(cursor: str) -> dict[str, _Position]:
    """Undo `cursor_of`."""
    try:
        lines = (line.split(".") for line in cursor.split())
        return {STATES[int(state)]: (int(position), mark) for state, position, mark in lines}
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"history: cursor={cursor!r:.80} is not the cursor of a page; leave it out to begin "
            "anew"
        ) from error


def _kept(entry: bytes, newer: EndedTask | None, set_by: timedelta, cipher: Cipher) -> Kept:
    """Parse an entry: columns, and for a failure the texts whose lengths are its last columns.

    A short entry has id, ticket and start only; the entry after it has the other columns.
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
    why = more[0] if state == "cancelled" else error.decode(errors="replace")
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
            error_type=error_type.decode(errors="replace"),
            error=cipher.decrypt_text(why, id, "error"),
            traceback=cipher.decrypt_text(traceback.decode(errors="replace"), id, "traceback"),
            reason=reason.decode(errors="replace"),
        ),
        life=submitted or ended,
        envelope=envelope,
    )


def _time(microseconds: str, set_by: timedelta) -> datetime | None:
    return instant(microseconds) - set_by if microseconds else None

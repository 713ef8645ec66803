"""List live tasks: which tasks are on a page, in which order, and out of how many.

No index is kept for lists, because each submission would pay for it. A list reads the places where
Redis keeps tasks anyway (`nonet.stores.queue.places`). Tasks that run or are held up come first,
then those that are merely in line:

* **running** tasks are delivered entries of the streams, the longest running first;
* **waiting** tasks are members of the delayed set, the longest waiting first;
* **dying** tasks are in the delayed set and in the streams of burials, the oldest first;
* **queued** tasks are unread entries of the streams. Each stream is in order, so the streams are
  merged by the time at which their tasks were queued. Tasks in the lists of tenants are merged by
  the time of their submission, as far as the budget allows;
* **delayed** tasks are members of the delayed set, the soonest first: what starts next.

The delayed set is in the order of its times, and the time of a waiting task is only its next check.
So the longest waiting tasks are found among as many members as the budget allows. The budget is how
many tasks a list examines in each place. Places are read in the direction in which tasks move, so
that a task that moves meanwhile is met at least once; its newest place counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from nonet.stores.queue.places import (
    BURIALS,
    PAGE,
    STREAMS,
    Found,
    Places,
    Sizes,
    TaskFilter,
    entry_of,
)

Key = tuple[int, int, int, str]
"""Where a task stands in a list: the rank of its state, and its order within the state."""

_RANKS = {
    state: rank for rank, state in enumerate(("running", "waiting", "dying", "queued", "delayed"))
}
_QUEUED, _DELAYED = _RANKS["queued"], _RANKS["delayed"]
_BEGIN: Key = (-1, 0, 0, "")


class Listed(Struct, frozen=True):
    """The ids of a page, and the figures of its `nonet.TaskPage`."""

    ids: list[str]
    matched: int
    searched: int
    total: int
    cursor: str


class _Part(Struct):
    """The tasks of a list that are found in the same way.

    Attributes:
        ranks: first and last rank of its states.
        after: the last task that was shown or examined before; None: the part is finished.
        rest: the last task that was examined, if the search ended before its place did.
    """

    ranks: tuple[int, int]
    after: Key | None
    rest: Key | None = None

    def rows(self, found: dict[str, Key]) -> list[tuple[Key, str]]:
        """Return the tasks to show, in order."""
        first, last = self.ranks
        after = self.after
        if after is None:
            return []
        return sorted(
            (key, id) for id, key in found.items() if first <= key[0] <= last and key > after
        )


class _Unread(Struct):
    """The unread part of one stream, while streams are merged.

    Attributes:
        stream: its index in `STREAMS`.
        start: where its next page begins.
        reached: the entry up to which it was examined.
        found: the tasks that were found and are not merged yet.
        is_begun, is_at_end: whether any of it was read, and all of it.
    """

    stream: int
    start: str
    reached: tuple[int, int]
    found: deque[Found] = field(default_factory=deque)
    is_begun: bool = False
    is_at_end: bool = False

    def frontier(self) -> Key:
        """Return the key of its next task, or one before it."""
        return _queued_key(self.found[0].entry if self.found else self.reached, self.stream)


class Listing:
    """Reads one page.

    Args:
        limit: the most tasks of the page.
        budget: how many tasks to examine in each place.
        cursor: of the page before; empty: the first page.

    Raises:
        ValueError: the cursor is invalid.
    """

    def __init__(
        self, places: Places, selection: TaskFilter, limit: int, budget: int, cursor: str
    ) -> None:
        held, queued, delayed = _parse(cursor)
        self._places, self._selection = places, selection
        self._limit, self._budget = limit, budget
        self._held = _Part((0, _QUEUED - 1), held)
        self._queued = _Part((_QUEUED, _QUEUED), queued)
        self._delayed = _Part((_DELAYED, _DELAYED), delayed)
        self._found: dict[str, Key] = {}
        self._searched = self._total = self._unseen = 0

    async def read(self) -> Listed:
        """Search the places, and choose the tasks of the page."""
        await self._search_delayed_set()
        sizes = await self._places.sizes()
        await self._search_unread(sizes)
        await self._search_listed()
        await self._search_delivered(sizes)
        ids, after, left = list[str](), list[Key | None](), self._limit
        for part in (self._held, self._queued, self._delayed):
            rows = part.rows(self._found)
            ids += [id for _, id in rows[:left]]
            if len(rows) > left:
                after.append(rows[left - 1][0] if left else part.after)
            else:
                after.append(part.rest)
            left = max(0, left - len(rows))
        matched = len(self._found) + self._unseen
        total = max(self._total, self._searched)
        return Listed(ids, matched, self._searched, total, _cursor(after))

    def _wants(self, *states: str) -> bool:
        """Whether tasks of one of these states are selected."""
        return not self._selection.states or bool({*states} & {*self._selection.states})

    async def _search_delayed_set(self) -> None:
        held = self._held.after is not None and self._wants("waiting", "dying")
        delayed = self._delayed.after is not None and self._wants("delayed")
        if not held and not delayed:
            return
        after = self._delayed.after or _BEGIN
        start = "" if held or after == _BEGIN else f"{after[1]} {after[3]}"
        examined = 0
        while True:
            page = await self._places.page("delayed", self._selection, start, self._step(examined))
            self._keep(page.found)
            examined, start = examined + page.examined, page.end
            if not start or examined >= self._budget:
                break
        size = await self._places.delayed()
        self._searched, self._total = self._searched + examined, self._total + size
        if start:
            due, _, id = start.partition(" ")
            self._delayed.rest = (_DELAYED, int(float(due)), 0, id) if delayed else None
            if not self._selection.is_narrow and all(
                map(self._wants, ("waiting", "dying", "delayed"))
            ):
                self._unseen += max(0, size - examined)

    async def _search_unread(self, sizes: Sizes) -> None:
        """Merge the unread parts of the streams, the oldest entry first."""
        if self._queued.after is None or not self._wants("queued"):
            return
        streams = [
            _begin(index, self._queued.after)
            for index, name in enumerate(STREAMS)
            if not name.startswith(BURIALS)
        ]
        unread = sum(sizes.unread[STREAMS[each.stream]] for each in streams)
        examined = merged = 0
        while streams:
            if merged > self._limit and not self._selection.is_narrow:
                break
            stream = min(streams, key=_Unread.frontier)
            if stream.found:
                self._keep([stream.found.popleft()], stream.stream)
                merged += 1
            elif stream.is_at_end:
                streams.remove(stream)
            elif examined >= self._budget and all(each.is_begun for each in streams):
                break
            else:
                examined += await self._read_unread(stream, self._step(examined))
        self._total += unread
        if streams:
            self._queued.rest = min(map(_Unread.frontier, streams))
        if self._selection.is_narrow:
            self._searched += examined
        else:  # all of them match, so there is no need to examine them
            self._searched += max(unread, merged)
            self._unseen += max(0, unread - merged) if streams else 0

    async def _search_listed(self) -> None:
        """Search the lists of tenants, each from its first task."""
        after = self._queued.after
        if after is None or not self._wants("queued"):
            return
        for name, length in (await self._places.listed()).items():
            index, examined = STREAMS.index(name), 0
            async for page in self._places.walk(f"listed {name}", self._selection):
                examined += page.examined
                rows = [item for item in page.found if _queued_key(item.entry, index) > after]
                self._keep(rows, index)
                if examined >= self._budget:
                    break
            self._searched, self._total = self._searched + examined, self._total + length
            if not self._selection.is_narrow:
                self._unseen += max(0, length - examined)

    async def _read_unread(self, stream: _Unread, count: int) -> int:
        if not self._selection.is_narrow:
            count = min(count, self._limit + 1)
        name = f"unread {STREAMS[stream.stream]}"
        page = await self._places.page(name, self._selection, stream.start, count)
        stream.found.extend(page.found)
        stream.start, stream.is_begun = page.end, True
        stream.reached = entry_of(page.end[1:]) if page.end else stream.reached
        stream.is_at_end = not page.end
        return page.examined

    async def _search_delivered(self, sizes: Sizes) -> None:
        """Find running tasks, and those whose dead letters are being written or will be next."""
        if self._held.after is None or not self._wants("running", "dying"):
            return
        for index, name in enumerate(STREAMS):
            is_burial = name.startswith(BURIALS)
            if is_burial and not self._wants("dying"):
                continue
            self._total += sizes.delivered[name] + (sizes.unread[name] if is_burial else 0)
            for place in ("delivered", "unread") if is_burial else ("delivered",):
                examined = 0
                async for page in self._places.walk(f"{place} {name}", self._selection):
                    self._keep(page.found, index)
                    examined += page.examined
                    if examined >= self._budget:
                        break
                self._searched += examined

    def _step(self, examined: int) -> int:
        return max(1, min(PAGE, self._budget - examined))

    def _keep(self, found: Sequence[Found], stream: int = 0) -> None:
        """Add tasks to the list; a later place of a task replaces an earlier one."""
        for item in found:
            if item.state == "queued" and not any(item.entry):
                continue  # a woken task keeps a place in the delayed set; its stream comes later
            if item.state == "queued":
                self._found[item.id] = _queued_key(item.entry, stream)
            else:
                self._found[item.id] = (_RANKS[item.state], item.at, 0, item.id)


def _queued_key(entry: tuple[int, int], stream: int) -> Key:
    return (_QUEUED, *entry, f"{stream:02}")


def _begin(stream: int, after: Key) -> _Unread:
    """Begin to read a stream behind the task with this key."""
    if after == _BEGIN:
        return _Unread(stream, "", (0, 0))
    _, milliseconds, number, last = after
    is_behind = f"{stream:02}" > last  # an entry with the same id in this stream comes behind it
    start = f"{'' if is_behind else '('}{milliseconds}-{number}"
    return _Unread(stream, start, (milliseconds, number))


def _cursor(after: Sequence[Key | None]) -> str:
    """Return the cursor that continues behind these tasks; empty: all parts are finished."""
    short = [0 if key == _BEGIN else key for key in after]
    return json.dumps(short, separators=(",", ":")) if any(after) else ""


def _parse(cursor: str) -> list[Key | None]:
    """Undo `_cursor`: return how far each part of a list was shown."""
    if not cursor:
        return [_BEGIN] * 3
    try:
        parts: list[Any] = json.loads(cursor)
        held, queued, delayed = (_checked(part) for part in parts)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"list: cursor={cursor!r:.80} is not the cursor of a page; leave it out to begin anew"
        ) from error
    return [held, queued, delayed]


def _checked(part: Any) -> Key | None:
    if not part:
        return _BEGIN if part == 0 else None
    rank, first, second, id = part
    return int(rank), int(first), int(second), str(id)

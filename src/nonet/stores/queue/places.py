"""Find live tasks: walk the places where Redis keeps them, page by page, with a filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.message import HARD_LIMIT_BYTES, decode_envelope, pack
from nonet.base.plain import few
from nonet.base.streams import KINDS, Priority, Size
from nonet.stores.connection.clock import microseconds
from nonet.stores.connection.redis import Scripts, server_errors
from nonet.stores.connection.unreadable import readable
from nonet.stores.queue.records import read_records

# The states of a task that has not ended, in the order of a list.
LIVE_STATES = ("running", "waiting", "queued", "delayed", "dying")
# The states in which a task can be cancelled without its worker.
CANCELLABLE = ("queued", "delayed", "waiting")
# The same, and the state in which its worker ends it.
UNFINISHED = (*CANCELLABLE, "running")
_STATES = {state.encode() for state in (*UNFINISHED, "dying")}
# The streams in the order in which workers read the kinds; burials have dying tasks only.
BURIALS = "burials"
STREAMS = [f"{kind}:{priority}:{size}" for kind in KINDS for priority in Priority for size in Size]
# How many tasks one script call examines, which takes about 2 ms of Redis.
PAGE = 250
# How many tasks of each place a list examines by default.
BUDGET = 20_000


class TaskFilter(Struct, frozen=True):
    """Selects live tasks.

    Attributes:
        task: full or bare class name; empty: any.
        labels: the task must have each with this value. A number also matches its digits as text.
        states: some of `LIVE_STATES`; empty: any.
        workers: incarnations of workers, one of which runs or writes the task; None: any, or none.
        error: text in the error of the last failed attempt, in any case of letters; empty: any.
        since, until: first and last time of its submission, by the logical clock of Redis.
        tenant: see `nonet.rules.fairness.tenant_of`; empty: any.
        ids: of tasks; empty: any.
    """

    task: str = ""
    labels: Mapping[str, Any] = {}
    states: Sequence[str] = CANCELLABLE
    workers: Sequence[str] | None = None
    error: str = ""
    since: datetime | None = None
    until: datetime | None = None
    tenant: str = ""
    ids: Sequence[str] = ()

    def __str__(self) -> str:
        parts = [f"named {few(self.ids)}" if self.ids else ""]
        parts += [self.task and f"of class {self.task}"]
        parts += [self.tenant and f"of tenant {self.tenant}"]
        parts += [f"labelled {name}={value}" for name, value in self.labels.items()]
        all_states = (set[str](), set(CANCELLABLE), set(UNFINISHED))
        parts += ["" if set(self.states) in all_states else " or ".join(self.states)]
        parts += ["" if self.workers is None else f"of worker {' or '.join(self.workers)}"]
        parts += [self.error and f"with the error {self.error!r}"]
        parts += [f"submitted since {self.since:%F %T}" if self.since else ""]
        parts += [f"submitted until {self.until:%F %T}" if self.until else ""]
        return ", ".join(part for part in parts if part) or "all"

    @property
    def is_narrow(self) -> bool:
        """Whether it selects by more than the state."""
        others = (self.task, self.labels, self.error, self.since, self.until, self.tenant, self.ids)
        return any(others) or self.workers is not None

    def names(self, name: str, state: str) -> bool:
        """Whether class and state match, and the filter needs nothing from records."""
        of_class = self.task in ("", name, name.rpartition(":")[2])
        of_records = self.workers is not None or self.error or self.tenant or self.ids
        return of_class and state in self.states and not of_records

    def fits(self, envelope: bytes | None) -> bool:
        """Whether labels and time match, for a task that is only in SQL."""
        if (self.since or self.until) and envelope is not None:
            try:
                submitted = decode_envelope(envelope).submitted
            except MalformedMessageError:
                return False
            earliest, latest = (at and at.timestamp() for at in (self.since, self.until))
            if not (earliest or submitted) <= submitted <= (latest or submitted):
                return False
        return self.labels_fit(envelope)

    def lines(self) -> list[str]:
        """Return the arguments of ``list.lua`` that select tasks, without the labels."""
        times = ["" if at is None else str(microseconds(at)) for at in (self.since, self.until)]
        workers = "" if self.workers is None else f" {' '.join(self.workers)} "
        return [self.task, workers, self.error.lower(), *times, self.tenant, *self.states]

    def labels_fit(self, envelope: bytes | None) -> bool:
        """Whether the labels in this envelope match. An unreadable envelope has none."""
        if not self.labels:
            return True
        try:
            found = decode_envelope(envelope or b"").labels
        except MalformedMessageError:
            return False
        return all(
            name in found and _is_same(found[name], value) for name, value in self.labels.items()
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A live task in its place.

    Attributes:
        id: its id.
        state: its state when it was examined.
        at: since when it is in this state (µs); for a delayed task when it is due; 0: unknown.
        entry: its entry in a stream as two numbers; in the list of a tenant the time of its
            submission (ms, µs); (0, 0) in other places.
        name: its class.
    """

    id: str
    state: str
    at: int
    entry: tuple[int, int] = (0, 0)
    name: str = ""


class Sizes(Struct, frozen=True):
    """How many entries of each stream no worker has read, and how many a worker has."""

    unread: dict[str, int]
    delivered: dict[str, int]


class Page(Struct, frozen=True):
    """One page of a place.

    Attributes:
        found: the selected tasks.
        examined: how many tasks were examined.
        end: where the next page begins; empty at the end of the place.
    """

    found: list[Found]
    examined: int
    end: str


class Places:
    """The places of the live tasks of a namespace.

    A place is ``records`` (all records, in no order: finds each task that lives during the whole
    walk, however often it moves), ``delayed`` (the delayed set, in the order of its times),
    ``unread NAME`` or ``delivered NAME`` (the entries of a stream that no worker has, or that one
    has), ``listed NAME`` (the lists of the tenants that share a stream), ``named`` (the tasks whose
    ids `start` has, separated by blanks).
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def page(
        self, place: str, selection: TaskFilter, start: str = "", count: int = PAGE
    ) -> Page:
        """Examine `count` tasks of a place; a task may occur twice, on this page or the next one.

        Args:
            start: `Page.end` of the page before; in the delayed set also ``µs id`` and in a stream
                an argument of XRANGE.
        """
        kind, _, stream = place.partition(" ")
        end, examined, *rows = await self._scripts.run(
            "list", kind, stream, start, count, *selection.lines()
        )
        found = list[Found]()
        for row in zip(*[iter(rows)] * 5, strict=True):
            found += readable(f"t:{row[0].decode(errors='replace')}", "DEL", [row], _found)
        return Page(await self.labelled(found, selection), examined, end.decode(errors="replace"))

    async def walk(
        self, place: str, selection: TaskFilter, count: int = PAGE
    ) -> AsyncIterator[Page]:
        """Yield the pages of a place. Of all records, read those that the selection names."""
        if place == "records" and selection.ids:
            async for page in self.named(selection.ids, selection, count):
                yield page
            return
        page = Page([], 0, "")
        while True:
            page = await self.page(place, selection, page.end, count)
            yield page
            if not page.end:
                return

    async def named(
        self, ids: Sequence[str], selection: TaskFilter, count: int = PAGE
    ) -> AsyncIterator[Page]:
        """Yield the pages of some tasks."""
        for start in range(0, len(ids), count):
            yield await self.page("named", selection, " ".join(ids[start : start + count]))

    async def delayed(self) -> int:
        """Count the members of the delayed set."""
        client = self._scripts.client
        async with client.pipeline(transaction=False) as pipe:
            pipe.zcard(f"{self._scripts.prefix}tasks:delayed")
            (size,) = await pipe.execute()
        return int(size)

    async def sizes(self) -> Sizes:
        """Count the entries of all streams."""
        client, prefix = self._scripts.client, self._scripts.prefix
        async with client.pipeline(transaction=False) as pipe:
            for name in STREAMS:
                pipe.xlen(prefix + name)
            lengths = dict(zip(STREAMS, await pipe.execute(), strict=True))
        used = [name for name, length in lengths.items() if length]
        async with client.pipeline(transaction=False) as pipe:
            for name in used:
                pipe.xinfo_groups(prefix + name)
            groups_of = dict(zip(used, await existing(pipe) if used else (), strict=True))
        sizes = Sizes({}, {})
        for name, length in lengths.items():
            groups = groups_of.get(name)
            delivered = sum(each["pending"] for each in groups or () if each["name"] == b"workers")
            sizes.delivered[name] = min(delivered, length)
            sizes.unread[name] = length - sizes.delivered[name]
        return sizes

    async def listed(self) -> dict[str, int]:
        """Count the tasks that wait for the turns of their tenants, by stream; empty: none do."""
        shared = [name for name in STREAMS if name.startswith(("tasks:", "woken:"))]
        parts = [(kind, stream) for kind, _, stream in (name.partition(":") for name in shared)]
        client, prefix = self._scripts.client, self._scripts.prefix
        async with client.pipeline(transaction=False) as pipe:
            pipe.hmget(f"{prefix}pace", [f"{stream} {kind}" for kind, stream in parts])
            for _, stream in parts:  # a script that was cut may have left a number without lists
                pipe.exists(f"{prefix}shares:{stream}")
            numbers, *are_there = await pipe.execute()
        found = zip(shared, numbers, are_there, strict=True)
        lengths = ((name, text or 0) for name, text, is_there in found if is_there)
        counts = dict(readable("pace", "HDEL", lengths, lambda name, text: (name, int(text))))
        return {name: count for name, count in counts.items() if count > 0}

    async def labelled(self, found: list[Found], selection: TaskFilter) -> list[Found]:
        """Return the tasks whose labels match; only envelopes have labels."""
        if not selection.labels:
            return found
        ids = [one.id for one in found]
        records = await read_records(self._scripts, ids, envelope_bytes=HARD_LIMIT_BYTES)
        return [
            one
            for one, record in zip(found, records, strict=True)
            if selection.labels_fit(record.get("envelope"))
        ]


async def existing(pipe: Any) -> list[Any]:
    """Execute a pipeline of reads; None stands for a missing stream or group.

    Raises:
        NonetError: for any other error.
    """
    answers = await pipe.execute(raise_on_error=False)
    for answer in answers:
        is_absent = str(answer).startswith("NOGROUP") or str(answer) == "no such key"
        if isinstance(answer, Exception) and not is_absent:
            async with server_errors(pipe):
                raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


def _found(id: bytes, state: bytes, name: bytes, at: bytes, entry: bytes) -> Found:
    task = name.decode(errors="replace")
    if state not in _STATES:
        raise ValueError("not the state of a live task")
    return Found(id.decode(), state.decode(), int(float(at)), entry_of(entry), task)


def entry_of(text: str | bytes) -> tuple[int, int]:
    """Parse the id of a stream entry; (0, 0) if it is invalid.

    >>> entry_of("1795000000000-7"), entry_of(b"")
    ((1795000000000, 7), (0, 0))
    """
    name = text.decode(errors="replace") if isinstance(text, bytes) else text
    ms, _, rest = name.partition("-")
    return (int(ms), int(rest)) if ms.isdecimal() and rest.isdecimal() else (0, 0)


def _is_same(found: Any, wanted: Any) -> bool:
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return bool(found == pack(wanted)) or (is_number and str(found) == wanted)

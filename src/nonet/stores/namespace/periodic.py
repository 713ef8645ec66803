"""Periodic entries in Redis: their last occurrences, plans and pauses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from nonet.base.messages.message import ResultDocument, encode
from nonet.rules.pauses import EVERYTHING, Pause, of_task, one_line
from nonet.rules.periodic import EntryStatus
from nonet.stores.connection.clock import instant, microseconds
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable, readable_hash
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.records import read_records
from nonet.stores.queue.submissions import Submission

# Entries that one plan script handles, so that it does not block Redis.
_CHUNK = 100
_NEXT = "periodic:next"


@dataclass(frozen=True, slots=True)
class Fired:
    """The record of an entry in Redis.

    Attributes:
        last: the last occurrence fired or passed over; for a new entry, when it was planned.
        id: the last submitted task, or empty.
        prints: fingerprints of the planned schedule and arguments.
    """

    last: datetime
    id: str
    prints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that the plan script makes to an entry.

    Attributes:
        task: full class name.
        verb: ``new``, ``same``, ``turn`` (schedule or arguments changed: an occurrence that has
            not begun is withdrawn) or ``drop``.
        last: for ``new`` and ``turn``, the occurrence to record as the last one.
        again: for ``turn``, replaces `last` if the new schedule has the withdrawn occurrence, too.
            It is just before that occurrence, which is then submitted again.
        prints: as `Fired.prints`.
        next: when it fires next; None: never again.
        shown: what commands show of it.
    """

    verb: str
    entry: str
    task: str
    last: datetime | None = None
    again: datetime | None = None
    prints: tuple[str, ...] = ()
    next: datetime | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments for the script."""
        withdrawn = b""
        if self.verb not in ("new", "same"):
            why = "withdrawn: its periodic entry was changed, disabled or deleted"
            document = ResultDocument(self.task, 0, time.time(), error=why, reason="cancelled")
            withdrawn = encode(document)
        return (
            *(self.verb, self.entry, _text(self.last), _text(self.again), ".".join(self.prints)),
            *(_text(self.next), json.dumps(self.shown, default=str), withdrawn),
        )


class Periodic(RedisStore):
    """The periodic entries of one namespace, over a broker's connection."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        super().__init__(broker.client, namespace)
        self._keeping = broker.keeping

    async def fire(
        self,
        term: str,
        entry: str,
        occurrence: datetime,
        submission: Submission,
        *,
        overlap: str = "allow",
        missed: int = 0,
        following: datetime | None = None,
    ) -> str:
        """Submit one occurrence, once.

        Args:
            overlap: what to do while the previous one runs: ``skip``, ``queue``, ``allow``,
                or ``late``: skip, but wait if the previous one began after this one was due.
            missed: how many older occurrences are never fired.
            following: the next occurrence; None: there is none.

        Returns:
            ``FIRED``, ``KNOWN`` (fired before), ``SKIPPED`` (the previous one runs), ``PAUSED``,
            ``WAITING`` (for the previous one: try again) or ``DEPOSED`` (another term leads).
        """
        head = (term, entry, _text(occurrence), overlap, missed, _text(following))
        spec = submission.spec()
        return _word(await self._scripts.run("fire", *head, submission.due_us, *spec))

    async def pass_over(
        self, term: str, entry: str, occurrence: datetime, missed: int, following: datetime | None
    ) -> str:
        """Record an occurrence that is not submitted.

        Args:
            missed: how many occurrences are missed, including this one.

        Returns:
            ``PASSED``, ``PAUSED``, ``KNOWN`` or ``DEPOSED``, see `fire`.
        """
        head = (term, entry, _text(occurrence), "pass", missed, _text(following))
        return _word(await self._scripts.run("fire", *head, 0, "", "", "", "", "", ""))

    async def plan(self, term: str, changes: Iterable[Change]) -> list[str] | None:
        """Apply a plan. Safe to repeat.

        Returns:
            The entries whose pending occurrence was withdrawn; None if another term leads.
        """
        withdrawn: list[str] = []
        todo = list(changes)
        for start in range(0, max(len(todo), 1), _CHUNK):
            chunk = todo[start : start + _CHUNK]
            arguments = [argument for change in chunk for argument in change.arguments()]
            answer = await self._scripts.run("plan", self._keeping, term, *arguments)
            if answer == 0:
                return None
            withdrawn += [entry.decode() for entry in answer]
        return withdrawn

    async def fired(self) -> dict[str, Fired]:
        """Return the record of each entry."""
        found = await self._client.hgetall(f"{self._prefix}periodic")
        return readable_hash("periodic", found, _fired)

    async def known(self) -> set[str]:
        """Return all entries that were planned and not dropped since."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hkeys(f"{self._prefix}periodic").hkeys(f"{self._prefix}periodic:entries")
            found = [entry for keys in await pipe.execute() for entry in keys]
        return set(readable("periodic", "HDEL", zip(found), bytes.decode))

    async def paused(self) -> set[str]:
        """Return the paused entries."""
        return {key.decode() for key in await self._client.hkeys(f"{self._prefix}periodic:paused")}

    async def of_origin(self, origin: str) -> set[str]:
        """Return the planned entries that are defined there."""
        key = "periodic:entries"
        found = await self._client.hgetall(f"{self._prefix}{key}")
        shown = readable_hash(key, found, json.loads)
        return {entry for entry, item in shown.items() if item.get("origin") == origin}

    async def next_of(self, entry: str) -> datetime | None:
        """Return the stored next occurrence of an entry whose schedule is evaluated once."""
        found = await self._client.hget(f"{self._prefix}periodic:next", entry)
        return readable_hash(_NEXT, {entry.encode(): found}, instant).get(entry) if found else None

    async def arguments(self, entry: str) -> Mapping[str, Any]:
        """Return the arguments of an entry; empty if there is no such entry."""
        arguments: Mapping[str, Any] = (await self._shown(entry)).get("args", {})
        return arguments

    async def origin(self, entry: str) -> str:
        """Return where an entry is defined; empty if there is no such entry."""
        return str((await self._shown(entry)).get("origin", ""))

    async def _shown(self, entry: str) -> Mapping[str, Any]:
        key = "periodic:entries"
        found = await self._client.hget(f"{self._prefix}{key}", entry)
        shown = readable_hash(key, {entry.encode(): found}, json.loads) if found else {}
        about: Mapping[str, Any] = shown.get(entry, {})
        return about

    async def statuses(self) -> list[EntryStatus]:
        """Return all planned and disabled entries, sorted by identity."""
        async with self._client.pipeline(transaction=False) as pipe:
            parsers: dict[str, Callable[[str], Any]] = {
                "periodic:entries": json.loads,
                _NEXT: instant,
                "periodic:counts": int,
                "periodic:paused": partial(Pause.decode, EVERYTHING),
                "paused": partial(Pause.decode, EVERYTHING),
            }
            for name in parsers:
                pipe.hgetall(f"{self._prefix}{name}")
            found = zip(parsers.items(), await pipe.execute(), strict=True)
            shown, following, counts, paused, pauses = (
                readable_hash(name, values, parse) for (name, parse), values in found
            )
        fired = await self.fired()
        ids = [fired[entry].id if entry in fired else "" for entry in shown]
        records = [
            [record.get(name, b"").decode(errors="replace") for name in ("state", "stream")]
            for record in await read_records(self._scripts, ids)
        ]
        held_back = [replace(pause, what=what) for what, pause in pauses.items()]
        rows = (
            (entry, shown[entry], fired.get(entry), record, following, counts, paused.get(entry))
            for entry, record in sorted(zip(shown, records, strict=True))
        )
        make = partial(_status, pauses=held_back)
        return readable("periodic:entries", "HDEL", rows, make)

    async def pause(self, entries: Iterable[str], who: str, reason: str) -> list[str]:
        """Pause entries. Return those that were not paused before."""
        return await self._turn("pause", entries, who, reason)

    async def resume(self, entries: Iterable[str], who: str) -> list[str]:
        """Resume entries from their next occurrence on. Return those that were paused."""
        return await self._turn("resume", entries, who, "")

    async def _turn(self, verb: str, entries: Iterable[str], who: str, reason: str) -> list[str]:
        found = await self._scripts.run("pause_entries", verb, *one_line(who, reason), *entries)
        return [entry.decode() for entry in found]


def _word(answer: bytes) -> str:
    return answer.decode()


def _fired(value: str) -> Fired:
    last, id, prints = value.split("|", 2)
    return Fired(instant(last), id, tuple(prints.split(".")) if prints else ())


def _status(
    entry: str,
    shown: dict[str, Any],
    fired: Fired | None,
    record: Sequence[str],
    following: Mapping[str, datetime],
    counts: Mapping[str, int],
    paused: Pause | None,
    pauses: Sequence[Pause],
) -> EntryStatus:
    state, stream = record

    def count(what: str) -> int:
        return counts.get(f"{entry}|{what}", 0)

    last = counts.get(f"{entry}|last")
    ours = {
        "entry": entry,
        "next": following.get(entry),
        "last": None if last is None else instant(last),
        "last_id": fired.id if fired else "",
        "last_state": state,
        "fired": count("fired"),
        "skipped": count("skipped"),
        "missed": count("missed"),
        "suppressed": count("paused"),
        "paused": _who(paused),
    }
    # Checks the types of what the leader has published, and drops other fields.
    found = msgspec.convert({**shown, **ours, "held_back": None}, EntryStatus)
    return replace(found, held_back=of_task(pauses, stream, found.task))


def _who(pause: Pause | None) -> str:
    """Describe who paused an entry."""
    if pause is None:
        return ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{pause.since:%Y-%m-%dT%H:%M:%SZ} by {pause.who}{reason}"


def _text(at: datetime | None) -> str:
    return str(microseconds(at)) if at else ""

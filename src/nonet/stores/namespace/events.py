"""The event stream: the changes that were made in a namespace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.connection.unreadable import readable

_PAGE = 500
_BEGINNING = b"0-0"
_ID = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Event:
    """One change.

    Attributes:
        at: by the clock of Redis.
        kind: a word for programs, one of `nonet.base.keys.EVENT_KINDS`.
        who: ``user@host pid``.
        text: what changed, for people.
    """

    at: datetime
    kind: str
    who: str
    text: str


class EventPage(Struct, frozen=True):
    """Some events, the newest first.

    Attributes:
        cursor: of the page of older events; empty: there are none.
    """

    events: tuple[Event, ...]
    cursor: str


class Events(RedisStore):
    """The event stream of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        super().__init__(client, namespace)
        self._key = f"{self._prefix}events"

    async def log(self, kind: str, who: str, text: str) -> None:
        """Record an action that was made outside of Redis.

        Args:
            kind: one of `nonet.base.keys.EVENT_KINDS`.
            who: ``user@host pid``.
            text: what was done, for people.
        """
        await self._scripts.run("log_event", kind, who, text)

    async def last(
        self, limit: int, *, kind: str | None = None, since: datetime | None = None
    ) -> list[Event]:
        """Return the last `limit` events, optionally of one kind or after a time, newest last."""
        return await self._before("+", limit, lambda event: kind in (None, event.kind), since)

    async def page(
        self, limit: int, keep: Callable[[Event], bool] = lambda event: True, cursor: str = ""
    ) -> EventPage:
        """Return the last `limit` events that `keep` accepts, the newest first.

        Args:
            cursor: of an earlier page; empty: begin with the newest.

        Raises:
            ValueError: the cursor is not one of an earlier page.
        """
        if cursor and not _ID.fullmatch(cursor):
            raise ValueError(f"cursor {cursor!r}: use the cursor of an earlier page")
        end, found, last = f"({cursor}" if cursor else "+", list[Event](), ""
        while True:
            page = await self._client.xrevrange(self._key, end, count=_PAGE)
            for id, event in _events(page):
                if keep(event):
                    if len(found) == limit:
                        return EventPage(tuple(found), last)
                    found.append(event)
                    last = id
            if len(page) < _PAGE:
                return EventPage(tuple(found), "")
            end = f"({page[-1][0].decode()}"

    def follow(self, limit: int, keep: Callable[[Event], bool] = lambda event: True) -> Following:
        """Follow the stream: the last `limit` events first, then new ones that `keep` accepts."""
        return Following(self, limit, keep)

    async def _before(
        self, end: str, limit: int, keep: Callable[[Event], bool], since: datetime | None = None
    ) -> list[Event]:
        found: list[Event] = []
        while len(found) < limit:
            page = await self._client.xrevrange(self._key, end, count=_PAGE)
            events = [one for _, one in _events(page)]
            found += [one for one in events if keep(one) and (since is None or one.at > since)]
            is_past = since is not None and events and events[-1].at <= since
            if len(page) < _PAGE or is_past:
                break
            end = f"({page[-1][0].decode()}"
        return found[:limit][::-1]

    async def _between(
        self, start: bytes, end: bytes, keep: Callable[[Event], bool]
    ) -> list[Event]:
        """The events after `start`, up to `end`."""
        found: list[Event] = []
        while start != end:
            page = await self._client.xrange(self._key, b"(" + start, end, count=_PAGE)
            if not page:
                break  # emptied meanwhile
            found += [one for _, one in _events(page) if keep(one)]
            start = page[-1][0]
        return found

    async def _newest(self) -> bytes:
        """Id of the last entry; the smallest id if the stream is empty."""
        newest = await self._client.xrevrange(self._key, count=1)
        return bytes(newest[0][0]) if newest else _BEGINNING


class Following:
    """Follows the events of a namespace. Survives outages of Redis and losses of data."""

    def __init__(self, events: Events, limit: int, keep: Callable[[Event], bool]) -> None:
        self._events = events
        self._limit = limit
        self._keep = keep
        self._seen: bytes | None = None

    async def new(self) -> list[Event]:
        """Return the events since the last call, oldest first; at the first call the last ones.

        If the stream ends before the last event that was seen, Redis was emptied or has older data.
        All events of the stream then count as new.

        Raises:
            ServerUnreachableError: Redis does not answer. The next call starts where this one did.
        """
        newest = await self._events._newest()
        if self._seen is None:
            found = await self._events._before(newest.decode(), self._limit, self._keep)
        else:
            start = self._seen if _order(self._seen) <= _order(newest) else _BEGINNING
            found = await self._events._between(start, newest, self._keep)
        self._seen = newest
        return found


def _events(page: Sequence[Any]) -> list[tuple[str, Event]]:
    return readable("events", "XDEL", page, _event)


def _order(id: bytes) -> tuple[int, ...]:
    """The id of an entry as numbers, which can be compared."""
    return tuple(map(int, id.split(b"-")))


def _event(id: bytes, fields: dict[bytes, bytes]) -> tuple[str, Event]:
    text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    event = Event(instant(text["at"]), text["kind"], text["who"], text["text"])
    return id.decode(), event

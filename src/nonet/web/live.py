"""Live changes: one reader for each process tells all open pages when to read again.

Pages hold a stream of server-sent events. While there is one, a reader looks for new events of the
namespace, and sends a tick at which the pages read themselves again. It waits longer between two
ticks when pages need more commands, so that they stay below `COMMANDS_PER_SECOND` in all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi.sse import format_sse_event

from nonet.base.errors import NonetError
from nonet.stores.connection.spending import Spending, spending
from nonet.stores.namespace.events import Event, Events, Following
from nonet.web.shared import Shared

COMMANDS_PER_SECOND = 20
"""Redis commands that all open pages of a process may need."""

# Part of the budget by which ticks are spaced; the rest is for pages that people open.
_BUDGET = 0.8 * COMMANDS_PER_SECOND
_SHORTEST_SECONDS = 2.0
_HEARTBEAT_SECONDS = 15.0
_MOST_STREAMS = 200
_MOST_OF_ONE = 10  # of a principal without sessions, e.g. a token
_MOST_UNSENT = 200
_MOST_REPLAYED = 500
_RETRY_MS = 2000

StillAllowed = Callable[[], Awaitable[bool]]
Show = Callable[[Event], Event]


@dataclass(eq=False, slots=True)
class _Stream:
    """One open stream, and what it has not sent yet.

    Attributes:
        owner: the session, or the name of a principal without one.
        show: returns an event as its caller may see it.
        replayed: ids of events that it has sent from before its beginning.
        end: why it ends; empty: it goes on.
    """

    owner: str
    show: Show
    unsent: deque[bytes] = field(default_factory=deque)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    replayed: frozenset[str] = frozenset()
    end: str = ""

    def push(self, message: bytes) -> None:
        self.unsent.append(message)
        if len(self.unsent) > _MOST_UNSENT:  # its client reads too slowly, and will come back
            self.unsent.clear()
            self.end = "slow"
        self.woken.set()

    def finish(self, reason: str) -> None:
        self.end = self.end or reason
        self.woken.set()


class Live:
    """The streams of one process.

    Args:
        events: gives the event stream of the namespace.
        shared: values of pages, which a tick makes old.
        pages: counts what pages send to Redis.
    """

    def __init__(self, events: Callable[[], Events], shared: Shared, pages: Spending) -> None:
        self._events = events
        self._shared = shared
        self._pages = pages
        self._streams: set[_Stream] = set()
        self._reader: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._following: Following | None = None
        self.interval = _SHORTEST_SECONDS

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def has_room(self, owner: str, *, is_session: bool) -> bool:
        """Return whether another stream may be opened; the one of a session is replaced."""
        of_owner = sum(stream.owner == owner for stream in self._streams)
        if self._is_stopped or (is_session and of_owner):
            return not self._is_stopped
        return self.open < _MOST_STREAMS and of_owner < _MOST_OF_ONE

    async def stream(
        self, owner: str, allowed: StillAllowed, show: Show, *, is_session: bool, after: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield the messages of a stream, until its caller may not read any more, or `stop`.

        Args:
            owner: the session of the caller, whose earlier stream ends, or a name.
            allowed: asked every 15 seconds; the stream ends if the answer is no.
            show: returns an event as the caller may see it.
            is_session: whether `owner` is a session.
            after: id of the last event that the caller has seen; those after it are sent first.
        """
        if is_session:
            self._end(owner, "replaced")
        stream = _Stream(owner, show)
        self._streams.add(stream)
        try:
            last = await self._start_reader()
            yield _message("hello", self._about(), id=after or last, retry=_RETRY_MS)
            for id, event in await self._missed(after):
                stream.replayed |= {id}
                yield _event(id, show(event))
            asked_at = time.monotonic()
            while not stream.end:
                is_woken = await _woken(stream, _HEARTBEAT_SECONDS)
                if time.monotonic() - asked_at >= _HEARTBEAT_SECONDS:  # ticks come more often
                    if not await allowed():
                        stream.finish("session")
                        break
                    asked_at = time.monotonic()
                if not is_woken:
                    yield format_sse_event(comment="still here")
                while stream.unsent:
                    yield stream.unsent.popleft()
            yield _message("end", {"reason": stream.end})
        finally:
            self._streams.discard(stream)

    def close(self, session: str) -> None:
        """End the stream of a session, e.g. at its logout."""
        self._end(session, "session")

    def stop(self) -> None:
        """End all streams; new ones are refused. Browsers connect to another process."""
        self._is_stopped = True
        for stream in self._streams:
            stream.finish("stopping")
        if self._reader is not None:
            self._reader.cancel()

    def _end(self, owner: str, reason: str) -> None:
        for stream in self._streams:
            if stream.owner == owner:
                stream.finish(reason)

    async def _missed(self, after: str) -> list[tuple[str, Event]]:
        if not after:
            return []
        try:
            return (await self._events().follow(0, after=after).entries())[-_MOST_REPLAYED:]
        except NonetError:
            return []  # the reader reports that Redis does not answer

    async def _start_reader(self) -> str:
        """Let a reader run, and return the id of the last event before its first tick."""
        if self._following is None or self._reader is None or self._reader.done():
            self._following = self._events().follow(0)
            self._reader = asyncio.create_task(self._read(self._following), name="live changes")
            with suppress(NonetError, TimeoutError):  # the reader reports that Redis is away
                await self._following.entries()
        return self._following.seen

    async def _read(self, following: Following) -> None:
        """Send events and ticks while there are streams."""
        with spending(self._pages):
            began, before = time.monotonic(), self._pages.commands
            while self._streams:
                self.interval = self._shared.interval = await self._pause(began, before)
                began, before = time.monotonic(), self._pages.commands
                try:
                    found = await following.entries()
                except (NonetError, TimeoutError) as error:
                    self._send("lost", {"reason": str(error)})
                    continue
                self._send_events(found)
                self._shared.tick()
                self._send("tick", self._about())
        self._shared.interval = 0.0

    async def _pause(self, began: float, before: int) -> float:
        """Wait until what the last tick cost is within the budget; return how long it took."""
        wanted = _SHORTEST_SECONDS
        while (left := began + wanted - time.monotonic()) > 0:
            await asyncio.sleep(left)
            wanted = max(wanted, (self._pages.commands - before) / _BUDGET)
        return time.monotonic() - began

    def _about(self) -> dict[str, Any]:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return {"at": at, "seconds": round(self.interval, 1)}

    def _send_events(self, found: Iterable[tuple[str, Event]]) -> None:
        for stream in self._streams:
            for id, event in found:
                if id not in stream.replayed:
                    stream.push(_event(id, stream.show(event)))

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        message = _message(kind, data)
        for stream in self._streams:
            stream.push(message)


def _message(kind: str, data: dict[str, Any], **fields: Any) -> bytes:
    return format_sse_event(event=kind, data_str=json.dumps(data, default=str), **fields)


def _event(id: str, event: Event) -> bytes:
    told = {"at": event.at, "kind": event.kind, "who": event.who, "text": event.text}
    return _message("event", told, id=id)


async def _woken(stream: _Stream, seconds: float) -> bool:
    """Wait until there is something to send; return whether there is."""
    try:
        async with asyncio.timeout(seconds):
            await stream.woken.wait()
    except TimeoutError:
        return False
    stream.woken.clear()
    return True

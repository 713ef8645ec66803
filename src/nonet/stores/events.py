"""The event stream: who changed what in a namespace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.keys import prefix
from nonet.stores.redis import AsyncRedis, server_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One change.

    Attributes:
        at: by the clock of Redis.
        kind: a word for programs: ``limit-set``, ``limit-unset``, ``limits-published`` …
        who: ``user@host pid``.
        text: what changed, for people.
    """

    at: datetime
    kind: str
    who: str
    text: str


class Events:
    """The event stream of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)

    async def last(self, limit: int) -> list[Event]:
        """The last `limit` events, the newest last."""
        async with server_errors(self._client):
            found = await self._client.xrevrange(f"{self._prefix}events", count=limit)
        return [_event(fields) for _, fields in reversed(found)]


def _event(fields: dict[bytes, bytes]) -> Event:
    text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    at = _EPOCH + timedelta(microseconds=int(text["at"]))
    return Event(at, text["kind"], text["who"], text["text"])

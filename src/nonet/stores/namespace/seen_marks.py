"""Which findings operators have seen, until an end. Each mark is a key that expires then."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from nonet.rules.findings.finding import Seen
from nonet.stores.connection.redis import RedisStore


class SeenMarks(RedisStore):
    """The marks of one namespace, over a broker's connection.

    Every method raises `ServerUnreachableError` if Redis does not answer.
    """

    async def put(self, identity: str, mark: Seen, lasts: timedelta) -> None:
        """Mark the finding with this `Finding.identity` for some time, in place of another mark."""
        milliseconds = max(1, int(lasts.total_seconds() * 1000))
        await self._client.set(self._key(identity), msgspec.json.encode(mark), px=milliseconds)

    async def remove(self, identity: str) -> None:
        """Remove the mark of a finding."""
        await self._client.delete(self._key(identity))

    async def of(self, identities: Sequence[str]) -> Mapping[str, Seen]:
        """Return the marks of findings, by their identities."""
        if not identities:
            return {}
        found = await self._client.mget([self._key(one) for one in identities])
        marks = zip(identities, found, strict=True)
        return {one: msgspec.json.decode(mark, type=Seen) for one, mark in marks if mark}

    def _key(self, identity: str) -> str:
        return f"{self._prefix}seen:{hashlib.sha256(identity.encode()).hexdigest()[:32]}"

"""Filters of lists that operators have saved, in the hash ``web:filters``."""

from __future__ import annotations

import json

from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable

Row = tuple[str, str, str, str]
"""Name, list, query and who saved it."""


class SavedFilters(RedisStore):
    """The saved filters of one namespace, over a broker's connection."""

    async def all(self) -> list[Row]:
        """Return all of them by name."""
        found = (await self._client.hgetall(self._key)).items()
        return sorted(readable("web:filters", "HDEL", found, _row))

    async def save(self, row: Row, most: int) -> bool:
        """Save one, also in place of that with its name; return whether there was room for it."""
        name, *others = row
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._key, name, json.dumps(others))
            pipe.hlen(self._key)
            is_new, number = await pipe.execute()
        if is_new and number > most:
            await self._client.hdel(self._key, name)
            return False
        return True

    async def remove(self, name: str) -> bool:
        """Delete one; return whether it existed."""
        return bool(await self._client.hdel(self._key, name))

    @property
    def _key(self) -> str:
        return f"{self._prefix}web:filters"


def _row(name: bytes, value: bytes) -> Row:
    of, query, who = map(str, json.loads(value))
    return name.decode(), of, query, who

"""Changes of many things that processes of ``task-web`` make, so that all of them show and stop it.

The hash ``web:bulks`` has two fields for a change: its id, which the process that makes the change
writes each second, and ``stop:ID``, which any process writes.
"""

from __future__ import annotations

from nonet.stores.connection.redis import RedisStore

_KEPT_MS = 86_400_000
_STOP = "stop:"


class BulkRecords(RedisStore):
    """The bulk changes of one namespace, over a broker's connection.

    Every method raises `ServerUnreachableError` if Redis does not answer.
    """

    async def all(self) -> dict[str, bytes]:
        """Return the documents by the ids of their changes."""
        found = await self._client.hgetall(self._key)
        names = {id.decode(): document for id, document in found.items()}
        return {id: document for id, document in names.items() if not id.startswith(_STOP)}

    async def write(self, id: str, document: bytes) -> str:
        """Write the document of a change; return who asked to stop it, or an empty text."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._key, id, document)
            pipe.pexpire(self._key, _KEPT_MS)
            pipe.hget(self._key, f"{_STOP}{id}")
            *_, who = await pipe.execute()
        return who.decode() if who else ""

    async def stop(self, id: str, who: str) -> None:
        """Ask the process that makes a change to stop it."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._key, f"{_STOP}{id}", who)
            pipe.pexpire(self._key, _KEPT_MS)
            await pipe.execute()

    async def forget(self, ids: list[str]) -> None:
        """Delete the documents of changes that are over."""
        if ids:
            await self._client.hdel(self._key, *ids, *(f"{_STOP}{id}" for id in ids))

    @property
    def _key(self) -> str:
        return f"{self._prefix}web:bulks"

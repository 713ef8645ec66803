"""The demand for workers: tasks and workers in Redis, and the numbers that the leader publishes."""

from __future__ import annotations

from collections.abc import Mapping

from nonet.base.streams import Size
from nonet.rules.demand import Demand, LiveWorker
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.connection.unreadable import readable_hash, whole
from nonet.stores.queue.workers import DRAINS, reported

# Queued tasks whose locks one call examines; 64 tasks with two locks each take below 1 ms.
_LOOKS = 64
# Published numbers expire unless a leader renews them; this outlasts a change of the leader.
_PUBLISHED_MS = 60_000


class Demands(RedisStore):
    """The demand of one namespace, over a broker's connection.

    Args:
        lock_ttl_ms: TTL of locks that declare none.
    """

    def __init__(self, client: AsyncRedis, namespace: str, lock_ttl_ms: int) -> None:
        super().__init__(client, namespace)
        self._lock_ttl_ms = lock_ttl_ms

    async def look(self, size: str) -> Demand:
        """Return the work and the workers of one size now."""
        answer = await self._scripts.run("demand", size, self._lock_ttl_ms, _LOOKS)
        runnable, running, known, *rows = answer
        workers = tuple(_worker(*row) for row in rows)
        slots = int(known or 0)
        return Demand(size, int(runnable), int(running), workers, slots)

    async def look_at_all(self) -> list[Demand]:
        """Return the demand of each size."""
        return [await self.look(size) for size in Size]

    async def publish(
        self,
        term: str,
        desired: Mapping[str, int],
        slots: Mapping[str, int] | None = None,
        failed: int = 0,
    ) -> bool:
        """Publish how many workers each size needs.

        Args:
            slots: slots of one worker by size, to be remembered when no worker is left.
            failed: how many calls of overflow hooks failed since the last call.

        Returns:
            False, without a change, if another term leads.
        """
        pairs = (*desired.items(), *(slots or {}).items())
        numbers = (_PUBLISHED_MS, failed, len(desired), *(part for pair in pairs for part in pair))
        answer = await self._scripts.run("publish_demand", term, *numbers)
        return bool(answer == 1)

    async def published(self) -> dict[str, int]:
        """Return how many workers each size needs; empty if no scheduler has led for a minute."""
        found = await self._client.hgetall(f"{self._prefix}desired")
        return readable_hash("desired", found, whole)

    async def retire(self, worker: str, size: str) -> bool:
        """Take an idle worker off the stack of idle workers.

        Returns:
            False if there is work for it: it must not exit yet.
        """
        return bool(await self._scripts.run("retire", worker, size) == 1)


def _worker(id: bytes, busy: int, info: bytes, off: bytes) -> LiveWorker:
    report = reported(id, info)  # empty for a worker that has yet to report: it has deliveries only
    name, drains = id.decode(errors="replace"), off.decode(errors="replace") == DRAINS
    return LiveWorker(name, report.concurrency, int(busy), not off, drains)

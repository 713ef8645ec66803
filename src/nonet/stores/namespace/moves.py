"""The moves of tenants to and from one namespace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from nonet.base.keys import escape, prefix
from nonet.stores.connection.redis import AsyncRedis, Scripts
from nonet.stores.queue.submissions import Submission

_FIELDS = 7  # of a task that send_delayed.lua returns


class Departure(Struct, frozen=True):
    """What is left of a tenant in the namespace that it leaves.

    Attributes:
        tasks: number of its tasks that have not ended.
        is_calm: no earlier holder of a lock can still believe that it holds it.
        entries: its periodic entries and their records, as a flat sequence of pairs.
    """

    tasks: int
    is_calm: bool
    entries: Sequence[bytes]


class Page(Struct, frozen=True):
    """Delayed tasks that are held back for another namespace.

    Attributes:
        cursor: where the next page begins; ``0``: at the beginning.
        ended: ids of earlier pages that were cancelled or have expired meanwhile.
    """

    cursor: str
    ended: Sequence[str]
    tasks: Sequence[Submission]


class Moves:
    """The moves of tenants in one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str, lock_ttl_ms: int) -> None:
        self._scripts = Scripts(client, prefix(namespace))
        self._lock_ttl_ms = lock_ttl_ms

    async def depart(self, tenant: str, to: str, who: str, *, is_vo: bool) -> Departure:
        """Let new tasks of a tenant go to another namespace. Safe to repeat.

        Args:
            is_vo: tenants are VOs, so that their periodic entries move, too.
        """
        about = (tenant, to, self._lock_ttl_ms, who, escape(tenant) if is_vo else "")
        tasks, is_lost, *entries = await self._scripts.run("depart", *about)
        return Departure(int(tasks), not is_lost, entries)

    async def arrive(
        self, tenant: str, source: str, who: str, known_ms: int, entries: Iterable[bytes]
    ) -> None:
        """Let new tasks of a tenant come here, with its periodic entries. Safe to repeat.

        Args:
            known_ms: how long the other namespace knows ids of tasks that end now.
        """
        await self._scripts.run("arrive", tenant, who, source, known_ms, *entries)

    async def send_delayed(self, tenant: str, cursor: str, arrived: Iterable[str]) -> Page:
        """Delete the delayed tasks that have arrived, and hold back the next ones.

        Args:
            arrived: ids of the last page, which the other namespace has.
        """
        following, ended, *flat = await self._scripts.run("send_delayed", tenant, cursor, *arrived)
        rows = [flat[at : at + _FIELDS] for at in range(0, len(flat), _FIELDS)]
        tasks = [
            Submission(
                *(id.decode(), name.decode(), stream.decode(), envelope, locks.decode()),
                due_us=int(due),
                terms=terms.decode(),
            )
            for id, name, stream, due, envelope, locks, terms in rows
        ]
        return Page(following.decode(), [id.decode() for id in ended], tasks)

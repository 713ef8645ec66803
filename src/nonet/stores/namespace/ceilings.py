"""The ceilings on the number of tasks: what the leader publishes, and the current load."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nonet.base.keys import prefix
from nonet.base.streams import Priority, Size
from nonet.stores.connection.redis import AsyncRedis, Scripts, server_errors

NAMESPACE = "namespace"
TENANT = "tenant:"
_DEFAULT = f"{TENANT}default"
# Of the tenants without a ceiling of their own so many are shown: those with the most tasks.
_MOST_TENANTS = 100


class Load(Struct, frozen=True):
    """The number of tasks of a scope that have not ended.

    Attributes:
        scope: ``namespace``, ``stream:PRIORITY:SIZE``, ``task:CATEGORY:CLASS`` or
            ``tenant:NAME``.
        active: queued, delayed, waiting, running and dying ones.
        ceiling: the number above which submissions are refused; None: unlimited.
    """

    scope: str
    active: int
    ceiling: int | None


class Ceilings:
    """The ceilings of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def published(self) -> str:
        """Return the `ceilings_version` that a leader published last; empty without ceilings."""
        async with server_errors(self._client):
            found = await self._client.get(f"{self._prefix}capped")
        return found.decode() if found else ""

    async def publish(self, term: str, ceilings: Mapping[str, int], who: str) -> bool:
        """Replace all ceilings. Return False, and change nothing, if another term leads.

        Args:
            ceilings: by scope, see `Load`.
            who: the publisher, for the event stream.
        """
        pairs = [part for item in ceilings.items() for part in item]
        answer = await self._scripts.run(
            "publish_ceilings", term, ceilings_version(ceilings), who, *pairs
        )
        return bool(answer == 1)

    async def active_tasks(self, name: str) -> int:
        """Return how many tasks of a class have not ended."""
        fields = [f"{priority}:{size}|{name}" for priority in Priority for size in Size]
        async with server_errors(self._client):
            found = await self._client.hmget(f"{self._prefix}active", fields)
        return sum(int(number) for number in found if number)

    async def loads(self) -> list[Load]:
        """Return the load of the namespace, and of all that is in use or capped.

        Of the tenants without a ceiling of their own only the largest are returned.
        """
        async with server_errors(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hgetall(f"{self._prefix}active").hgetall(f"{self._prefix}ceilings")
            pipe.hgetall(f"{self._prefix}active:tenants")
            active, ceilings, tenants = await pipe.execute()
        counts: Counter[str] = Counter({NAMESPACE: 0})
        for field, number in active.items():
            for scope in _scopes_of(field.decode()):
                counts[scope] += int(number)
        most = {scope.decode(): int(number) for scope, number in ceilings.items()}
        others = most.pop(_DEFAULT, None)
        of_tenants = {f"{TENANT}{name.decode()}": int(number) for name, number in tenants.items()}
        largest = heapq.nlargest(_MOST_TENANTS, of_tenants, key=of_tenants.__getitem__)
        for scope in (*largest, *(most.keys() & of_tenants)):
            counts[scope] = of_tenants[scope]
        most |= {scope: others for scope in largest if others is not None and scope not in most}
        scopes = sorted({*counts, *most}, key=lambda scope: (scope != NAMESPACE, scope))
        return [Load(scope, counts[scope], most.get(scope)) for scope in scopes]


def ceilings_version(ceilings: Mapping[str, int]) -> str:
    """Identify a set of ceilings; empty for an empty set."""
    if not ceilings:
        return ""
    lines = sorted(f"{scope} {number}" for scope, number in ceilings.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _scopes_of(field: str) -> Iterator[str]:
    stream, _, name = field.partition("|")
    yield from (NAMESPACE, f"stream:{stream}", f"task:{name}")

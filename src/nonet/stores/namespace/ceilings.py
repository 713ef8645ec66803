"""The ceilings on the number of tasks: what the leader publishes, and the current load."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nonet.base.streams import Priority, Size
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable_hash, whole

NAMESPACE = "namespace"
TENANT = "tenant:"
_BYTES, _RATE = "tenant-bytes:", "tenant-rate:"
_DEFAULT = "default"
# How many tenants without a ceiling of their own are shown: those with the most tasks.
_MOST_TENANTS = 100


@dataclass(frozen=True, slots=True)
class Load:
    """The number of tasks of a scope that have not ended.

    Attributes:
        scope: ``namespace``, ``stream:PRIORITY:SIZE``, ``task:CATEGORY:CLASS``, ``tenant:NAME``,
            ``tenant-bytes:NAME`` or ``tenant-rate:NAME``.
        active: how many tasks have not ended; of ``tenant-bytes`` the bytes of their messages, of
            ``tenant-rate`` those submitted within the last second.
        ceiling: submissions beyond it are refused; null: there is no ceiling.
    """

    scope: str
    active: int
    ceiling: int | None


class Ceilings(RedisStore):
    """The ceilings of one namespace, over a broker's connection."""

    async def published(self) -> str:
        """Return the `ceilings_version` that a leader published last; empty without ceilings."""
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
        found = await self._client.hmget(f"{self._prefix}active", fields)
        return sum(int(number) for number in found if number)

    async def loads(self) -> list[Load]:
        """Return the load of the namespace, and of all that is in use or capped.

        Of the tenants without a ceiling of their own only the largest are returned.
        """
        async with self._client.pipeline(transaction=False) as pipe:
            keys = ("active", "ceilings", "active:tenants", "active:bytes")
            for key in keys:
                pipe.hgetall(f"{self._prefix}{key}")
            answers = zip(keys, await pipe.execute(), strict=True)
            active, ceilings, tenants, sizes = (
                readable_hash(key, found, whole) for key, found in answers
            )
        counts = {NAMESPACE: 0}
        for field, number in active.items():
            for scope in _scopes_of(field):
                counts[scope] = counts.get(scope, 0) + number
        largest = heapq.nlargest(_MOST_TENANTS, tenants, key=tenants.__getitem__)
        counts |= {f"{TENANT}{name}": tenants[name] for name in largest}
        for kind in (TENANT, _BYTES, _RATE):
            others = ceilings.pop(f"{kind}{_DEFAULT}", None)
            if others is not None:
                ceilings = {f"{kind}{name}": others for name in largest} | ceilings
        rates = {scope: rate for scope, rate in ceilings.items() if scope.startswith(_RATE)}
        counts |= await self._unpaid(rates)
        for kind, use in ((TENANT, tenants), (_BYTES, sizes)):
            named = (scope for scope in ceilings if scope.startswith(kind))
            counts |= {scope: use.get(scope.removeprefix(kind), 0) for scope in named}
        scopes = sorted({*counts, *ceilings}, key=lambda scope: (scope != NAMESPACE, scope))
        return [Load(scope, counts.get(scope, 0), ceilings.get(scope)) for scope in scopes]

    async def _unpaid(self, rates: Mapping[str, int]) -> dict[str, int]:
        """Return how many tasks of each tenant with a rate are not paid off, see lib/submits."""
        async with self._client.pipeline(transaction=False) as pipe:
            for scope in rates:
                pipe.pttl(f"{self._prefix}paid:{scope.removeprefix(_RATE)}")
            left = await pipe.execute()
        pairs = zip(rates.items(), left, strict=True)
        return {scope: round(max(0, ms) * rate / 1000) for (scope, rate), ms in pairs}


def ceilings_version(ceilings: Mapping[str, int]) -> str:
    """Identify a set of ceilings; empty for an empty set.

    It ends with " bytes" if scripts must count bytes.
    """
    if not ceilings:
        return ""
    lines = sorted(f"{scope} {number}" for scope, number in ceilings.items())
    version = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{version} bytes" if any(scope.startswith(_BYTES) for scope in ceilings) else version


def _scopes_of(field: str) -> Iterator[str]:
    stream, _, name = field.partition("|")
    yield from (NAMESPACE, f"stream:{stream}", f"task:{name}")

"""The effective limits of a namespace: published by the leader, overridden by operators."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from nonet.rules.limit_changes import EffectiveLimit
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable, readable_hash


class Limits(RedisStore):
    """The limits of one namespace, over a broker's connection."""

    async def published(self) -> str:
        """Return the `limits_version` that a leader published last; empty without limits."""
        found = await self._client.get(f"{self._prefix}limits:version")
        return found.decode() if found else ""

    async def publish(self, term: str, limits: Mapping[LimitAddress, Limit], who: str) -> bool:
        """Replace the configured limits. Overrides stay in force.

        Tasks that wait for a changed limiter are checked at once.

        Returns:
            False, without a change, if another term leads.
        """
        fields = [
            part for address, limit in limits.items() for part in (address.field, limit.encode())
        ]
        answer = await self._scripts.run(
            "publish_limits", term, limits_version(limits), who, *fields
        )
        return bool(answer == 1)

    async def override(self, address: LimitAddress, limit: Limit, who: str) -> None:
        """Override a configured limit from the next admission on."""
        await self._scripts.run("override_limit", address.field, limit.encode(), who)

    async def go_back(self, address: LimitAddress, who: str) -> bool:
        """Remove an override; False if there is none."""
        answer = await self._scripts.run("override_limit", address.field, "", who)
        return bool(answer == 1)

    async def all(self) -> list[EffectiveLimit]:
        """Return all effective limits, sorted by address."""
        async with self._client.pipeline(transaction=False) as pipe:
            for name in ("limits", "limits:config", "limits:live"):
                pipe.hgetall(f"{self._prefix}{name}")
            effective, config, live = await pipe.execute()
        configured = readable_hash("limits:config", config, Limit.decode)
        overridden = readable_hash("limits:live", live, _override)
        found = readable(
            "limits",
            "HDEL",
            readable_hash("limits", effective, Limit.decode).items(),
            lambda field, limit: _effective(
                field, limit, configured.get(field), overridden.get(field)
            ),
        )
        return sorted(found, key=lambda item: item.address)


def limits_version(limits: Mapping[LimitAddress, Limit]) -> str:
    """Identify a set of limits; empty for an empty set."""
    if not limits:
        return ""
    lines = sorted(f"{address.field} {limit.encode()}" for address, limit in limits.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _effective(
    field: str, limit: Limit, configured: Limit | None, override: tuple[datetime, str] | None
) -> EffectiveLimit:
    address = LimitAddress.of_field(field)
    if override is None:
        return EffectiveLimit(address, limit)
    since, by = override
    return EffectiveLimit(address, limit, "override", by=by, since=since, configured=configured)


def _override(value: str) -> tuple[datetime, str]:
    """Parse ``limit at who`` into when (µs) and by whom a limit was overridden."""
    _, at, who = value.split(" ", 2)
    return instant(at), who

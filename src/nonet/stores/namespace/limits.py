"""The limits that hold in a namespace: published by the leader, overridden by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from nonet.base.keys import prefix
from nonet.rules.limits import CONCURRENCY, DEFAULT, Limit, LimitAddress
from nonet.stores.connection.redis import AsyncRedis, Scripts, server_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """A limit that holds, and where it comes from.

    Attributes:
        by, since: who overrode the configuration, and when; empty and None for the others.
        configured: what the configuration says of the same address, if it is overridden.
        used: executions that count now; None where that is not one number: of rates, which count
            a window, and of ``default``, which is counted for each key.
    """

    address: LimitAddress
    limit: Limit
    by: str = ""
    since: datetime | None = None
    configured: Limit | None = None
    used: int | None = None


class Limits:
    """The limits of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def published(self) -> str:
        """`limits_version` of what a leader published last; empty if there is nothing."""
        async with server_errors(self._client):
            found = await self._client.get(f"{self._prefix}limits:version")
        return found.decode() if found else ""

    async def publish(self, term: str, limits: Mapping[LimitAddress, Limit], who: str) -> bool:
        """Replace what the configuration sets; overrides stay above it.

        Whoever waits for a limiter that changes is looked at again at once.

        Returns:
            False if another term leads; then nothing has changed.
        """
        fields = [
            part for address, limit in limits.items() for part in (address.field, limit.encode())
        ]
        answer = await self._scripts.run(
            "publish_limits", term, limits_version(limits), who, *fields
        )
        return bool(answer == 1)

    async def override(self, address: LimitAddress, limit: Limit, who: str) -> None:
        """Let a limit hold instead of the configured one, from the next admission on."""
        await self._scripts.run("override_limit", address.field, limit.encode(), who)

    async def go_back(self, address: LimitAddress, who: str) -> bool:
        """Let the configuration hold again; False if there is no override."""
        answer = await self._scripts.run("override_limit", address.field, "", who)
        return bool(answer == 1)

    async def all(self) -> list[EffectiveLimit]:
        """All limits that hold, by their addresses."""
        async with server_errors(self._client), self._client.pipeline(transaction=False) as pipe:
            for name in ("limits", "limits:config", "limits:live"):
                pipe.hgetall(f"{self._prefix}{name}")
            pipe.time()
            effective, config, live, (seconds, microseconds) = await pipe.execute()
        now_us = seconds * 1_000_000 + microseconds
        found = [
            _effective(LimitAddress.of_field(field.decode()), value, config, live)
            for field, value in effective.items()
        ]
        return await self._with_use(sorted(found, key=lambda item: item.address), now_us)

    async def _with_use(self, limits: list[EffectiveLimit], now_us: int) -> list[EffectiveLimit]:
        counted = [item.address for item in limits if _is_counted(item.address)]
        async with server_errors(self._client), self._client.pipeline(transaction=False) as pipe:
            for address in counted:
                pipe.zcount(f"{self._prefix}{address.counter}", f"({now_us}", "+inf")
            numbers = dict(zip(counted, await pipe.execute(), strict=True))
        return [replace(item, used=numbers.get(item.address)) for item in limits]


def limits_version(limits: Mapping[LimitAddress, Limit]) -> str:
    """Tells sets of limits apart; empty for none."""
    if not limits:
        return ""
    lines = sorted(f"{address.field} {limit.encode()}" for address, limit in limits.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_counted(address: LimitAddress) -> bool:
    return address.limiter == CONCURRENCY and address.key != DEFAULT


def _effective(
    address: LimitAddress, value: bytes, config: Mapping[bytes, bytes], live: Mapping[bytes, bytes]
) -> EffectiveLimit:
    field = address.field.encode()
    limit = Limit.decode(value.decode())
    if field not in live:
        return EffectiveLimit(address, limit)
    _, at, who = live[field].decode().split(" ", 2)
    return EffectiveLimit(
        address,
        limit,
        by=who,
        since=_EPOCH + timedelta(microseconds=int(at)),
        configured=Limit.decode(config[field].decode()) if field in config else None,
    )

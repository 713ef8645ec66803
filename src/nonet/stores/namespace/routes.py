"""The routes of a namespace: which tenants belong to another one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from nonet.base.keys import prefix
from nonet.rules.routing import OTHERS
from nonet.stores.connection.redis import AsyncRedis, Scripts, server_errors

_MOVED, _CAME = "moved:", "came:"
_BY_HAND = b"moved"


class Routes:
    """The routes that the leader of one namespace publishes, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def load(self) -> tuple[str, dict[str, str]]:
        """Return the `routes_version` that a leader published last, and moves by hand.

        Returns:
            The version, empty without routes; and the namespaces of tenants that an operator has
            moved, as long as the configuration does not say the same.
        """
        async with server_errors(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.get(f"{self._prefix}routed").hgetall(f"{self._prefix}routes")
            version, found = await pipe.execute()
        routes = {name.decode(): namespace.decode() for name, namespace in found.items()}
        moved = {
            name.removeprefix(_MOVED): namespace
            for name, namespace in routes.items()
            if name.startswith(_MOVED)
        }
        return version.decode() if version and version != _BY_HAND else "", moved

    async def source_of(self, tenant: str) -> str:
        """Return the namespace that may know ids of a tenant which was moved here; empty: none.

        It forgets them in time, and may be gone for good then.
        """
        async with server_errors(self._client):
            found = await self._client.hget(f"{self._prefix}routes", f"{_CAME}{tenant}")
        return _source(found or b"")

    async def home_of(self, tenant: str) -> str:
        """Return the namespace that has the tasks of a tenant; empty: no route says so."""
        async with server_errors(self._client):
            found = await self._client.hmget(
                f"{self._prefix}routes", f"{_MOVED}{tenant}", tenant, OTHERS
            )
        return next((namespace.decode() for namespace in found if namespace), "")

    async def publish(self, term: str, routes: Mapping[str, str], who: str) -> bool:
        """Replace all routes. Return False, and change nothing, if another term leads.

        Args:
            routes: namespace by tenant, see `nonet.rules.routing.namespace_of`.
            who: the publisher, for the event stream.
        """
        pairs = [part for item in routes.items() for part in item]
        version = routes_version(routes)
        return bool(await self._scripts.run("publish_routes", term, version, who, *pairs) == 1)

    async def others(self) -> list[str]:
        """Return the other namespaces that the routes name, in alphabetical order.

        Also those from which tenants were moved here, as long as they know ids of theirs.
        """
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}routes")
        names = {
            _source(value) if field.decode().startswith(_CAME) else value.decode()
            for field, value in found.items()
        }
        return sorted(names - {self._namespace, ""})


def _source(value: bytes) -> str:
    """The namespace in a field ``came:TENANT``; empty if it knows no ids any more."""
    source, _, until = value.decode().partition("|")
    return source if until and time.time() < int(until) / 1e6 else ""


def routes_version(routes: Mapping[str, str]) -> str:
    """Identify a set of routes; empty for an empty set."""
    if not routes:
        return ""
    lines = sorted(f"{tenant} {namespace}" for tenant, namespace in routes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

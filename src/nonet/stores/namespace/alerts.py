"""What was reported to the webhook, so that the next leader does not report it again."""

from __future__ import annotations

import json
from typing import Any

from nonet.base.keys import prefix
from nonet.stores.connection.redis import AsyncRedis, Scripts, server_errors


class Alerts:
    """The reported findings of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def read(self) -> list[dict[str, Any]]:
        """Return what the last leader kept; empty if it is unreadable."""
        async with server_errors(self._client):
            kept = await self._client.get(f"{self._prefix}alerts")
        try:
            found = json.loads(kept or b"[]")
        except ValueError:
            return []
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []

    async def keep(self, term: str, rows: list[dict[str, Any]]) -> bool:
        """Remember what was reported; False, without a change, if another term leads."""
        return bool(await self._scripts.run("keep_alerts", term, json.dumps(rows)) == 1)

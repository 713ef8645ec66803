"""Hints to the processes that run pipelines: a row of a table became due.

They arrive over the wake list of a process, see `nonet.stores.queue.wakes`. A lost hint costs some
seconds: pipelines also poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from nonet.base.errors import NonetError
from nonet.base.keys import prefix
from nonet.stores.connection.redis import AsyncRedis, Scripts

logger = logging.getLogger(__name__)

LISTENING_SECONDS = 30.0
# Hints of this time share one script call.
_GATHER_SECONDS = 0.005


def hint_of(table: str) -> str:
    """What the wake list of a process contains for a table."""
    return f"hint:{table}"


class Hints:
    """Sends hints to, and receives hints in, the processes of one namespace."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)
        self._gathered: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    async def send(self, tables: Collection[str]) -> int:
        """Hint tables; return how many hints were delivered.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        return int(await self._scripts.run("hint", *sorted(tables)))

    def send_soon(self, tables: Iterable[str]) -> None:
        """Hint tables in the background, with one script call for all calls of a few milliseconds.

        If Redis does not answer, the hints are lost.
        """
        self._gathered |= set(tables)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_gathered(), name="hints")

    async def aclose(self) -> None:
        """Send what is gathered; afterwards the connection can be closed."""
        if self._sending is not None:
            await asyncio.wait({self._sending})

    async def _send_gathered(self) -> None:
        while self._gathered:
            await asyncio.sleep(_GATHER_SECONDS)
            tables, self._gathered = self._gathered, set()
            try:
                await self.send(tables)
            except NonetError as error:
                logger.debug("hints lost, pipelines find the rows by polling: %s", error)

    async def listen(self, client: str, tables: Iterable[str]) -> None:
        """Let a process receive the hints of tables for `LISTENING_SECONDS`."""
        await self._scripts.run("listen", client, round(LISTENING_SECONDS * 1000), *tables)

    async def leave(self, client: str, tables: Iterable[str]) -> None:
        """Let a process receive no more hints."""
        for table in tables:
            await self._client.zrem(f"{self._prefix}hints:{table}", client)

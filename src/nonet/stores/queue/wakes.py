"""Deliver the wake-ups that scripts send to the waits of a process, over one connection."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nonet.base.errors import NonetError
from nonet.stores.connection.redis import AsyncRedis, blocking_pop, connect_blocking

_LISTEN_PAUSE = 0.5


class Wake:
    """The wake-ups of one wait, see `Wakes.expecting`.

    Attributes:
        client: the name to which scripts send them.
    """

    def __init__(self, client: str, listen: Callable[[], None]) -> None:
        self.client = client
        self._listen = listen
        self._told = asyncio.Event()

    def tell(self) -> None:
        """End this wait, or the next one."""
        self._told.set()

    async def wait(self, seconds: float) -> bool:
        """Sleep until a script reports the id, at most `seconds`; return whether it did.

        Return at once if it was reported since the last call.
        """
        self._listen()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        is_told = self._told.is_set()
        self._told.clear()
        return is_told


class Wakes:
    """The ids that this process waits for.

    Attributes:
        client: name of this process; scripts push ids to the list ``wake:CLIENT``.
        blocking: the connection that reads the list.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self.blocking: AsyncRedis = connect_blocking(url, prefix)
        self._prefix = prefix
        self.take_name()
        self._waiting: dict[str, set[Wake]] = {}
        self._listener: asyncio.Task[None] | None = None

    def take_name(self) -> None:
        """Take another name: after a fork, two processes would read the same list."""
        self.client: str = new_name()
        self._key = f"{self._prefix}wake:{self.client}"

    async def aclose(self) -> None:
        """Stop listening and close the connection."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener})
        await self.blocking.aclose()

    @contextmanager
    def expecting(self, id: str) -> Iterator[Wake]:
        """Collect the wake-ups for an id while the block runs.

        Inside the block query the state, then wait. Redis can lose a wake-up, so also query again
        from time to time.
        """
        wake = Wake(self.client, self._listen)
        self._waiting.setdefault(id, set()).add(wake)
        try:
            yield wake
        finally:
            self._waiting[id].discard(wake)
            if not self._waiting[id]:
                del self._waiting[id]

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._pass_on(), name="wake listener")

    async def _pass_on(self) -> None:
        """Distribute wake-ups while there are waits."""
        while self._waiting:
            try:
                id = await blocking_pop(self.blocking, self._key)
            except NonetError:
                await asyncio.sleep(_LISTEN_PAUSE)  # the waits ask again and get the error
                continue
            for wake in self._waiting.get(id.decode() if id else "", ()):
                wake.tell()


def new_name() -> str:
    """Return a name to which scripts can send wake-ups."""
    return f"client-{secrets.token_hex(8)}"

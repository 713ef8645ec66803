"""Reads that all viewers share: however many pages are open, each read is made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_MOST = 500


class Shared:
    """Values by key, each of which is read at most once in its lifetime.

    Callers that come while a value is being read wait for it. A read that fails is not kept.

    Example:
        queues = await site.shared.read("queues", 2.0, site.nonet.overview)
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def read(
        self, key: Hashable, seconds: float, source: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        """Return the value of `key`, read by `source` at most `seconds` ago."""
        now = time.monotonic()
        expiry, reading = self._values.get(key, (0.0, None))
        if reading is None or expiry < now or (reading.done() and reading.exception()):
            if len(self._values) >= _MOST:
                self._values = {key: kept for key, kept in self._values.items() if kept[0] >= now}
            reading = asyncio.ensure_future(source())
            self._values[key] = now + seconds, reading
        # A caller that is cancelled must not cancel the read of the others.
        value: _Value = await asyncio.shield(reading)
        return value

    def forget(self, key: Hashable) -> None:
        """Read the value of `key` anew next time, because it was changed here."""
        self._values.pop(key, None)

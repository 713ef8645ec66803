"""Reads that all viewers share: however many pages are open, each read is made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar

_Value = TypeVar("_Value")
_MOST = 500
_KEPT_SECONDS = 60.0  # longer than any reader accepts


class _Reading(NamedTuple):
    """A value that is read, or was read, since `at`."""

    at: float
    value: asyncio.Future[Any]


class Shared:
    """Values by key, each of which is read once in its lifetime.

    Callers that come while a value is being read wait for it. A read that fails is not kept.

    Example:
        queues = await site.shared.read("queues", 2.0, site.nonet.overview)
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Reading] = {}

    async def read(
        self, key: Hashable, seconds: float, source: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        """Return the value of `key`.

        Args:
            seconds: how old it may be.
            source: reads it.
        """
        reading = self._kept.get(key)
        if reading is None or not _is_fresh(reading, seconds):
            self._kept.pop(key, None)
            now = time.monotonic()
            # Those that were read longest ago come first. A page of a list can have a megabyte.
            for name, old in list(self._kept.items()):
                if len(self._kept) < _MOST and now - old.at <= _KEPT_SECONDS:
                    break
                del self._kept[name]
            reading = _Reading(now, asyncio.ensure_future(source()))
            reading.value.add_done_callback(_retrieve)
            self._kept[key] = reading
        # A caller that is cancelled must not cancel the read of the others.
        value: _Value = await asyncio.shield(reading.value)
        return value

    def forget(self) -> None:
        """Read all values anew next time, because something was changed here."""
        self._kept.clear()


def _is_fresh(reading: _Reading, seconds: float) -> bool:
    value = reading.value
    if value.done() and (value.cancelled() or value.exception()):
        return False
    return time.monotonic() - reading.at < seconds


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Take the error of a read whose callers are all gone, so that asyncio does not log it."""
    if not reading.cancelled():
        reading.exception()

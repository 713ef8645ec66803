"""Whether what a daemon uses answers: Redis, which it asks all the time, and SQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.config.settings import Settings
from nonet.stores.stores import Stores

# How long it may take to answer, and how often it is asked.
_ASK_SECONDS = 5.0
_ASK_EVERY_SECONDS, _ASK_AGAIN_SECONDS = 10.0, 2.0
# Who has not heard of Redis for so long is not ready.
_SILENT_SECONDS = 5.0


class Contact:
    """When something was heard of Redis last, and what has gone wrong since.

    Attributes:
        heard_at: by the monotonic clock; None: not yet.
    """

    def __init__(self, heard_at: float | None = None) -> None:
        self.heard_at = heard_at
        self._problem: NonetError | None = None

    def heard(self) -> float:
        """Note an answer; returns the time, monotonic."""
        self.heard_at, self._problem = time.monotonic(), None
        return self.heard_at

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Note what a question inside the block raises."""
        try:
            yield
        except NonetError as error:
            self._problem = error
            raise

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for some seconds before `now`, monotonic."""
        return self.heard_at is None or now - self.heard_at > _SILENT_SECONDS

    def silence(self, now: float) -> str:
        """For how long nothing was heard, and the last error; empty: Redis answers."""
        if self.heard_at is None:
            return "Redis has not answered yet"
        if not self.is_silent(now):
            return ""
        # A login that it refuses is an answer, too.
        is_away = self._problem is None or isinstance(self._problem, ServerUnreachableError)
        said = f"Redis has not {'answered' if is_away else 'served us'} for"
        why = f": {self._problem}" if self._problem is not None else ""
        return f"{said} {now - self.heard_at:.0f} s{why}"


class Reached:
    """Whether something that a daemon uses answers, as it did when it was asked last.

    Args:
        name: for people.
        ask: raises if it does not answer.
        seconds: how long it may take to.
    """

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[None]], seconds: float = _ASK_SECONDS
    ) -> None:
        self._name = name
        self._ask = ask
        self._seconds = seconds
        self.problem: str = f"{name} has not been asked yet"

    async def look(self) -> float:
        """Ask once; returns the seconds until the next time."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._ask()
        except (NonetError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._seconds:g} s"
            self.problem = f"{self._name}: {reason}"
            return _ASK_AGAIN_SECONDS
        self.problem = ""
        return _ASK_EVERY_SECONDS


def sql_reached(settings: Settings, stores: Stores) -> Reached | None:
    """Whether SQL is of use, if somebody may ask; a file of this machine needs no probe."""
    is_asked = settings.metrics_port and settings.db_url.get_secret_value()
    return Reached("SQL", stores.look_for_tables) if is_asked else None

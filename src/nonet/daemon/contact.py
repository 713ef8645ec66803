"""Track whether Redis answers a daemon, and probe SQL for its health checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.config.settings import Settings
from nonet.stores.stores import Stores

# How long SQL may take to answer a probe, and the pause before the next probe: after a success, and
# after a failure.
_ASK_SECONDS = 5.0
_ASK_EVERY_SECONDS, _ASK_AGAIN_SECONDS = 10.0, 2.0
# A daemon is not ready if Redis has been silent for this long.
_SILENT_SECONDS = 5.0


class Contact:
    """When Redis last answered, and the last error since then.

    Attributes:
        heard_at: monotonic time; None before the first answer.
    """

    def __init__(self, heard_at: float | None = None) -> None:
        self.heard_at = heard_at
        self._problem: NonetError | None = None

    def heard(self) -> float:
        """Record an answer; return its monotonic time."""
        self.heard_at, self._problem = time.monotonic(), None
        return self.heard_at

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Record the error that a request inside the block raises."""
        try:
            yield
        except NonetError as error:
            self._problem = error
            raise

    def is_silent(self, now: float) -> bool:
        """Whether Redis had been silent for some seconds at `now`, monotonic."""
        return self.heard_at is None or now - self.heard_at > _SILENT_SECONDS

    def silence(self, now: float) -> str:
        """Return for how long Redis has been silent, and the last error; empty if it answers."""
        if self.heard_at is None:
            return "Redis has not answered yet"
        if not self.is_silent(now):
            return ""
        # A refused login is an answer.
        is_unavailable = self._problem is None or isinstance(self._problem, ServerUnreachableError)
        silence = f"Redis has not {'answered' if is_unavailable else 'served us'} for"
        why = f": {self._problem}" if self._problem is not None else ""
        return f"{silence} {now - self.heard_at:.0f} s{why}"


class Reached:
    """Whether a server answered the last probe.

    Args:
        name: name of the server, for messages.
        ask: raises if the server does not answer.
        seconds: time limit of a probe.
    """

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[None]], seconds: float = _ASK_SECONDS
    ) -> None:
        self._name = name
        self._ask = ask
        self._seconds = seconds
        self.problem: str = f"{name} has not been asked yet"

    async def look(self) -> float:
        """Probe once; return the seconds until the next probe."""
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
    """Return a probe of SQL if a metrics port and a remote database are set, else None."""
    is_asked = settings.metrics_port and settings.db_url.get_secret_value()
    return Reached("SQL", stores.look_for_tables) if is_asked else None

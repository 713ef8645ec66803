"""Write the audit: first to the log, then to SQL, for which no operator has to wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta

from nonet.app import Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.stores.sql.audit import AuditEntry
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.masking import without_secrets
from nonet.web.access.requests import address

logger = logging.getLogger(__name__)

# A change waits this long for SQL, and after a failure not at all for a while.
_WAIT_SECONDS = 2.0
_REST_SECONDS = 30.0
_PURGE_SECONDS = 3600.0
_MOST_WAITING = 1000


class Auditor:
    """The audit of this process.

    Args:
        nonet: the application; open when a method is called.
        retention: how long entries are kept in SQL, in seconds; 0: forever.
    """

    def __init__(self, nonet: Nonet, retention: float = 0.0) -> None:
        self._nonet = nonet
        self._retention = retention
        self._waiting: deque[AuditEntry] = deque(maxlen=_MOST_WAITING)
        self._writing = asyncio.Lock()
        self._failures = FailureLog("audit in SQL", logger)
        self._again_at = self._purge_at = 0.0

    @property
    def unwritten(self) -> int:
        """Number of entries of this process that wait for SQL; all are in the log."""
        return len(self._waiting)

    async def record(self, who: str, action: str, what: str, outcome: str = "ok") -> None:
        """Record a change. The log has it at once; SQL as soon as it answers."""
        self.note(who, action, what, outcome)
        if time.monotonic() >= self._again_at:
            await self.flush()

    def note(self, who: str, action: str, what: str, outcome: str = "ok") -> None:
        """Record a change in the log at once; in SQL with the next one."""
        entry = AuditEntry(
            datetime.now(UTC),
            _storable(who),
            action,
            _storable(without_secrets(what)),
            _storable(address.get()),
            _storable(without_secrets(outcome)),
        )
        logger.info(
            "audit: who=%r action=%s what=%r address=%s outcome=%r",
            entry.who,
            action,
            entry.what,
            entry.address,
            entry.outcome,
        )
        self._waiting.append(entry)

    async def flush(self) -> None:
        """Write to SQL what waits; give up after two seconds."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS), self._writing:
                entries = list(self._waiting)
                if entries:
                    await (await self._nonet.stores.audit()).add(entries)
                    written = {entry.id for entry in entries}
                    while self._waiting and self._waiting[0].id in written:
                        self._waiting.popleft()
            self._failures.succeeded()
        except Exception as error:  # an operator's change must not fail because of its audit
            self._again_at = time.monotonic() + _REST_SECONDS
            if isinstance(error, TimeoutError):
                error = ServerUnreachableError(f"SQL did not answer within {_WAIT_SECONDS:g} s")
            self._failures.failed(error, _REST_SECONDS)

    async def tick(self) -> float:
        """Write what waits, and delete old entries; return the seconds until the next call."""
        if self._waiting:
            await self.flush()
        now = time.monotonic()
        if self._retention and now >= self._purge_at:
            self._purge_at = now + _PURGE_SECONDS
            store = await self._nonet.stores.audit()
            if number := await store.purge(timedelta(seconds=self._retention)):
                logger.info("deleted old audit entries: number=%d", number)
        return _REST_SECONDS


def _storable(text: str) -> str:
    """Replace what a database may refuse: one such entry would keep all others waiting."""
    return text.encode(errors="replace").decode().replace("\0", "�")

"""What the scheduler remembers for the day on which Redis forgets: in this process, and in SQL.

Here: the last occurrence of each periodic entry; `nonet.scheduler.pauses` has what is paused.
Without a database this process remembers it for as long as it lives. SQL may be a moment behind:
what happened within a second of losing both Redis and this process is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError, NonetError

if TYPE_CHECKING:
    from nonet.stores.sql.mirror import Mirror

logger = logging.getLogger(__name__)

_SAVE_SECONDS = 0.2
_WRONG_SECONDS = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PERIODIC = "periodic"


class Memory:
    """The last occurrences of periodic entries.

    Args:
        mirror: opens the SQL store on first use.
        may_have_sql: whether there is a database.
    """

    def __init__(
        self, mirror: Callable[[], Awaitable[Mirror]], may_have_sql: Callable[[], bool]
    ) -> None:
        self._mirror = mirror
        self._may_have_sql = may_have_sql
        self._last: dict[str, datetime] = {}
        self._unsaved: dict[str, str | None] = {}
        self._problem = ""

    @property
    def place(self) -> str:
        """Where it is: ``SQL``, or ``process``, which ends with this one."""
        return "SQL" if self._may_have_sql() else "process"

    def note(self, entry: str, last: datetime) -> None:
        """An entry has fired, or was passed over, up to `last`."""
        if self._last.get(entry) != last:
            self._last[entry] = last
            self._unsaved[entry] = str((last - _EPOCH) // timedelta(microseconds=1))

    def forget(self, entry: str) -> None:
        """An entry is planned no more."""
        self._last.pop(entry, None)
        self._unsaved[entry] = None

    def stand_by(self) -> None:
        """Somebody else leads: what we remember grows old, and is read from SQL if it is needed."""
        self._last.clear()
        self._unsaved.clear()

    async def recall(self) -> dict[str, datetime]:
        """The last occurrence of each entry; the later of what this process and SQL know."""
        found = dict(self._last)
        forgotten = {entry for entry, value in self._unsaved.items() if value is None}
        if not self._may_have_sql():
            return found
        try:
            rows = await (await self._mirror()).load(PERIODIC)
        except NonetError as error:
            # Better to go on from now than to wait for SQL: nothing fires twice.
            logger.warning("last occurrences cannot be read from SQL, those are gone: %s", error)
            return found
        for entry, value in rows.items():
            if entry in forgotten:
                continue
            last = _EPOCH + timedelta(microseconds=int(value))
            found[entry] = max(last, found.get(entry, last))
        return found

    async def save(self, term: str) -> float:
        """Write what is new to SQL; seconds until the next call."""
        if not self._unsaved:
            return _SAVE_SECONDS
        if not self._may_have_sql():
            self._unsaved.clear()
            return _SAVE_SECONDS
        saving, self._unsaved = self._unsaved, {}
        try:
            await (await self._mirror()).save(PERIODIC, saving)
        except NonetError as error:
            self._unsaved = {**saving, **self._unsaved}
            if isinstance(error, ConfigurationError):
                if str(error) != self._problem:
                    logger.error("last occurrences are not kept in SQL: %s", error)
                self._problem = str(error)
                return _WRONG_SECONDS
            raise
        self._problem = ""
        return _SAVE_SECONDS

"""Remember the last occurrence of each periodic entry, in case Redis loses it.

The occurrences are kept in this process and in SQL; `nonet.scheduler.pauses` does the same for
pauses. Without a database they last as long as this process. SQL lags by up to a second: if Redis
and this process are lost together, the occurrences of the last second are forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import NonetError

if TYPE_CHECKING:
    from nonet.stores.sql.mirror import Mirror

logger = logging.getLogger(__name__)

_SAVE_SECONDS = 0.2
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

    @property
    def place(self) -> str:
        """Where the occurrences are kept: ``SQL``, or ``process``."""
        return "SQL" if self._may_have_sql() else "process"

    def note(self, entry: str, last: datetime) -> None:
        """Record that an entry has fired or skipped all occurrences up to `last`."""
        if self._last.get(entry) != last:
            self._last[entry] = last
            self._unsaved[entry] = str((last - _EPOCH) // timedelta(microseconds=1))

    def forget(self, entry: str) -> None:
        """Drop an entry that is no longer planned."""
        self._last.pop(entry, None)
        self._unsaved[entry] = None

    def stand_by(self) -> None:
        """Forget everything: another scheduler leads, and SQL is read again if needed."""
        self._last.clear()
        self._unsaved.clear()

    async def recall(self) -> dict[str, datetime]:
        """Return the last occurrence of each entry: the later one of this process and SQL."""
        found = dict(self._last)
        forgotten = {entry for entry, value in self._unsaved.items() if value is None}
        if not self._may_have_sql():
            return found
        try:
            rows = await (await self._mirror()).load(PERIODIC)
        except NonetError as error:
            # Continue from now instead of waiting for SQL: no occurrence fires twice that way.
            logger.warning("last occurrences not read from SQL: error=%s", error)
            return found
        for entry, value in rows.items():
            if entry in forgotten:
                continue
            last = _EPOCH + timedelta(microseconds=int(value))
            found[entry] = max(last, found.get(entry, last))
        return found

    async def save(self, term: str) -> float:
        """Write changes to SQL; return the seconds until the next call.

        Raises:
            NonetError: SQL does not answer or cannot be used; the changes are kept for the next
                call.
        """
        if not self._unsaved:
            return _SAVE_SECONDS
        if not self._may_have_sql():
            self._unsaved.clear()
            return _SAVE_SECONDS
        saving, self._unsaved = self._unsaved, {}
        try:
            await (await self._mirror()).save(PERIODIC, saving)
        except NonetError:
            self._unsaved = {**saving, **self._unsaved}
            raise
        return _SAVE_SECONDS

"""Read the schedules that programs made from SQL; runs in the leader.

While SQL does not answer, the entries that were read last stay planned.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError
from nonet.config.entries import Entry, stored_entry
from nonet.rules.periodic import StoredSchedule
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nonet.stores.sql.schedules import ScheduleRows

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


class StoredEntries:
    """Follow the schedules in SQL.

    Args:
        rows: opens the SQL store on first use.
        may_have_sql: whether there is a database.
        registry: the task classes, whose attributes apply to the entries.
        adopt: receives the entries, to plan from now on.
    """

    def __init__(
        self,
        rows: Callable[[], Awaitable[ScheduleRows]],
        may_have_sql: Callable[[], bool],
        registry: Registry,
        adopt: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._rows = rows
        self._may_have_sql = may_have_sql
        self._registry = registry
        self._adopt = adopt
        self._revision: str | None = None
        self._tried_in = ""

    def is_tried_in(self, term: str) -> bool:
        """Whether SQL was asked in this term. Nothing is planned before, but do not wait longer."""
        return term == self._tried_in

    async def tick(self, term: str) -> float:
        """Read all schedules if one has changed; return the seconds until the next call.

        Raises:
            NonetError: SQL does not answer or cannot be used.
        """
        try:
            await self._read()
        finally:
            self._tried_in = term
        return _POLL_SECONDS

    async def _read(self) -> None:
        if not self._may_have_sql():
            self._adopt([])
            return
        rows = await self._rows()
        # Read first: a change in between only causes another read.
        revision = await rows.revision()
        if revision != self._revision:
            self._adopt(list(self._entries(await rows.list())))
            self._revision = revision

    def _entries(self, found: Iterable[StoredSchedule]) -> Iterator[Entry]:
        for item in found:
            try:
                yield stored_entry(item, self._registry)
            except ConfigurationError as error:
                logger.error("schedule not planned: %s", error)

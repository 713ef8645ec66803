"""Retention: the leading scheduler deletes dead letters that are older than they shall be kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import NonetError

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_PURGE_SECONDS = 3600.0
_RETRY_SECONDS = 60.0
_LOOK_SECONDS = 10.0


class Retention:
    """The age that dead letters may reach.

    Args:
        letters: opens the SQL store on first use.
        keep_seconds: how long letters are kept; 0: for ever.
        purge_seconds: pause between two purges.
        retry_seconds: pause after one that failed.
    """

    def __init__(
        self,
        letters: Callable[[], Awaitable[DeadLetters]],
        keep_seconds: float,
        *,
        purge_seconds: float = _PURGE_SECONDS,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._letters = letters
        self._keep_seconds = keep_seconds
        self._purge_seconds = purge_seconds
        self._retry_seconds = retry_seconds
        self._term = ""
        self._due = 0.0
        self._problem = ""

    async def tick(self, term: str) -> float:
        """Purge when a term begins, then every hour; the seconds until the next look.

        Two leaders that purge at the same time do no harm. While SQL is away the reason is logged
        once, and it is tried again.
        """
        if not self._keep_seconds:
            return _LOOK_SECONDS
        now = time.monotonic()
        if term == self._term and now < self._due:
            return min(_LOOK_SECONDS, self._due - now)
        try:
            await self._purge()
        except NonetError as error:
            if str(error) != self._problem:
                logger.error("old dead letters are not purged: %s", error)
            self._problem = str(error)
            pause = self._retry_seconds
        else:
            self._problem = ""
            pause = self._purge_seconds
        self._term, self._due = term, time.monotonic() + pause
        return min(_LOOK_SECONDS, pause)

    async def _purge(self) -> None:
        from nonet.stores.sql.dead_letters import LetterFilter  # SQL costs 170 ms to import

        letters = await self._letters()
        old = LetterFilter(died_before=datetime.now(UTC) - timedelta(seconds=self._keep_seconds))
        purged = 0
        try:
            # Rows without a namespace would stay for ever where no operator adopts them.
            for store in (letters, letters.unnamed):
                async for deleted in store.purge(old):
                    purged += deleted
        finally:
            if purged:
                logger.info("purged %d old dead letters", purged)

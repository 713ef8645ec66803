"""Delete dead letters that are older than `NONET_DLQ_RETENTION`; runs in the leader."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nonet.rules.letters import LetterFilter

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_PURGE_SECONDS = 3600.0


class Retention:
    """Delete dead letters that have reached a maximum age.

    Args:
        letters: opens the SQL store on first use.
        keep_seconds: maximum age; 0 keeps dead letters forever.
    """

    def __init__(self, letters: Callable[[], Awaitable[DeadLetters]], keep_seconds: float) -> None:
        self._letters = letters
        self._keep_seconds = keep_seconds

    async def tick(self, term: str) -> float:
        """Purge; return the seconds until the next call. Two leaders may purge at the same time.

        Raises:
            NonetError: SQL does not answer.
        """
        if self._keep_seconds:
            await self._purge()
        return _PURGE_SECONDS

    async def _purge(self) -> None:
        letters = await self._letters()
        old = LetterFilter(died_before=datetime.now(UTC) - timedelta(seconds=self._keep_seconds))
        purged = 0
        try:
            async for deleted in letters.purge(old):
                purged += deleted
        finally:
            if purged:
                logger.info("purged old dead letters: number=%d", purged)

"""Sort the dead letters of older releases into clusters; runs in the leader."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

# Workers of an older release may run for a while beside this one.
_AGAIN_SECONDS = 600.0


class Fingerprints:
    """Adds the fingerprints of dead letters that lack one.

    Args:
        letters: opens the SQL store on first use.
        may_have_sql: whether there is a database.
    """

    def __init__(
        self, letters: Callable[[], Awaitable[DeadLetters]], may_have_sql: Callable[[], bool]
    ) -> None:
        self._letters = letters
        self._may_have_sql = may_have_sql

    async def tick(self, term: str) -> float:
        """Add them; return the seconds until the next call. Two leaders may do so at once.

        Raises:
            NonetError: SQL does not answer.
        """
        if not self._may_have_sql():
            return _AGAIN_SECONDS
        letters, sorted_out = await self._letters(), 0
        for store in (letters, letters.unnamed):
            async for number in store.add_fingerprints():
                sorted_out += number
        if sorted_out:
            logger.info("sorted dead letters of an older release: number=%d", sorted_out)
        return _AGAIN_SECONDS

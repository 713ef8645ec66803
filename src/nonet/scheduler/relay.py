"""Hand durable tasks over from SQL to Redis, and delete the rows of ended ones.

Only the leader runs it. A second relay, in a leader that was frozen, is harmless: both submit the
same ids, and delete only rows of tasks that have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from nonet.base.errors import OF_THE_SERVER, NonetError
from nonet.config.settings import Settings
from nonet.stores.queue.submissions import Submission

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Outbox

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
# A row that Redis refuses, for example because a limit is too low, is retried after this time.
_REFUSED_SECONDS = 30.0


class Relay:
    """Submit the durable tasks of one namespace to Redis.

    Args:
        outbox: opens the SQL store on first use; not called without a database.
    """

    def __init__(self, outbox: Callable[[], Awaitable[Outbox]], settings: Settings) -> None:
        self._outbox = outbox
        self._settings = settings
        self._retry_at: dict[str, float] = {}
        # Review often enough to find each ended task while Redis still remembers its id.
        self._review_seconds = min(settings.lease, settings.dedup_ttl / 3)
        self._review_at = time.monotonic() + self._review_seconds

    async def tick(self, term: str) -> float:
        """Hand over waiting tasks; from time to time compare all rows with Redis.

        Raises:
            NonetError: Redis or SQL does not answer, Redis is full, or the tables are missing.
        """
        if not self._settings.may_have_sql():
            return _TICK_SECONDS
        await self._relay(await self._outbox())
        return _TICK_SECONDS

    async def _relay(self, outbox: Outbox) -> None:
        # Read the epoch once. Tasks marked with it leave the queries below even if Redis loses its
        # data meanwhile.
        epoch = await outbox.epoch()
        await self._hand_over_all(outbox, epoch, "", partial(outbox.due, epoch, again=False))
        await self._hand_over_all(outbox, epoch, " again", partial(outbox.due, epoch, again=True))
        # Redis has not accepted these tasks yet. If a ceiling refuses them, they stay in SQL.
        await self._hand_over_all(
            outbox, epoch, " of submitters that died", outbox.orphans, admitted=False
        )
        if time.monotonic() >= self._review_at:
            closed, lost = await outbox.review(epoch)
            self._review_at = time.monotonic() + self._review_seconds
            if closed or lost:
                logger.info("reviewed durable tasks: rows_deleted=%d lost_found=%d", closed, lost)

    async def _hand_over_all(
        self,
        outbox: Outbox,
        epoch: int,
        which: str,
        page_of: Callable[..., Awaitable[list[Submission]]],
        *,
        admitted: bool = True,
    ) -> None:
        handed = refused = 0
        # A task that was handed over leaves the query. A refused one stays at its beginning: skip
        # it.
        while page := await page_of(skip=refused):
            taken = await self._hand_over(outbox, page, epoch, admitted)
            handed += taken
            refused += len(page) - taken
        if handed:
            logger.info("handed over durable tasks%s: number=%d", which, handed)

    async def _hand_over(
        self, outbox: Outbox, page: list[Submission], epoch: int, admitted: bool
    ) -> int:
        """Hand over the tasks of a page that Redis accepts; return their number."""
        now = time.monotonic()
        page = [item for item in page if self._retry_at.get(item.id, now) <= now]
        if not page:
            return 0
        try:
            await outbox.hand_over(page, epoch, admitted=admitted)
        except OF_THE_SERVER:
            raise
        except NonetError as error:
            if len(page) > 1:  # find the refused ones: they must not block the others
                return sum([await self._hand_over(outbox, [it], epoch, admitted) for it in page])
            (item,) = page
            logger.error(
                "durable task refused: task_id=%s task=%s error=%s", item.id, item.name, error
            )
            self._retry_at[item.id] = now + _REFUSED_SECONDS
            return 0
        for item in page:
            self._retry_at.pop(item.id, None)
        return len(page)

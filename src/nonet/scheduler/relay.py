"""The relay: hands durable tasks in SQL over to Redis, and clears up after those that have ended.

It runs in the scheduler that leads. A second relay (a leader that was frozen) does no harm: both
hand over the same ids, and delete only the rows of tasks that have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from nonet.base.errors import (
    BrokerFullError,
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
)
from nonet.config.settings import Settings
from nonet.stores.queue.submissions import Submission

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Outbox

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
# A row that Redis refuses, for a limit that is too low for example, is tried again after so long.
_REFUSED_SECONDS = 30.0
_WRONG_SECONDS = 10.0
_ABOUT_THE_SERVER = (ServerUnreachableError, BrokerFullError, ConfigurationError)


class Relay:
    """Durable tasks of one namespace, on their way from SQL to Redis.

    Args:
        outbox: opens the SQL store on first use; it is not asked for where there is no database.
    """

    def __init__(self, outbox: Callable[[], Awaitable[Outbox]], settings: Settings) -> None:
        self._outbox = outbox
        self._settings = settings
        self._retry_at: dict[str, float] = {}
        self._problem = ""
        # Often enough to see the end of each task while Redis remembers it.
        self._review_seconds = min(settings.lease, settings.dedup_ttl / 3)
        self._review_at = time.monotonic() + self._review_seconds

    async def tick(self, term: str) -> float:
        """Hand over what waits; now and then look at all rows. Seconds until the next call."""
        if not self._settings.may_have_sql():
            return _TICK_SECONDS
        try:
            await self._relay(await self._outbox())
        except ConfigurationError as error:
            if str(error) != self._problem:
                logger.error("durable tasks are not handed over: %s", error)
            self._problem = str(error)
            return _WRONG_SECONDS
        self._problem = ""
        return _TICK_SECONDS

    async def _relay(self, outbox: Outbox) -> None:
        # Read once: what is marked with it leaves the queries below, whatever happens to Redis.
        epoch = await outbox.epoch()
        await self._hand_over_all(outbox, epoch, "", partial(outbox.due, epoch, again=False))
        await self._hand_over_all(outbox, epoch, " again", partial(outbox.due, epoch, again=True))
        # Nobody has accepted these: a ceiling may refuse them, and then they wait for room.
        await self._hand_over_all(
            outbox, epoch, " of submitters that died", outbox.orphans, admitted=False
        )
        if time.monotonic() >= self._review_at:
            closed, lost = await outbox.review(epoch)
            self._review_at = time.monotonic() + self._review_seconds
            if closed or lost:
                logger.info(
                    "durable tasks: %d rows of ended ones deleted, %d lost ones found", closed, lost
                )

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
        # What is handed over leaves the query; what is refused stays at its beginning.
        while page := await page_of(skip=refused):
            taken = await self._hand_over(outbox, page, epoch, admitted)
            handed += taken
            refused += len(page) - taken
        if handed:
            logger.info("durable tasks: %d handed over%s", handed, which)

    async def _hand_over(
        self, outbox: Outbox, page: list[Submission], epoch: int, admitted: bool
    ) -> int:
        """Hand over a page, or what is good of it; how many tasks that were."""
        now = time.monotonic()
        page = [item for item in page if self._retry_at.get(item.id, now) <= now]
        if not page:
            return 0
        try:
            await outbox.hand_over(page, epoch, admitted=admitted)
        except _ABOUT_THE_SERVER:
            raise
        except NonetError:
            return sum([await self._is_taken(outbox, item, epoch, admitted) for item in page])
        for item in page:
            self._retry_at.pop(item.id, None)
        return len(page)

    async def _is_taken(self, outbox: Outbox, item: Submission, epoch: int, admitted: bool) -> bool:
        try:
            await outbox.hand_over([item], epoch, admitted=admitted)
        except _ABOUT_THE_SERVER:
            raise
        except NonetError as error:  # this one alone must not hold up the others
            logger.error("durable task %s (%s) is refused: %s", item.id, item.name, error)
            self._retry_at[item.id] = time.monotonic() + _REFUSED_SECONDS
            return False
        self._retry_at.pop(item.id, None)
        return True

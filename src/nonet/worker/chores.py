"""Periodic repairs by workers: reclaim tasks of dead workers, queue lost tasks again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta

from nonet.stores.queue.broker import Broker, new_cursors
from nonet.worker.incarnation import Incarnation

logger = logging.getLogger(__name__)

# Pause between two pages of the walk over all records. A page of 150 keys takes 0.4 ms, or 2 ms
# among millions of keys, so the walk uses about 1 % of Redis. If Redis is slow, the pauses get
# longer.
_PAGE_SECONDS = 0.1
_PAUSES_PER_PAGE = 30
_LONGEST_PAGE_SECONDS = 1.0


def pause_after_page(took: float) -> float:
    """Return the seconds before the next page of the walk, if the last page took `took` seconds."""
    return min(_LONGEST_PAGE_SECONDS, max(_PAGE_SECONDS, _PAUSES_PER_PAGE * took))


class Chores:
    """The periodic repairs of one worker.

    Args:
        me: the worker.
        lease: seconds that a lease lasts.
        is_relieved: returns whether another worker does them.
    """

    def __init__(
        self, broker: Broker, me: Incarnation, lease: float, is_relieved: Callable[[], bool]
    ) -> None:
        self._broker = broker
        self._me = me
        self._lease = lease
        self._is_relieved = is_relieved
        self._cursors = new_cursors()

    async def sweep(self) -> float:
        """Reclaim tasks of dead workers; return the seconds until the next call."""
        if self._is_relieved():
            return self._pause
        taken, self._cursors = await self._broker.reclaim(self._me.id, self._me.size, self._cursors)
        if taken:
            logger.warning("reclaimed %d tasks of lost workers", taken)
        if any(cursor != b"0-0" for cursor in self._cursors):
            return 0.0
        return self._pause

    async def mend(self) -> float:
        """Walk a page of all records, unless another worker does, and queue lost tasks again."""
        if self._is_relieved():
            return self._pause
        pace, began = timedelta(seconds=_PAGE_SECONDS), time.monotonic()
        # Let Redis allow a page after half the pause: its clock may differ from this worker's.
        mended, more = await self._broker.mend(timedelta(seconds=self._lease) / 4, pace / 2)
        if mended:
            logger.warning("queued %d lost tasks again: they were in no stream or queue", mended)
        return pause_after_page(time.monotonic() - began) if more else self._pause

    @property
    def _pause(self) -> float:
        return self._lease / 4 * random.uniform(0.75, 1.25)

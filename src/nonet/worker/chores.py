"""What workers do for each other: take back what the dead held, queue again what is in no place."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta

from nonet.base.streams import Size
from nonet.stores.queue.broker import Broker, new_cursors

logger = logging.getLogger(__name__)

# Between two pages of the walk over all records: 150 keys take 0.4 ms, beside millions of them 2.
# So it takes about 1 % of Redis, whoever walks; where Redis is slow the pauses are longer.
_PAGE_SECONDS = 0.1
_PAUSES_PER_PAGE = 30
_LONGEST_PAGE_SECONDS = 1.0


def pause_beside(ago: float, pause: float) -> float:
    """How long an idle worker waits before it looks at Redis again, beside its reader.

    Both of them notice a loss of data. The reader polls after each second `pause`: who looks in the
    middle between two polls makes one look per pause of both, with half the round trips.

    Args:
        ago: seconds since the last poll.
        pause: seconds, of a worker that is busy.
    """
    if ago > 2.5 * pause:
        return pause  # the reader does not come to it
    left = pause - ago
    return left if left > pause / 2 else left + 2 * pause


def pause_after_page(took: float) -> float:
    """Seconds between a page of the walk over all records, which took so many, and the next."""
    return min(_LONGEST_PAGE_SECONDS, max(_PAGE_SECONDS, _PAUSES_PER_PAGE * took))


class Chores:
    """The sweeps of one worker.

    Args:
        worker: its incarnation.
        lease: seconds.
    """

    def __init__(self, broker: Broker, worker: str, size: Size, lease: float) -> None:
        self._broker = broker
        self._worker = worker
        self._size = size
        self._lease = lease
        self._cursors = new_cursors()

    async def sweep(self) -> float:
        """Reclaim what dead workers held; at a quarter of the lease, spread by jitter."""
        taken, self._cursors = await self._broker.reclaim(self._worker, self._size, self._cursors)
        if taken:
            logger.warning("reclaimed %d tasks of lost workers", taken)
        if any(cursor != b"0-0" for cursor in self._cursors):
            return 0.0
        return self._pause

    async def mend(self) -> float:
        """Queue again what is in no place: a page, if nobody else is at it."""
        pace, began = timedelta(seconds=_PAGE_SECONDS), time.monotonic()
        # Half of it: the pause of the one worker that walks is not measured by the clock of Redis.
        mended, more = await self._broker.mend(timedelta(seconds=self._lease) / 4, pace / 2)
        if mended:
            logger.warning("queued %d tasks again that were in no place", mended)
        return pause_after_page(time.monotonic() - began) if more else self._pause

    @property
    def _pause(self) -> float:
        return self._lease / 4 * random.uniform(0.75, 1.25)

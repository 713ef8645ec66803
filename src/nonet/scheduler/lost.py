"""Lost workers: the leader forgets those that are gone, also where no other worker lives."""

from __future__ import annotations

import logging

from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.queue.broker import Broker

logger = logging.getLogger(__name__)


class LostWorkers:
    """What is left of workers that were killed and had nothing to do.

    Args:
        lease: seconds; they are looked for four times in it.
    """

    def __init__(self, broker: Broker, lease: float) -> None:
        self._broker = broker
        self._pause = lease / 4

    async def tick(self, term: str) -> float:
        """One look; what they had in hand waits for a worker of their size.

        Raises:
            DeposedError: somebody else leads.
        """
        forgotten = await self._broker.forget_workers(term)
        if forgotten is None:
            raise DeposedError
        if forgotten:
            logger.info("forgot %d lost workers", forgotten)
        return self._pause

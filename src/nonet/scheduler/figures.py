"""Add what workers have counted to the history of figures; runs in the leader."""

from __future__ import annotations

from collections.abc import Mapping

from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.counts import Counts, loads_of
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.slots import Kind

# A minute is noted soon after it has begun, and added soon after it has ended.
_AFTER_SECONDS = 1.0
_NEXT_SECONDS = 0.05


class FigureHistory:
    """Notes once a minute how much there is, and adds the minutes that have ended to the hours.

    Args:
        epoch: knows the latest possible time: nothing is added while the clock of Redis is ahead.
    """

    def __init__(self, counts: Counts, measures: Measures, epoch: EpochSeen) -> None:
        self._counts = counts
        self._measures = measures
        self._epoch = epoch

    async def tick(self, term: str) -> float:
        """Note and add; return the seconds until the next call.

        After a time without a leader there are several minutes to add: one a call keeps Redis free.

        Raises:
            DeposedError: another scheduler leads.
        """
        left, pause = 0, 0.0
        loads: Mapping[Kind, Mapping[str, Mapping[int, int]]]
        loads = {Kind.STREAM: loads_of(await self._measures.figures())}
        for kind in Kind:
            of_kind = loads.get(kind, {})
            found = await self._counts.fold(term, kind, of_kind, self._epoch.latest)
            if found is None:
                raise DeposedError
            left, pause = max(left, found[0]), found[1]
        return _NEXT_SECONDS if left else pause + _AFTER_SECONDS

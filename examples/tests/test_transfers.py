"""The pipeline of transfers: the four tests of every pipeline, and its own."""

from __future__ import annotations

from typing import Any

from nonet.pipelines.testing import PipelineTests
from nonet_example.transfers import DONE, RUNNING, Mover, RunTransfers, Transfer


class TestTransfers(PipelineTests):
    """Leases and results of its rows."""

    pipeline = RunTransfers

    async def make_row(self, session: Any) -> Transfer:
        """A transfer that waits."""
        return Transfer(lfn="/lhcb/a", source="CERN-DST", target="GRIDPP-DST")


class Slow(Mover):
    """A mover whose transfers end at the second look."""

    def __init__(self) -> None:
        self.looks = 0

    async def start(self, number: int, lfn: str, source: str, target: str) -> None:
        """Start nothing."""

    async def has_ended(self, number: int) -> bool:
        """The second time."""
        self.looks += 1
        return self.looks > 1


async def test_a_transfer_is_polled_until_it_has_ended() -> None:
    """It is started, looked at again, and finished."""
    pipeline, mover = RunTransfers(), Slow()
    started = await pipeline.process(Transfer(id=1, state="waiting"), mover)
    assert started.values == {"state": RUNNING}
    polled = await pipeline.process(Transfer(id=1, state=RUNNING), mover)
    assert (polled.values, polled.is_finished) == ({}, False)
    ended = await pipeline.process(Transfer(id=1, state=RUNNING), mover)
    assert (ended.values["state"], ended.is_finished) == (DONE, True)

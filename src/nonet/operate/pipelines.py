"""Pipelines: their rows, the processes that run them, and what keeps them waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from nonet.base.errors import NotFoundError
from nonet.operate.lists import ListQuery, Page, cut
from nonet.rules.pipelines import MOST, PipelineStatus, Replica

if TYPE_CHECKING:
    from nonet.stores.stores import Stores


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline: its due rows, how fast they are processed, and what keeps them waiting.

    Attributes:
        name: of the pipeline.
        counted_at: when the rows were counted; null: never.
        due: due rows, those in process included; 10,001: more than 10,000.
        leased: of these, how many a process has.
        stale: of these, how many a dead process has left.
        waiting: of these, how many wait for related rows.
        dying: of these, how many wait for their dead letter to be written.
        oldest_seconds: longest wait of a due row that no process has leased.
        rate: rows done within the last minute.
        wait_seconds: mean wait of these, from their due time to their start.
        paused: why no process fetches rows; empty: it is not paused.
        cause: the first thing that keeps rows waiting; may be empty.
        processes: those that run it.
    """

    name: str
    counted_at: datetime | None
    due: int
    leased: int
    stale: int
    waiting: int
    dying: int
    oldest_seconds: float
    rate: int
    wait_seconds: float
    paused: str
    cause: str
    processes: Sequence[Replica]

    @property
    def due_in_words(self) -> str:
        """The due rows; more than `MOST` are not counted."""
        return f"more than {MOST}" if self.due > MOST else str(self.due)

    @property
    def runs(self) -> int:
        """How many processes run it."""
        return len(self.processes)


async def find(stores: Stores, query: ListQuery) -> Page[PipelineView]:
    """Return the pipelines that a process runs, or ran within a day."""
    return cut([_view(item) for item in await stores.pipelines.read()], query)


async def get(stores: Stores, name: str) -> PipelineView:
    """Return one pipeline.

    Raises:
        NotFoundError: no process has reported it.
    """
    found = {item.name: item for item in await stores.pipelines.read()}
    if name not in found:
        known = ", ".join(found) or "none"
        raise NotFoundError(f"no process has reported a pipeline {name!r} (reported: {known})")
    return _view(found[name])


def _view(item: PipelineStatus) -> PipelineView:
    rows = item.rows
    return PipelineView(
        name=item.name,
        counted_at=rows.at,
        due=rows.due,
        leased=rows.leased,
        stale=rows.stale,
        waiting=rows.waiting,
        dying=rows.dying,
        oldest_seconds=rows.oldest,
        rate=item.rate,
        wait_seconds=item.wait,
        paused=item.paused,
        cause=item.cause,
        processes=item.replicas,
    )

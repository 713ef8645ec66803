"""``/api/v1/queues``: the streams, and what is not in a stream."""

from __future__ import annotations

from pydantic import BaseModel, Field

from nonet.web.api.routing import resource
from nonet.web.site import SiteOf, Viewer

router = resource("queues")


class Queue(BaseModel):
    """The tasks of one priority and size."""

    priority: str
    size: str
    queued: int = Field(description="Tasks that no worker has fetched.")
    running: int = Field(description="Tasks that workers have.")
    oldest_seconds: float = Field(description="Age of the oldest queued task; 0: none is queued.")


class Queues(BaseModel):
    """All tasks that have not ended, by the place where they are."""

    items: list[Queue] = Field(description="The nine streams.")
    delayed: int
    overdue: int = Field(description="Delayed tasks that are due for more than a second.")
    waiting: int = Field(description="Tasks that wait for locks, or for a resume.")
    dying: int = Field(description="Failed tasks whose dead letter is not in SQL yet.")
    is_estimate: bool = Field(description="Whether delayed, waiting and dying are estimated.")
    quarantined: int = Field(description="Entries of the quarantine.")


@router.get("/queues")
async def list_queues(site: SiteOf, who: Viewer) -> Queues:
    """Return how many tasks are where."""
    found = await site.shared.read(("queues",), 2.0, site.nonet.stores.measures.figures)
    return Queues(
        items=[
            Queue(
                priority=priority,
                size=size,
                queued=max(0, one.depth - one.in_flight),
                running=one.in_flight,
                oldest_seconds=one.oldest,
            )
            for (priority, size), one in found.streams.items()
        ],
        delayed=found.delayed,
        overdue=found.overdue,
        waiting=found.waiting,
        dying=found.dying,
        is_estimate=found.is_estimate,
        quarantined=found.quarantined,
    )

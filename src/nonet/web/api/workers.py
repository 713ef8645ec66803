"""``/api/v1/workers``: the registered workers, and their drain."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from nonet.base.streams import Size
from nonet.stores.queue.workers import WorkerStatus, chosen
from nonet.web import workers
from nonet.web.api.routing import resource
from nonet.web.site import Drainer, SiteOf, Viewer

router = resource("workers")


class Drained(BaseModel):
    """The answer to a drain.

    Attributes:
        worker: id of the worker.
        asked: false if it was asked before.
    """

    worker: str
    asked: bool


@router.get("/workers")
async def list_workers(
    site: SiteOf,
    who: Viewer,
    size: Size | None = None,
    state: Annotated[str, Query(description="working, idle, draining, …")] = "",
) -> list[WorkerStatus]:
    """Return the registered workers, by size and name, with up to 20 tasks of each."""
    return workers.matching(await workers.registered(site), size or "", state)


@router.get("/workers/{name}")
async def worker(site: SiteOf, who: Viewer, name: str) -> WorkerStatus:
    """Return one worker, by its id or its pid@host."""
    return chosen(await workers.registered(site), name)


@router.post("/workers/{name}/drain")
async def drain(site: SiteOf, who: Drainer, name: str) -> Drained:
    """Let a worker finish its tasks and end. It reads the order within a second."""
    found = chosen(await workers.registered(site), name)
    return Drained(worker=found.worker, asked=await workers.drain(site, who, [found]) > 0)

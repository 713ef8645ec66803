"""Queues: ``/api/v1/queues``, and the page of one stream with the button that pauses it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.base.streams import Priority, Size
from nonet.operate import queues, workers
from nonet.operate.queues import Queues, Stream
from nonet.operate.workers import WorkerQuery
from nonet.rules.pauses import of_task
from nonet.web.rendering import render
from nonet.web.resources.figures import SPANS, Charted, charts
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("queues"), APIRouter(include_in_schema=False)


@api.get("/queues")
async def list_queues(site: SiteOf, who: Viewer) -> Queues:
    """Return how many tasks are where."""
    return await site.read(queues.find, site.stores, site.shared.read)


@api.get("/queues/{priority}/{size}")
async def get_queue(site: SiteOf, who: Viewer, priority: Priority, size: Size) -> Stream:
    """Return what one stream holds."""
    return await site.read(queues.get, site.stores, priority, size, site.shared.read)


@pages.get("/streams/{priority}/{size}", name="stream")
async def show_stream(
    request: Request, site: SiteOf, who: Viewer, priority: Priority, size: Size, query: Charted
) -> Response:
    """Show a stream."""
    stores, shared, name = site.stores, site.shared.read, f"{priority}:{size}"
    pauses = await site.read(stores.controls.load)
    crew = await workers.find(stores, WorkerQuery(size=size, limit=1000), shared)
    return render(
        request,
        "stream.html",
        stream=await site.read(queues.get, stores, priority, size, shared),
        history=await charts(site, query, "stream", name),
        spans=SPANS,
        pause=of_task(pauses, name, ""),
        is_paused=any(item.what == f"stream:{name}" for item in pauses),
        crew=[item for item in crew.items if item.alive],
        now=(await stores.broker.logical_now()).timestamp(),
    )

"""Workers: ``/api/v1/workers``, and the pages that show and drain them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, get_args

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import Field

from nonet.base.errors import NotFoundError
from nonet.base.streams import Size
from nonet.operate import workers
from nonet.operate.lists import Page
from nonet.operate.workers import Drained, WorkerQuery
from nonet.rules.permissions import Principal
from nonet.stores.queue.workers import State, WorkerStatus
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import Body, Text, resource
from nonet.web.site import SiteOf, Viewer, may

api, pages = resource("workers"), APIRouter(include_in_schema=False)

Drainer = Annotated[Principal, may(workers.drain)]
Listed = Annotated[WorkerQuery, Query()]


class ToDrain(Body):
    """Workers by their names, or all of a size."""

    workers: Annotated[list[Text], Field(max_length=1000, description="Ids, or pid@host.")] = []
    size: Size | None = None


@api.get("/workers")
async def list_workers(site: SiteOf, who: Viewer, query: Listed) -> Page[WorkerStatus]:
    """List the registered workers, by size and name, with up to 20 tasks of each."""
    return await site.read(workers.find, site.stores, query, site.shared.read)


@api.get("/workers/{name}")
async def get_worker(site: SiteOf, who: Viewer, name: str) -> WorkerStatus:
    """Return one worker, by its id or its pid@host."""
    return await workers.get(site.stores, name, site.shared.read)


@api.post("/workers/drain")
async def drain_workers(body: ToDrain, site: SiteOf, who: Drainer) -> Drained:
    """Let workers finish their tasks and end. A worker reads the order within a second."""
    found = await workers.choose(site.stores, body.workers, body.size)
    return await site.perform(who, workers.drain, site.stores, found)


@pages.get("/workers", name="workers")
async def show_workers(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """List the workers."""
    stores, shared = site.stores, site.shared.read
    return render(
        request,
        "workers.html",
        found=await site.read(workers.find, stores, query, shared),
        query=query,
        all=(known := await workers.registered(stores, shared)),
        usual_version=workers.usual_version(known),
        sizes=list(Size),
        states=get_args(State),
        now=datetime.now(UTC),
    )


@pages.get("/workers/drain", name="drain_workers")
async def preview(request: Request, site: SiteOf, who: Drainer, size: Size) -> Response:
    """Show which workers of a size a drain would end."""
    try:
        found = await workers.choose(site.stores, size=size)
    except NotFoundError:
        found = []
    takers = [item for item in found if not item.drained_by]
    return render(request, "drain_workers.html", size=size, workers=takers)


@pages.post("/workers/drain")
async def drain(
    request: Request, site: SiteOf, who: Drainer, names: Annotated[str, Form()]
) -> Response:
    """Drain those workers of a page that have not ended since."""
    stores, wanted = site.stores, set(names.split())
    found = [item for item in await workers.registered(stores) if item.worker in wanted]
    drained = await site.perform(who, workers.drain, stores, found)
    text = f"draining: {', '.join(drained.draining)}"
    return back(request, path_of(request, "workers"), text)


@pages.get("/workers/{id}", name="worker")
async def show_worker(request: Request, site: SiteOf, who: Viewer, id: str) -> Response:
    """Show one worker."""
    stores, shared = site.stores, site.shared.read
    worker = await workers.get(stores, id, shared)
    return render(
        request,
        "worker.html",
        worker=worker,
        classes=await workers.known_classes(stores, worker.worker, shared),
        usual_version=workers.usual_version(await workers.registered(stores, shared)),
        now=datetime.now(UTC),
    )

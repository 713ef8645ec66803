"""The workers: what each does, why it takes nothing, and the button that drains it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from nonet.base.streams import Size
from nonet.stores.queue.workers import STATES, WorkerStatus, chosen
from nonet.web import workers
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Drainer, SiteOf, Viewer

router = APIRouter(include_in_schema=False)


@router.get("/workers", name="workers")
async def page(
    request: Request, site: SiteOf, who: Viewer, size: str = "", state: str = "", q: str = ""
) -> Response:
    """List the workers."""
    found = await workers.registered(site)
    alive = [item for item in found if item.alive]
    return render(
        request,
        "workers.html",
        workers=workers.matching(found, size, state, q.strip()),
        all=found,
        sizes=Counter(item.size for item in alive),
        slots=sum(item.concurrency for item in alive),
        running=sum(item.running for item in alive),
        versions=Counter(item.version for item in alive),
        usual_version=workers.usual_version(alive),
        choices={"size": list(Size), "state": STATES},
        chosen={"size": size, "state": state, "q": q},
        now=datetime.now(UTC),
    )


@router.get("/workers/drain", name="drain_workers")
async def preview(request: Request, site: SiteOf, who: Drainer, size: Size) -> Response:
    """Show which workers of a size a drain would end."""
    return render(request, "drain_workers.html", size=size, workers=_takers(await _all(site), size))


@router.post("/workers/drain")
async def drain_all(
    request: Request, site: SiteOf, who: Drainer, workers_shown: Annotated[str, Form()]
) -> Response:
    """Drain those workers that the preview has shown."""
    wanted = set(workers_shown.split())
    asked = await workers.drain(
        site, who, [item for item in await _all(site) if item.worker in wanted]
    )
    return back(request, path_of(request, "workers"), f"{asked} workers drain")


@router.get("/workers/{id}", name="worker")
async def one(request: Request, site: SiteOf, who: Viewer, id: str) -> Response:
    """Show one worker."""
    found = await workers.registered(site)
    worker = chosen(found, id)
    read = site.nonet.stores.results.known_classes
    classes = await site.shared.read(("workers", worker.worker), 10.0, lambda: read(worker.worker))
    return render(
        request,
        "worker.html",
        worker=worker,
        classes=classes,
        usual_version=workers.usual_version(item for item in found if item.alive),
        now=datetime.now(UTC),
        host=lambda name: name.partition("@")[2],
    )


@router.post("/workers/{id}/drain", name="drain_worker")
async def drain(request: Request, site: SiteOf, who: Drainer, id: str) -> Response:
    """Drain one worker."""
    worker = chosen(await _all(site), id)
    await workers.drain(site, who, [worker])
    text = f"{worker.name} finishes its tasks and ends"
    return back(request, path_of(request, "worker", id=worker.worker), text)


async def _all(site: SiteOf) -> list[WorkerStatus]:
    """Read the workers as they are now: a change must not act on what was a moment ago."""
    return await site.nonet.stores.results.workers()


def _takers(found: list[WorkerStatus], size: Size) -> list[WorkerStatus]:
    return [item for item in found if item.size == size and item.alive and not item.drained_by]

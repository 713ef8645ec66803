"""Pipelines: ``/api/v1/pipelines``, and their pages with the button that pauses one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from nonet.operate import pipelines
from nonet.operate.lists import ListQuery, Page
from nonet.operate.pipelines import PipelineView
from nonet.rules.findings import remedies
from nonet.rules.pauses import of_pipeline, pipeline as pause_of
from nonet.rules.pipelines import MOST, row_letter_class
from nonet.web.rendering import render
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("pipelines"), APIRouter(include_in_schema=False)

Listed = Annotated[ListQuery, Query()]


@api.get("/pipelines")
async def list_pipelines(site: SiteOf, who: Viewer, query: Listed) -> Page[PipelineView]:
    """List the pipelines that a process runs, or ran within a day."""
    return await site.read(pipelines.find, site.stores, query)


@api.get("/pipelines/{name}")
async def get_pipeline(
    name: Annotated[str, Path(pattern=r"^[!-~]{1,60}$", description="Name of the pipeline.")],
    site: SiteOf,
    who: Viewer,
) -> PipelineView:
    """Return a pipeline with the processes that run it. `POST /api/v1/pauses` pauses it."""
    return await site.read(pipelines.get, site.stores, name)


@pages.get("/pipelines", name="pipelines")
async def show_pipelines(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show the pipelines."""
    found = await site.read(pipelines.find, site.stores, query)
    return render(request, "pipelines.html", found=found, query=query, most=MOST)


@pages.get("/pipelines/{name}", name="pipeline")
async def show_pipeline(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one pipeline."""
    stores = site.stores
    found = await site.read(pipelines.get, stores, name)
    pauses = await site.read(stores.controls.load)
    return render(
        request,
        "pipeline.html",
        found=found,
        most=MOST,
        pause=of_pipeline(pauses, name),
        is_paused=any(item.what == pause_of(name) for item in pauses),
        letters=row_letter_class(name),
        explaining=remedies.command("task-run", "pipelines", "show", name, "--row", "KEY"),
        running=remedies.command("task-worker", "--pipelines", name),
    )

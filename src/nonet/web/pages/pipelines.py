"""Pipelines: their rows, the processes that run them, and the button that pauses one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.rules.findings import remedies
from nonet.rules.pauses import of_pipeline, pipeline as pause_of
from nonet.rules.pipelines import MOST, row_letter_class
from nonet.web import shown
from nonet.web.pages.pausing import add_pausing, pauses_of
from nonet.web.pages.rendering import render
from nonet.web.site import Pauser, SiteOf, Viewer

router = APIRouter(include_in_schema=False)


@router.get("/pipelines", name="pipelines")
async def pipelines(request: Request, site: SiteOf, who: Viewer) -> Response:
    """Show the pipelines."""
    found = await shown.pipelines(site)
    return render(request, "pipelines.html", rows=found, most=MOST)


@router.get("/pipelines/{name}", name="pipeline")
async def pipeline(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one pipeline."""
    found = await shown.pipeline(site, name)
    pauses = await pauses_of(site)
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


async def _ensure_known(site: SiteOf, who: Pauser, name: str) -> None:
    await shown.pipeline(site, name)


add_pausing(router, "/pipelines/{name}", "pipeline", "pipeline", pause_of, _ensure_known)

"""Pipelines: their rows, the processes that run them, and the button that pauses one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from nonet.rules import remedies
from nonet.rules.pauses import of_pipeline
from nonet.rules.pauses import pipeline as pause_of
from nonet.rules.permissions import Action, Principal
from nonet.rules.pipelines import MOST, row_letter_class
from nonet.web import shown
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.pauses import pause, pauses_of, resume
from nonet.web.site import SiteOf, Viewer, for_all_classes

router = APIRouter(include_in_schema=False)
Pauser = Annotated[Principal, for_all_classes(Action.PAUSE)]


@router.get("/pipelines", name="pipelines")
async def pipelines(request: Request, site: SiteOf, who: Viewer) -> Response:
    """Show the pipelines."""
    found = await shown.pipelines(site, who)
    return render(request, "pipelines.html", rows=found, most=MOST)


@router.get("/pipelines/{name}", name="pipeline")
async def pipeline(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one pipeline."""
    found = await shown.pipeline(site, who, name)
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


@router.post("/pipelines/{name}/pause", name="pause_pipeline")
async def pause_it(
    request: Request,
    site: SiteOf,
    who: Pauser,
    name: str,
    reason: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Pause a pipeline."""
    await shown.pipeline(site, who, name)
    text = await pause(site, who, pause_of(name), reason)
    return back(request, path_of(request, "pipeline", name=name), text)


@router.post("/pipelines/{name}/resume", name="resume_pipeline")
async def resume_it(request: Request, site: SiteOf, who: Pauser, name: str) -> Response:
    """End the pause of a pipeline."""
    text = await resume(site, who, pause_of(name))
    return back(request, path_of(request, "pipeline", name=name), text)

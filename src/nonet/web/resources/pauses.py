"""Pauses: ``/api/v1/pauses``, and the buttons of streams, classes and pipelines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NotFoundError
from nonet.operate import pauses, pipelines
from nonet.operate.lists import ListQuery, Page
from nonet.operate.pauses import Resumed, Which
from nonet.rules.page_paths import page_of
from nonet.rules.pauses import Pause
from nonet.rules.permissions import Principal
from nonet.web.access.requests import base_of
from nonet.web.rendering import back
from nonet.web.routing import Body, FormText, Reason, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("pauses"), APIRouter(include_in_schema=False)

Pauser = Annotated[Principal, may(pauses.pause)]


class ToResume(Which, Body):
    """What to resume."""


class ToPause(ToResume, Reason):
    """What to pause, and why."""


@api.get("/pauses")
async def list_pauses(
    site: SiteOf, who: Viewer, query: Annotated[ListQuery, Query()]
) -> Page[Pause]:
    """List what is paused, since when, by whom and why."""
    return await pauses.find(site.stores, query)


@api.post("/pauses")
async def pause(body: ToPause, site: SiteOf, who: Pauser) -> Page[Pause]:
    """Start no more of some or all tasks and rows until they are resumed. Running ones continue."""
    return await site.perform(who, pauses.pause, site.stores, body, body.reason)


@api.post("/pauses/resume")
async def resume(body: ToResume, site: SiteOf, who: Pauser) -> Resumed:
    """End pauses; return those that remain. Each pause is ended by itself."""
    return await site.perform(who, pauses.resume, site.stores, body)


@pages.post("/pauses/pause", name="pause")
async def pause_on_page(
    request: Request, site: SiteOf, who: Pauser, what: FormText, reason: FormText = ""
) -> Response:
    """Pause one thing, and show its page."""
    which, path = await _named(request, site, what)
    await site.perform(who, pauses.pause, site.stores, which, reason)
    of_it = "row of it is fetched" if which.pipelines else "task of it starts"
    return back(request, path, f"{which} is paused: no further {of_it}")


@pages.post("/pauses/resume", name="resume")
async def resume_on_page(request: Request, site: SiteOf, who: Pauser, what: FormText) -> Response:
    """Resume one thing, and show its page."""
    which, path = await _named(request, site, what)
    try:
        await site.perform(who, pauses.resume, site.stores, which)
    except NotFoundError as error:
        return back(request, path, str(error), "bad")
    return back(request, path, f"{which} is resumed")


async def _named(request: Request, site: Site, what: str) -> tuple[Which, str]:
    """Return what a form names, and the path of its page.

    Raises:
        NotFoundError: there is no such pipeline.
    """
    which = Which.of(what)
    for name in which.pipelines:
        await site.read(pipelines.get, site.stores, name)
    return which, base_of(request.scope) + page_of("pause", what)

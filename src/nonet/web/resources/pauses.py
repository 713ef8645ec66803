"""Pauses: ``/api/v1/pauses``, and the buttons of streams, classes and pipelines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NotFoundError
from nonet.operate import pauses
from nonet.operate.lists import ListQuery, Page
from nonet.operate.pauses import Resumed, Which
from nonet.rules.pauses import Pause
from nonet.rules.permissions import Principal
from nonet.web.rendering import back, path_of
from nonet.web.routing import Body, FormText, Reason, resource
from nonet.web.site import SiteOf, Viewer, may

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


def add_pausing(
    router: APIRouter,
    path: str,
    kind: str,
    page: str,
    which: Callable[..., Which],
    check: Callable[..., Awaitable[None]] | None = None,
) -> None:
    """Add the routes ``pause_KIND`` and ``resume_KIND``.

    Args:
        path: of the page below which they are.
        page: the name of its route.
        which: makes what is paused of the parameters in the path.
        check: a dependency of the pause, which refuses what is unknown.
    """

    @router.post(
        f"{path}/pause", name=f"pause_{kind}", dependencies=[Depends(check)] if check else None
    )
    async def pause(request: Request, site: SiteOf, who: Pauser, reason: FormText = "") -> Response:
        paused = which(**request.path_params)
        await site.perform(who, pauses.pause, site.stores, paused, reason)
        of_it = "row of it is fetched" if kind == "pipeline" else "task of it starts"
        text = f"{paused} is paused: no further {of_it}"
        return back(request, path_of(request, page, **request.path_params), text)

    @router.post(f"{path}/resume", name=f"resume_{kind}")
    async def resume(request: Request, site: SiteOf, who: Pauser) -> Response:
        paused, path = which(**request.path_params), path_of(request, page, **request.path_params)
        try:
            await site.perform(who, pauses.resume, site.stores, paused)
        except NotFoundError as error:
            return back(request, path, str(error), "bad")
        return back(request, path, f"{paused} is resumed")

"""The buttons that pause and resume streams, classes and pipelines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response

from nonet.base.actor import who as actor
from nonet.rules.pauses import Pause, in_words
from nonet.rules.permissions import Action
from nonet.web.pages.rendering import back, path_of
from nonet.web.site import Pauser, Site, SiteOf


async def pauses_of(site: Site) -> list[Pause]:
    """Return the pauses in force, read at most every two seconds for all viewers."""
    return await site.shared.read(("pauses",), 2.0, site.nonet.stores.controls.load)


def add_pausing(
    router: APIRouter,
    path: str,
    kind: str,
    page: str,
    what: Callable[..., str],
    check: Callable[..., Awaitable[None]] | None = None,
) -> None:
    """Add the routes ``pause_KIND`` and ``resume_KIND``.

    Args:
        path: of the page below which they are.
        page: the name of its route.
        what: makes a `Pause.what` of the parameters in the path.
        check: a dependency of the pause, which refuses what is unknown.
    """

    @router.post(
        f"{path}/pause", name=f"pause_{kind}", dependencies=[Depends(check)] if check else None
    )
    async def pause(
        request: Request,
        site: SiteOf,
        who: Pauser,
        reason: Annotated[str, Form(max_length=500)] = "",
    ) -> Response:
        paused = what(**request.path_params)
        async with site.changing(who, Action.PAUSE, f"pause {in_words(paused)}: {reason}"):
            await site.nonet.stores.controls.pause([paused], actor(), reason)
        of_it = "row of it is fetched" if kind == "pipeline" else "task of it starts"
        text = f"{in_words(paused)} is paused: no further {of_it}"
        return back(request, path_of(request, page, **request.path_params), text)

    @router.post(f"{path}/resume", name=f"resume_{kind}")
    async def resume(request: Request, site: SiteOf, who: Pauser) -> Response:
        paused = what(**request.path_params)
        async with site.changing(who, Action.PAUSE, f"resume {in_words(paused)}"):
            await site.nonet.stores.controls.resume([paused], actor())
        text = f"{in_words(paused)} is resumed"
        return back(request, path_of(request, page, **request.path_params), text)

"""The task classes: how fast they run and fail, their options, and the buttons that pause them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.config.overrides import Overrides
from nonet.operate.classes import options, published_overrides
from nonet.rules.pauses import of_task
from nonet.rules.pauses import task as pause_of
from nonet.rules.permissions import Action, Principal
from nonet.web.classes import figures_of, summaries
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.pauses import pause, pauses_of, resume
from nonet.web.site import Site, SiteOf, ensure, may

router = APIRouter(include_in_schema=False)
Reader = Annotated[Principal, may(Action.READ)]
Pauser = Annotated[Principal, may(Action.PAUSE)]

_CONFIG_SECONDS = 10.0
_SERIES_MINUTES = 15
_PAGE = 100
_ORDERS = {"name": "name", "ended": "most ended", "failed": "most failed", "active": "most active"}


@router.get("/classes", name="classes")
async def page(
    request: Request,
    site: SiteOf,
    who: Reader,
    q: Annotated[str, Query(max_length=200)] = "",
    order: str = "name",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    """List the classes."""
    found = [item for item in await summaries(site, who) if q.casefold() in item.name.casefold()]
    if order == "ended":
        found.sort(key=lambda item: -item.ended)
    elif order == "failed":
        found.sort(key=lambda item: -item.failed)
    elif order == "active":
        found.sort(key=lambda item: -sum(item.active.values()))
    return render(
        request,
        "classes.html",
        classes=found[(number - 1) * _PAGE : number * _PAGE],
        total=len(found),
        number=number,
        has_more=len(found) > number * _PAGE,
        chosen={"q": q, "order": order},
        orders=_ORDERS,
    )


@router.get("/classes/{name}", name="task_class")
async def one(request: Request, site: SiteOf, who: Reader, name: str) -> Response:
    """Show one class."""
    name = _full_name(site, name)
    ensure(who, Action.READ, name)
    found = next((item for item in await summaries(site, who) if item.name == name), None)
    if found is None:
        raise NotFoundError(
            f"{name}: this server has not loaded the class, and no task of it is live or ended in "
            "the last hour: start task-web with --tasks MODULE"
        )
    pauses = await pauses_of(site)
    figures = (await figures_of(site)).get(name)
    rows, problem = await _options(site, name)
    return render(
        request,
        "class.html",
        found=found,
        series=list(reversed(figures.series[-_SERIES_MINUTES:])) if figures else [],
        pause=of_task(pauses, "", name),
        is_paused=any(item.what == pause_of(name) for item in pauses) if found.is_class else False,
        may_pause=found.is_class and who.may(Action.PAUSE, name),
        options=rows,
        problem=problem,
    )


@router.post("/classes/{name}/pause", name="pause_class")
async def pause_it(
    request: Request,
    site: SiteOf,
    who: Pauser,
    name: str,
    reason: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Pause a class."""
    ensure(who, Action.PAUSE, name)
    text = await pause(site, who, pause_of(name), reason)
    return back(request, path_of(request, "task_class", name=name), text)


@router.post("/classes/{name}/resume", name="resume_class")
async def resume_it(request: Request, site: SiteOf, who: Pauser, name: str) -> Response:
    """End the pause of a class."""
    ensure(who, Action.PAUSE, name)
    text = await resume(site, who, pause_of(name))
    return back(request, path_of(request, "task_class", name=name), text)


def _full_name(site: Site, name: str) -> str:
    """Return the full name of a class: pauses and links may have a bare one."""
    found = [item.name for item in site.nonet.registry if item.name.rpartition(":")[2] == name]
    return found[0] if len(found) == 1 else name


async def _options(site: Site, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return the options of a class that are in force, and why they are not known."""
    task_class = site.nonet.registry.find(name)
    if task_class is None:
        return [], "This server has not loaded the class: start task-web with --tasks MODULE."

    async def read() -> Overrides:
        return await published_overrides(site.nonet.stores.publication)

    try:
        overrides = await site.shared.read(("overrides",), _CONFIG_SECONDS, read)
        return options(overrides, task_class), ""
    except ConfigurationError as error:
        return [], str(error)

"""The task classes: how fast they run and fail, their options, and the buttons that pause them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.config.overrides import Overrides
from nonet.operate.classes import options, published_overrides
from nonet.operate.pauses import Which
from nonet.rules.findings import remedies
from nonet.rules.pauses import of_task, task as pause_of
from nonet.rules.permissions import Action
from nonet.web.classes import figures_of, summaries
from nonet.web.pages.fields import Number
from nonet.web.pages.rendering import render
from nonet.web.resources.pauses import add_pausing
from nonet.web.site import Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_CONFIG_SECONDS = 10.0
_SERIES_MINUTES = 15
_PAGE = 100
_ORDERS = {"name": "name", "ended": "most ended", "failed": "most failed", "active": "most active"}


@router.get("/classes", name="classes")
async def page(
    request: Request,
    site: SiteOf,
    who: Viewer,
    q: Annotated[str, Query(max_length=200)] = "",
    order: str = "name",
    number: Number = 1,
) -> Response:
    """List the classes."""
    found = [item for item in await summaries(site) if q.casefold() in item.name.casefold()]
    if order == "ended":
        found.sort(key=lambda item: -item.total.ended)
    elif order == "failed":
        found.sort(key=lambda item: -item.total.failed)
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
async def one(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one class."""
    name = _full_name(site, name)
    found = next((item for item in await summaries(site) if item.name == name), None)
    if found is None:
        raise NotFoundError(
            f"{name}: this server has not loaded the class, and no task of it is live or ended in "
            "the last hour: start task-web with --tasks MODULE"
        )
    pauses = await site.read(site.nonet.stores.controls.load)
    figures = (await figures_of(site)).get(name)
    rows, problem = await _options(site, name)
    return render(
        request,
        "class.html",
        found=found,
        series=list(reversed(figures.series[-_SERIES_MINUTES:])) if figures else [],
        pause=of_task(pauses, "", name),
        is_paused=any(item.what == pause_of(name) for item in pauses) if found.is_class else False,
        may_pause=found.is_class and who.may(Action.PAUSE),
        options=rows,
        problem=problem,
        submitting=remedies.of_task("submit", name),
        showing=remedies.command("task-run", "config", "show", "--task", name, "--vo", "VO"),
    )


add_pausing(router, "/classes/{name}", "class", "task_class", lambda name: Which(tasks=(name,)))


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

"""Task classes: ``/api/v1/classes``, and their pages with figures, options and pause buttons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.errors import ConfigurationError
from nonet.operate import classes, configuration
from nonet.operate.classes import ActivityQuery, ClassQuery, ClassView, Order
from nonet.operate.configuration import OptionView
from nonet.operate.lists import Page
from nonet.rules.findings import remedies
from nonet.web.rendering import render
from nonet.web.resources.figures import SPANS, Charted, charts
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("classes"), APIRouter(include_in_schema=False)


@api.get("/classes")
async def list_classes(
    site: SiteOf, who: Viewer, query: Annotated[ClassQuery, Query()]
) -> Page[ClassView]:
    """List the task classes that this server has loaded, by name."""
    return await classes.find(site.registry, query)


@pages.get("/classes", name="classes")
async def show_classes(
    request: Request, site: SiteOf, who: Viewer, query: Annotated[ActivityQuery, Query()]
) -> Response:
    """Show how busy the classes are."""
    nonet = site.nonet
    found = await classes.activity(nonet.stores, nonet.registry, query, site.shared.read)
    return render(request, "classes.html", found=found, query=query, orders=get_args(Order))


@pages.get("/classes/{name}", name="task_class")
async def show_class(
    request: Request, site: SiteOf, who: Viewer, name: str, query: Charted
) -> Response:
    """Show one class."""
    nonet = site.nonet
    found = await classes.get(nonet.stores, nonet.registry, name, site.shared.read)
    name = found.name
    options: Sequence[OptionView] = ()
    problem = "This server has not loaded the class: start task-web with --tasks MODULE."
    if found.is_known:
        try:
            known = await site.read(configuration.get, nonet.stores, nonet.registry, (), name)
            options = known.values
        except ConfigurationError as error:
            problem = str(error)
    return render(
        request,
        "class.html",
        found=found,
        history=await charts(site, query, "class", name),
        spans=SPANS,
        options=options,
        problem=problem,
        submitting=remedies.of_task("submit", name),
        showing=remedies.command("task-run", "config", "show", "--task", name, "--vo", "VO"),
    )

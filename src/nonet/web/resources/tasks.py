"""Live tasks: ``/api/v1/tasks``, the page that searches them, and the one that finds an id."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.errors import InvalidArgumentsError, NotFoundError
from nonet.operate import tasks
from nonet.operate.lists import Searched
from nonet.operate.tasks import LiveQuery, LiveState
from nonet.tasks.handles import TaskStatus
from nonet.web.api.routing import resource
from nonet.web.pages.fields import Word
from nonet.web.pages.rendering import path_of, render
from nonet.web.shown import ensure_searchable
from nonet.web.site import Site, SiteOf, Viewer

api, pages = resource("tasks"), APIRouter(include_in_schema=False)

Listed = Annotated[LiveQuery, Query()]
# Columns by state. Each is a macro in _tasks.html.
_MIXED = ("task", "state", "since", "note")
_NOTHING: Searched[TaskStatus] = Searched(())
_COLUMNS = {
    "running": ("task", "worker", "running_for", "progress", "attempt"),
    "waiting": ("task", "waiting_for", "blocker"),
    "queued": ("task", "stream", "waiting_for", "attempt"),
    "delayed": ("task", "due", "attempt", "last_error"),
    "dying": ("task", "worker", "reason", "last_error"),
}


@api.get("/tasks")
async def list_tasks(site: SiteOf, who: Viewer, query: Listed) -> Searched[TaskStatus]:
    """List tasks that have not ended: running ones first, then waiting, queued and delayed ones.

    A page with a filter can have fewer items than `limit`, even none, although more follow.
    """
    ensure_searchable(who, query.label, query.error)
    return await site.read(tasks.find, site.nonet.stores, query)


@pages.get("/tasks", name="tasks")
async def show_tasks(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show live tasks."""
    problem, found = "", _NOTHING
    try:
        found = await list_tasks(site=site, who=who, query=query)
    except InvalidArgumentsError as error:
        problem = str(error)
    return render(
        request,
        "tasks.html",
        422 if problem else 200,
        found=found,
        query=query,
        problem=problem,
        is_ended=False,
        columns=_COLUMNS.get(query.state or "", _MIXED),
        states=get_args(LiveState),
        classes=sorted(item.name for item in site.nonet.registry),
        now=await site.nonet.stores.broker.logical_now() if found.items else None,
    )


@pages.get("/find", name="find")
async def find(request: Request, site: SiteOf, who: Viewer, id: Word) -> Response:
    """Open the page of a task, group or workflow."""
    path = await _path_of_id(request, site, id.strip())
    if path:
        return RedirectResponse(path, 303)
    problem = f"no task, group or workflow has the id {id}"
    return render(request, "task_missing.html", 404, id=id, problem=problem)


async def _path_of_id(request: Request, site: Site, id: str) -> str:
    """Return the path of the page of a task, group or workflow; empty if none is known."""
    if await site.nonet.stores.workflows.exists(id):
        return path_of(request, "workflow", id=id)
    reads = (
        ("task", site.nonet.status),
        ("group", site.nonet.stores.groups.status),
        ("task", site.nonet.stores.history.find),
    )
    for page, read in reads:
        try:
            if await read(id) is not None:
                return path_of(request, page, id=id)
        except NotFoundError:
            continue
    return ""

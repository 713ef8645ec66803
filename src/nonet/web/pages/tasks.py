"""The list of tasks, live and ended, with a search."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.errors import InvalidArgumentsError, NotFoundError
from nonet.stores.namespace.history import EndedPage
from nonet.tasks.handles import TaskPage
from nonet.web import shown
from nonet.web.pages.rendering import path_of, render
from nonet.web.pages.task_search import CHOICES, WITHIN, SearchOf, find
from nonet.web.site import Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_SECONDS = 2.0
_NOTHING = TaskPage((), 0, 0, 0)
# Columns by state. Each is a macro in tasks.html.
_MIXED = ("task", "state", "since", "note")
_COLUMNS = {
    "running": ("task", "worker", "running_for", "progress", "attempt"),
    "waiting": ("task", "waiting_for", "blocker"),
    "queued": ("task", "stream", "waiting_for", "attempt"),
    "delayed": ("task", "due", "attempt", "last_error"),
    "dying": ("task", "worker", "reason", "last_error"),
}
_ENDED = ("task", "state", "ended", "waited", "ran", "attempt", "ended_by", "error")


@router.get("/tasks", name="tasks")
async def page(request: Request, site: SiteOf, who: Viewer, search: SearchOf) -> Response:
    """Show tasks. An id in the search field opens its task, group or workflow."""
    problem = ""
    if search.q:
        path = await _path_of_id(request, site, search.q)
        if path:
            return RedirectResponse(path, 303)
        problem = (
            f"No task, group or workflow has the id {search.q}. It was never submitted here, or it "
            "ended long ago: search the dead letters and the logs for it."
        )
    shown.ensure_searchable(who, search.label, search.error)
    found: TaskPage | EndedPage = _NOTHING
    try:
        read = partial(find, search, site.nonet)
        found = await site.shared.read(("tasks", search), _SECONDS, read)
    except (InvalidArgumentsError, ValueError) as error:
        problem = str(error)
    return render(
        request,
        "tasks.html",
        422 if problem and not search.q else 200,
        search=search,
        found=found,
        problem=problem,
        columns=_ENDED if search.is_ended else _COLUMNS.get(search.state, _MIXED),
        choices=CHOICES,
        within=WITHIN,
        classes=sorted(item.name for item in site.nonet.registry),
        now=await site.nonet.broker.logical_now() if found.rows else None,
    )


async def _path_of_id(request: Request, site: Site, id: str) -> str:
    """Return the path of the page of a task, group or workflow; empty if none is known."""
    if await site.nonet.stores.workflows.exists(id):
        return path_of(request, "workflow", id=id)
    try:
        await site.nonet.status(id)
        return path_of(request, "task", id=id)
    except NotFoundError:
        pass
    try:
        await site.nonet.stores.groups.status(id)
        return path_of(request, "group", id=id)
    except NotFoundError:
        pass
    known = await site.nonet.stores.history.find(id)
    return path_of(request, "task", id=id) if known else ""

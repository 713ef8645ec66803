"""The list of tasks, live and ended, with a search."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.errors import InvalidArgumentsError, NotFoundError
from nonet.rules.permissions import Action, Principal
from nonet.tasks.handles import EndedTask, TaskStatus
from nonet.web import shown
from nonet.web.pages.rendering import path_of, render
from nonet.web.pages.task_search import CHOICES, WITHIN, Found, SearchOf, find
from nonet.web.site import Site, SiteOf, Viewer, ensure

router = APIRouter(include_in_schema=False)

_SECONDS = 2.0
_NOTHING = Found((), 0, 0, 0, "")
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
    if not search.may_be_seen_by(who):
        ensure(who, Action.DETAILS, None)
    found = _NOTHING
    try:
        read = partial(find, search, site.nonet)
        found = await site.shared.read(("tasks", search), _SECONDS, read)
    except (InvalidArgumentsError, ValueError) as error:
        problem = str(error)
    rows = [_seen(row, who) for row in found.rows]
    return render(
        request,
        "tasks.html",
        422 if problem and not search.q else 200,
        search=search,
        found=replace(found, rows=rows),
        problem=problem,
        columns=_ENDED if search.is_ended else _COLUMNS.get(search.state, _MIXED),
        choices=CHOICES,
        within=WITHIN,
        classes=sorted(item.name for item in site.nonet.registry),
        now=await site.nonet.broker.logical_now() if rows else None,
    )


def _seen(row: TaskStatus | EndedTask, who: Principal) -> TaskStatus | EndedTask:
    return shown.ended(row, who) if isinstance(row, EndedTask) else shown.status(row, who)


async def _path_of_id(request: Request, site: Site, id: str) -> str:
    """Return the path of the page of a task, group or workflow; empty if none is known."""
    if await site.nonet.client.workflows.exists(id):
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

"""The history: ``/api/v1/history``, and the page that searches it."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.operate import history
from nonet.operate.history import EndedQuery, EndState
from nonet.operate.lists import Searched
from nonet.tasks.handles import EndedTask
from nonet.web.rendering import render
from nonet.web.routing import TaskId, resource
from nonet.web.site import Knower, SiteOf, Viewer, ensure_searchable

api, pages = resource("history"), APIRouter(include_in_schema=False)

Listed = Annotated[EndedQuery, Query()]
# Each is a macro in _tasks.html.
_COLUMNS = ("task", "state", "ended", "waited", "ran", "attempt", "ended_by", "error")


@api.get("/history")
async def list_history(site: SiteOf, who: Viewer, query: Listed) -> Searched[EndedTask]:
    """List the tasks that ended last, the newest first.

    Labels are known of failures only. The last page alone has fewer items than `limit`, unless
    `search` tasks are examined before.
    """
    ensure_searchable(who, query.label, query.error)
    return await site.read(history.find, site.stores, query)


@api.get("/history/{id:path}")
async def get_ended_task(id: TaskId, site: SiteOf, who: Knower) -> EndedTask:
    """Return how a task ended, also when its result is not kept any more."""
    return await history.get(site.stores, id)


@pages.get("/history", name="history")
async def show_history(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show the tasks that ended last."""
    return render(
        request,
        "tasks.html",
        found=await list_history(site=site, who=who, query=query),
        query=query,
        problem="",
        is_ended=True,
        columns=_COLUMNS,
        states=get_args(EndState),
        classes=sorted(item.name for item in site.registry),
        now=None,
    )

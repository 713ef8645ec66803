"""The history: ``/api/v1/history``. Its page is one of `nonet.web.resources.tasks.lists`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from nonet.operate import history
from nonet.operate.history import EndedQuery
from nonet.operate.lists import Searched
from nonet.tasks.handles import EndedTask
from nonet.web.routing import TaskId, resource
from nonet.web.site import Knower, SiteOf, Viewer, ensure_searchable

api, pages = resource("history"), APIRouter(include_in_schema=False)

Listed = Annotated[EndedQuery, Query()]


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

"""``/api/v1/history`` and ``/classes``: tasks that have ended, and the figures of their classes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from nonet.base.errors import NotFoundError
from nonet.operate.lists import opened, sealed
from nonet.rules.figures import ClassFigures
from nonet.stores.namespace.task_queries import TaskQuery
from nonet.tasks.handles import EndedTask
from nonet.web import shown
from nonet.web.api.routing import (
    Cursor,
    Labels,
    Limit,
    Listed,
    OfClass,
    Page,
    SearchText,
    Since,
    TaskId,
    labels_of,
    resource,
)
from nonet.web.site import Knower, SiteOf, Viewer

router = resource("history")

# How many entries a page of the history examines.
_BUDGET = 5000

EndState = Literal["done", "dead", "cancelled", "expired"]


class HistoryPage(Page[EndedTask]):
    """Some of the tasks that ended last, the newest first."""

    searched: int = Field(description="How many entries of the history were examined.")
    total: int = Field(description="How many entries there are where this list searches.")


@router.get("/history")
async def list_history(
    site: SiteOf,
    who: Viewer,
    state: Annotated[
        list[EndState] | None,
        Query(description="Only tasks that ended in this state; repeat it for more states."),
    ] = None,
    task: OfClass = None,
    label: Labels = None,
    worker: SearchText = "",
    error: SearchText = "",
    since: Since = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> HistoryPage:
    """List the tasks that ended last, the newest first.

    Labels are known of failures only. A page with a filter can have fewer items than `limit`, even
    none, although more follow.
    """
    shown.ensure_searchable(who, label, error)
    stores = site.nonet.stores
    age = timedelta(seconds=since) if since else None
    query = TaskQuery(task=task, labels=labels_of(label), worker=worker, error=error, since=age)
    selection = await query.ended(stores.broker, stores.results, state or ())
    found = await stores.history.page(selection, limit=limit, budget=_BUDGET, cursor=opened(cursor))
    return HistoryPage(
        items=found.rows, cursor=sealed(found.cursor), searched=found.searched, total=found.total
    )


@router.get("/history/{id:path}")
async def get_ended_task(id: TaskId, site: SiteOf, who: Knower) -> EndedTask:
    """Return how a task ended, also when its result is not kept any more."""
    kept = await site.nonet.stores.history.find(id)
    if kept is None:
        raise NotFoundError(f"task {id} is not in the history: it has not ended, or long ago")
    return kept.task


@router.get("/classes")
async def list_classes(
    site: SiteOf,
    who: Viewer,
    task: OfClass = None,
    since: Annotated[
        float, Query(ge=60, le=172_800, description="Of this many seconds until now.")
    ] = 3600,
) -> Listed[ClassFigures]:
    """Return how many tasks of each class ended and failed, and how long they waited and ran."""
    read = partial(site.nonet.stores.history.figures, since=timedelta(seconds=since), task=task)
    found = await site.shared.read(("classes", since, task), 5.0, read)
    return Listed(items=found)

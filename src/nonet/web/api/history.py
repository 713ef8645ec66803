"""``/api/v1/history`` and ``/classes``: tasks that have ended, and the figures of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from nonet.base.errors import NotFoundError
from nonet.rules.figures import ClassFigures
from nonet.rules.permissions import Action, Principal
from nonet.stores.namespace.history import EndedFilter
from nonet.tasks.handles import EndedTask
from nonet.web import shown
from nonet.web.api.routing import (
    Cursor,
    Labels,
    Limit,
    OfClass,
    Page,
    SearchText,
    Since,
    TaskId,
    labels_of,
    opened,
    resource,
    sealed,
)
from nonet.web.site import SiteOf, ensure, may

router = resource("history")

# How many entries a page of the history examines.
_BUDGET = 5000

Reader = Annotated[Principal, may(Action.READ)]
EndState = Literal["done", "dead", "cancelled", "expired"]


class HistoryPage(Page[EndedTask]):
    """Some of the tasks that ended last, the newest first."""

    searched: int = Field(description="How many entries of the history were examined.")
    total: int = Field(description="How many entries there are where this list searches.")


class ClassList(BaseModel):
    """The classes of which something was counted, by name."""

    items: Sequence[ClassFigures]


@router.get("/history")
async def list_history(
    site: SiteOf,
    who: Reader,
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
    shown.ensure_searchable(who, task, label, error)
    stores = site.nonet.stores
    selection = EndedFilter(
        tuple(state or ()),
        task or "",
        workers=await stores.results.incarnations(worker) if worker else None,
        error=error,
        labels=labels_of(label),
        since=await stores.broker.logical_now() - timedelta(seconds=since) if since else None,
    )
    found = await stores.history.page(selection, limit=limit, budget=_BUDGET, cursor=opened(cursor))
    return HistoryPage(
        items=[shown.ended(item, who) for item in shown.visible(found.rows, who)],
        cursor=sealed(found.cursor),
        searched=found.searched,
        total=found.total,
    )


@router.get("/history/{id:path}")
async def get_ended_task(id: TaskId, site: SiteOf, who: Reader) -> EndedTask:
    """Return how a task ended, also when its result is not kept any more."""
    kept = await site.nonet.stores.history.find(id)
    if kept is None:
        raise NotFoundError(f"task {id} is not in the history: it has not ended, or long ago")
    ensure(who, Action.READ, kept.task.name)
    return shown.ended(kept.task, who)


@router.get("/classes")
async def list_classes(
    site: SiteOf,
    who: Reader,
    task: OfClass = None,
    since: Annotated[
        float, Query(ge=60, le=172_800, description="Of this many seconds until now.")
    ] = 3600,
) -> ClassList:
    """Return how many tasks of each class ended and failed, and how long they waited and ran."""
    read = partial(site.nonet.stores.history.figures, since=timedelta(seconds=since), task=task)
    found = await site.shared.read(("classes", since, task), 5.0, read)
    return ClassList(items=shown.visible(found, who))

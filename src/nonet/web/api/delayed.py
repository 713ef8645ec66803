"""``/api/v1/delayed``: tasks that wait for their time or for a retry; start or cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from nonet.operate.delayed import cancel_delayed, hasten
from nonet.operate.lists import opened
from nonet.rules.permissions import Action
from nonet.tasks.handles import TaskStatus
from nonet.web.api.routing import Body, Cursor, Id, Limit, OfClass, Page, Reason, page, resource
from nonet.web.site import Canceller, Scheduler, SiteOf, Viewer

router = resource("delayed")

_BUDGET = 5000


class Named(Body):
    """Delayed tasks by their ids."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=1000)]


class ToCancel(Named, Reason):
    """Delayed tasks to cancel, and why."""


class States(BaseModel):
    """What became of tasks."""

    changed: list[str] = Field(description="Ids of the tasks that were delayed, and changed.")
    states: dict[str, str] = Field(
        description="The state of each of the others, by id; empty: it is unknown."
    )


@router.get("/delayed")
async def list_delayed(
    site: SiteOf, who: Viewer, task: OfClass = None, limit: Limit = 100, cursor: Cursor = ""
) -> Page[TaskStatus]:
    """List the delayed tasks, the soonest first."""
    found = await site.nonet.list_tasks(
        state="delayed", task=task, limit=limit, budget=_BUDGET, cursor=opened(cursor)
    )
    return page(found.rows, found.cursor)


@router.post("/delayed/run")
async def run_delayed(body: Named, site: SiteOf, who: Scheduler) -> States:
    """Make delayed tasks due now, including those that wait for a retry."""
    async with site.changing(who, Action.SCHEDULE, f"{_named(body.ids)}: due now"):
        states = await hasten(body.ids, site.nonet.stores)
    return _told(states, "delayed")


@router.post("/delayed/cancel")
async def cancel_delayed_tasks(body: ToCancel, site: SiteOf, who: Canceller) -> States:
    """Cancel tasks, unless they are no longer delayed."""
    async with site.changing(who, Action.CANCEL, f"{_named(body.ids)}: cancel: {body.reason}"):
        states = await cancel_delayed(body.ids, site.nonet.client, body.reason)
    return _told(states, "cancelled")


def _named(ids: Sequence[str]) -> str:
    return f"task {ids[0]}" if len(ids) == 1 else f"{len(ids)} tasks, the first {ids[0]}"


def _told(states: dict[str, str], done: str) -> States:
    changed = [id for id, state in states.items() if state == done]
    return States(changed=changed, states={id: states[id] for id in states if id not in changed})

"""Delayed tasks: which start next, and to start them now or cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from nonet.operate.delayed import cancel_delayed, hasten
from nonet.rules.permissions import Action
from nonet.web.pages.fields import Cursor, Reason
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Canceller, Scheduler, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

PAGE = 100
# A task that is due is promoted once a second. A task that is due for longer is overdue.
_OVERDUE_SECONDS = 3.0

_Ids = Annotated[list[str], Form(alias="id", max_length=1000)]


@router.get("/delayed", name="delayed")
async def delayed(
    request: Request,
    site: SiteOf,
    who: Viewer,
    task: Annotated[str, Query(alias="class", max_length=500)] = "",
    cursor: Cursor = "",
) -> Response:
    """Show delayed tasks, the soonest first."""
    read = partial(
        site.nonet.list_tasks, state="delayed", task=task or None, limit=PAGE, cursor=cursor
    )
    found = await site.shared.read(("delayed", task, cursor), 2.0, read)
    now = await site.nonet.broker.now()
    rows = [(item, (now - item.due).total_seconds() if item.due else 0.0) for item in found.rows]
    return render(
        request,
        "delayed.html",
        rows=rows,
        found=found,
        task=task,
        is_first=not cursor,
        overdue=_OVERDUE_SECONDS,
    )


@router.post("/delayed/now", name="delayed_now")
async def now(request: Request, site: SiteOf, who: Scheduler, ids: _Ids) -> Response:
    """Make delayed tasks due now."""
    async with site.changing(who, Action.SCHEDULE, f"{_named(ids)}: due now"):
        states = await hasten(ids, site.nonet.stores)
    done = [id for id, state in states.items() if state == "delayed"]
    return _told(request, site, states, done, "due now")


@router.post("/delayed/cancel", name="delayed_cancel")
async def cancel(
    request: Request, site: SiteOf, who: Canceller, ids: _Ids, reason: Reason = ""
) -> Response:
    """Cancel delayed tasks."""
    async with site.changing(who, Action.CANCEL, f"{_named(ids)}: cancel: {reason}"):
        states = await cancel_delayed(ids, site.nonet.client, reason)
    done = [id for id, state in states.items() if state == "cancelled"]
    return _told(request, site, states, done, "cancelled")


def _told(
    request: Request, site: Site, states: dict[str, str], done: Sequence[str], what: str
) -> Response:
    """Say what became of the tasks: some may have moved on since the page was made."""
    problems = [
        f"{id} is {state}, not delayed" if state else f"{id} is unknown"
        for id, state in states.items()
        if id not in done
    ]
    told = [f"{len(done)} task{'s' if len(done) != 1 else ''} {what}"] if done else []
    text = "; ".join([*told, *problems[:5]])
    return back(request, path_of(request, "delayed"), text, "good" if done else "bad")


def _named(ids: Sequence[str]) -> str:
    return f"task {ids[0]}" if len(ids) == 1 else f"{len(ids)} tasks, the first {ids[0]}"

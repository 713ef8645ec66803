"""Delayed tasks: ``/api/v1/delayed``, and the page that starts or cancels them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import Field

from nonet.operate import delayed
from nonet.operate.audited import Changed
from nonet.operate.delayed import DelayedQuery
from nonet.operate.lists import Searched
from nonet.rules.permissions import Principal
from nonet.tasks.handles import TaskStatus
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import Body, FormText, Id, Reason, resource
from nonet.web.site import SiteOf, Viewer, may

api, pages = resource("delayed"), APIRouter(include_in_schema=False)

Hastener = Annotated[Principal, may(delayed.hasten)]
Canceller = Annotated[Principal, may(delayed.cancel)]
Listed = Annotated[DelayedQuery, Query()]
Ids = Annotated[list[str], Form(alias="id", max_length=1000)]
# A task that is due is promoted once a second. A task that is due for longer is overdue.
_OVERDUE_SECONDS = 3.0


class Named(Body):
    """Delayed tasks by their ids."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=1000)]


class ToCancel(Named, Reason):
    """Delayed tasks to cancel, and why."""


@api.get("/delayed")
async def list_delayed(site: SiteOf, who: Viewer, query: Listed) -> Searched[TaskStatus]:
    """List the delayed tasks, the soonest first."""
    return await site.read(delayed.find, site.stores, query)


@api.post("/delayed/run")
async def run_delayed(body: Named, site: SiteOf, who: Hastener) -> Changed:
    """Make delayed tasks due now, including those that wait for a retry."""
    return await site.perform(who, delayed.hasten, site.stores, body.ids)


@api.post("/delayed/cancel")
async def cancel_delayed_tasks(body: ToCancel, site: SiteOf, who: Canceller) -> Changed:
    """Cancel tasks, unless they are no longer delayed."""
    return await site.perform(who, delayed.cancel, site.client, body.ids, body.reason)


@pages.get("/delayed", name="delayed")
async def show_delayed(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show delayed tasks, the soonest first."""
    return render(
        request,
        "delayed.html",
        found=await site.read(delayed.find, site.stores, query),
        query=query,
        now=await site.stores.broker.now(),
        overdue=_OVERDUE_SECONDS,
    )


@pages.post("/delayed/now", name="delayed_now")
async def now(request: Request, site: SiteOf, who: Hastener, ids: Ids) -> Response:
    """Make delayed tasks due now."""
    found = await site.perform(who, delayed.hasten, site.stores, ids)
    return _back(request, found, "due now")


@pages.post("/delayed/cancel", name="delayed_cancel")
async def cancel(
    request: Request, site: SiteOf, who: Canceller, ids: Ids, reason: FormText = ""
) -> Response:
    """Cancel delayed tasks."""
    found = await site.perform(who, delayed.cancel, site.client, ids, reason)
    return _back(request, found, "cancelled")


def _back(request: Request, found: Changed, what: str) -> Response:
    """Say what became of the tasks: some may have moved on since the page was made."""
    number = len(found.changed)
    done = [f"{number} task{'s' if number != 1 else ''} {what}"] if number else []
    text = "; ".join([*done, *found.problems("delayed")[:5]])
    return back(request, path_of(request, "delayed"), text, "good" if done else "bad")

"""Cancel or submit again all tasks that a search selects: first a preview, then the action."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from nonet.operate import history, tasks
from nonet.operate.history import EndedQuery, FailurePreview
from nonet.operate.lists import opened, sealed
from nonet.operate.tasks import AnyTaskQuery, CancelledMany, LiveQuery
from nonet.rules.permissions import Principal
from nonet.stores.connection.clock import instant
from nonet.web.rendering import amount, back, linked, path_of, render
from nonet.web.routing import FormText
from nonet.web.site import SiteOf, may

router = APIRouter(include_in_schema=False)

Which = Literal["cancel", "resubmit"]
_SHOWN = 8

Canceller = Annotated[Principal, may(tasks.cancel_many)]
Resubmitter = Annotated[Principal, may(history.resubmit_all)]
Live = Annotated[LiveQuery, Query()]
Ended = Annotated[EndedQuery, Query()]
Until = Annotated[int, Form(gt=0, lt=10**16)]
Done = Annotated[int, Form(ge=0)]


@router.get("/bulk/cancel", name="bulk_cancel")
async def cancel_preview(request: Request, site: SiteOf, search: Live, who: Canceller) -> Response:
    """Show how many tasks a cancellation would end, and of which classes."""
    selection = await search.cancellable(site.stores)
    found = await tasks.preview_cancel(site.client, selection)
    classes: Mapping[str, int] = {}
    if found.number:
        classes = await site.stores.results.classes(selection, search.budget)
    return _preview(request, "cancel", search, found, classes)


@router.get("/bulk/resubmit", name="bulk_resubmit")
async def resubmit_preview(
    request: Request, site: SiteOf, search: Ended, who: Resubmitter
) -> Response:
    """Show how many failures would be submitted again, and of which classes."""
    found = await history.preview_resubmit(site.client, await search.failures(site.stores))
    return _preview(request, "resubmit", search, found, found.classes)


def _preview(
    request: Request,
    which: Which,
    search: AnyTaskQuery,
    found: CancelledMany | FailurePreview,
    classes: Mapping[str, int],
) -> Response:
    return _page(
        request,
        which,
        search,
        found.moment,
        number=found.number,
        is_exact=found.is_exact,
        classes=sorted(classes.items(), key=lambda item: -item[1])[:_SHOWN],
        others=len(classes) - _SHOWN,
        counted=sum(classes.values()),
    )


@router.post("/bulk/cancel", name="do_bulk_cancel")
async def cancel(
    request: Request,
    site: SiteOf,
    search: Live,
    who: Canceller,
    until: Until,
    reason: FormText = "",
    done: Done = 0,
) -> Response:
    """Cancel the tasks that existed at the preview, for some seconds; then offer to continue."""
    moment, selection = instant(until), await search.cancellable(site.stores)
    found = await site.perform(who, tasks.cancel_many, site.client, selection, moment, reason)
    done += found.number
    if not found.is_complete:
        return _page(request, "cancel", search, moment, done=done, reason=reason)
    running = len(found.running)
    text = f"Cancelled {amount(done)} tasks." + (
        f" Workers end {amount(running)} running ones within seconds." if running else ""
    )
    path = path_of(request, "tasks") + linked(search, cursor="", task_id="")
    return back(request, path, text)


@router.post("/bulk/resubmit", name="do_bulk_resubmit")
async def resubmit(
    request: Request, site: SiteOf, search: Ended, who: Resubmitter, until: Until, done: Done = 0
) -> Response:
    """Submit the failures that existed at the preview, for some seconds; offer to continue."""
    moment = instant(until)
    found = await site.perform(
        who,
        history.resubmit_all,
        site.client,
        await search.failures(site.stores, moment),
        f"failures{search.chosen}, ended until {moment:%F %T}",
        cursor=opened(search.cursor),
    )
    done += found.number
    if found.cursor or found.problems:
        search = search.model_copy(update={"cursor": sealed(found.cursor) or ""})
        more = {"done": done, "problems": found.problems, "refused": found.refused}
        return _page(request, "resubmit", search, moment, **more)
    text = f"Submitted {amount(done)} tasks again."
    path = path_of(request, "history") + linked(search, cursor="", task_id="")
    return back(request, path, text)


def _page(
    request: Request, action: Which, search: AnyTaskQuery, moment: datetime, **values: Any
) -> Response:
    """Show a preview; or, with `done`, how far the action is, with a button that continues it."""
    shown = {"done": None, "reason": "", "problems": (), "refused": 0, **values}
    until = round(moment.timestamp() * 1e6)
    return render(
        request, "bulk.html", action=action, search=search, moment=moment, until=until, **shown
    )

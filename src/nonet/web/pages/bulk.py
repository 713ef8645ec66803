"""Actions on all tasks that a search selects: first a preview of how many, then the action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response

from nonet.base.actor import who as actor
from nonet.operate.cancelling import CancelPreview, cancel_existing, preview_cancel
from nonet.operate.ended import FailurePreview, preview_resubmit, resubmit_all
from nonet.rules.permissions import Action, Principal
from nonet.stores.connection.clock import instant
from nonet.stores.namespace.history import FAILED
from nonet.web.pages.fields import Reason
from nonet.web.pages.rendering import amount, back, path_of, render
from nonet.web.pages.task_search import Search, SearchOf
from nonet.web.site import SiteOf, may

router = APIRouter(include_in_schema=False)

Which = Literal["cancel", "resubmit"]
_SHOWN = 8
# Records in which classes are counted; labels are read from the message of each.
_SAMPLED, _LABELLED = 3000, 1000


def _permitted(which: Which, action: Action) -> Any:
    """Return the dependency of a route that acts on all tasks of a search."""

    def check(search: SearchOf, who: Principal = may(action)) -> Principal:  # noqa: B008  # as FastAPI reads it
        if search.is_ended is (which == "cancel"):
            wanted = "live" if which == "cancel" else "ended"
            raise ValueError(f"{which}: search for {wanted} tasks")
        if search.lock:
            raise ValueError("tasks are not cancelled by lock: leave the lock out of the search")
        return who

    check.action = action  # type: ignore[attr-defined]  # as in `may`
    return Depends(check)


Canceller = Annotated[Principal, _permitted("cancel", Action.CANCEL)]
Resubmitter = Annotated[Principal, _permitted("resubmit", Action.RESUBMIT)]
Until = Annotated[int, Form(gt=0, lt=10**16)]
Done = Annotated[int, Form(ge=0)]


@router.get("/bulk/cancel", name="bulk_cancel")
async def cancel_preview(
    request: Request, site: SiteOf, search: SearchOf, who: Canceller
) -> Response:
    """Show how many tasks a cancellation would end, and of which classes."""
    selection = await search.live_filter(site.nonet)
    found = await preview_cancel(site.nonet.client, selection)
    classes: Mapping[str, int] = {}
    if found.number:
        budget = _LABELLED if search.label else _SAMPLED
        classes = await site.nonet.stores.results.classes(selection, budget)
    return _preview(request, "cancel", search, found, classes)


@router.get("/bulk/resubmit", name="bulk_resubmit")
async def resubmit_preview(
    request: Request, site: SiteOf, search: SearchOf, who: Resubmitter
) -> Response:
    """Show how many failures would be submitted again, and of which classes."""
    nonet = site.nonet
    failures = await search.ended_filter(nonet, _failures(search))
    found = await preview_resubmit(nonet.client, nonet.stores.history, failures)
    return _preview(request, "resubmit", search, found, found.classes)


def _preview(
    request: Request,
    which: Which,
    search: Search,
    found: CancelPreview | FailurePreview,
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
    search: SearchOf,
    who: Canceller,
    until: Until,
    reason: Reason = "",
    done: Done = 0,
) -> Response:
    """Cancel the tasks that existed at the preview, for some seconds; then offer to continue."""
    moment, selection = instant(until), await search.live_filter(site.nonet)
    what = f"all tasks: {selection}, submitted until {moment:%F %T}; {reason}".removesuffix("; ")
    async with site.changing(who, Action.CANCEL, what):
        tally = await cancel_existing(site.nonet.client, selection, moment, actor(), reason)
    done += tally.number
    if not tally.is_complete:
        return _page(request, "cancel", search, moment, done=done, reason=reason)
    running = len(tally.running)
    text = f"Cancelled {amount(done)} tasks." + (
        f" Workers end {amount(running)} running ones within seconds." if running else ""
    )
    return back(request, path_of(request, "tasks") + search.query(cursor=""), text)


@router.post("/bulk/resubmit", name="do_bulk_resubmit")
async def resubmit(
    request: Request, site: SiteOf, search: SearchOf, who: Resubmitter, until: Until, done: Done = 0
) -> Response:
    """Submit the failures that existed at the preview, for some seconds; offer to continue."""
    nonet, moment, query = site.nonet, instant(until), search.query(cursor="")
    stores = nonet.stores
    failures = await search.ended_filter(nonet, _failures(search), moment)
    async with site.changing(
        who, Action.RESUBMIT, f"all failures: {query}, ended until {moment:%F %T}"
    ):
        found = await resubmit_all(
            failures, nonet.client, stores.history, stores.dead_letters, cursor=search.cursor
        )
        if found.number:
            text = f"{found.number} tasks: {query}"
            await stores.events.log("tasks-resubmitted", actor(), text)
    done += found.number
    if found.cursor or found.problems:
        search = replace(search, cursor=found.cursor)
        said = {"done": done, "problems": found.problems, "refused": found.refused}
        return _page(request, "resubmit", search, moment, **said)
    text = f"Submitted {amount(done)} tasks again."
    return back(request, path_of(request, "tasks") + query, text)


def _page(
    request: Request, action: Which, search: Search, moment: datetime, **values: Any
) -> Response:
    """Show a preview; or, with `done`, how far the action is, with a button that continues it."""
    shown = {"done": None, "reason": "", "problems": (), "refused": 0, **values}
    until = round(moment.timestamp() * 1e6)
    return render(
        request, "bulk.html", action=action, search=search, moment=moment, until=until, **shown
    )


def _failures(search: Search) -> tuple[str, ...]:
    return (search.state,) if search.state in FAILED else tuple(FAILED)

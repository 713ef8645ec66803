"""The pages of live and of ended tasks: columns, saved filters, and arguments of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, get_args

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.errors import InvalidArgumentsError
from nonet.operate import history, tasks
from nonet.operate.history import EndedQuery, EndState
from nonet.operate.lists import Searched
from nonet.operate.tasks import LiveQuery, LiveState
from nonet.rules.permissions import Principal
from nonet.web.rendering import path_of, remember, remembered, render
from nonet.web.resources import filters
from nonet.web.routing import FormText
from nonet.web.site import Site, SiteOf, Viewer, ensure_searchable, may

router = APIRouter(include_in_schema=False)

Live = Annotated[LiveQuery, Query()]
Ended = Annotated[EndedQuery, Query()]
Revealer = Annotated[Principal, may(tasks.arguments_of)]
ListName = Literal["tasks", "history"]

# Columns, each a cell in _tasks.html: those that can be chosen, and by state those shown at first.
_COLUMNS: Mapping[ListName, tuple[str, ...]] = {
    "tasks": (
        *("state", "since", "note", "stream", "worker", "submitted", "running_for", "progress"),
        *("waiting_for", "blocker", "due", "attempt", "reason", "last_error"),
    ),
    "history": (
        *("state", "ended", "waited", "ran", "attempt", "ended_by", "error"),
        *("submitted", "stream", "reason"),
    ),
}
_ENDED = _COLUMNS["history"][:7]
_MIXED = ("state", "since", "note")
_BY_STATE: Mapping[str, tuple[str, ...]] = {
    "running": ("worker", "running_for", "progress", "attempt"),
    "waiting": ("waiting_for", "blocker"),
    "queued": ("stream", "waiting_for", "attempt"),
    "delayed": ("due", "attempt", "last_error"),
    "dying": ("worker", "reason", "last_error"),
}


_NOTHING: Searched[Any] = Searched(())


class Revealed(NamedTuple):
    """The arguments of tasks of a page, and the text that they contain."""

    arguments: Mapping[str, Any]
    text: str
    examined: int


@router.get("/tasks", name="tasks")
async def show_tasks(request: Request, site: SiteOf, who: Viewer, query: Live) -> Response:
    """Show live tasks."""
    return await _show(request, site, who, query)


@router.get("/history", name="history")
async def show_history(request: Request, site: SiteOf, who: Viewer, query: Ended) -> Response:
    """Show the tasks that ended last."""
    return await _show(request, site, who, query)


@router.post("/tasks/arguments", name="reveal_tasks")
async def reveal_tasks(
    request: Request, site: SiteOf, who: Revealer, query: Live, text: FormText = ""
) -> Response:
    """Show the arguments of live tasks, in this answer only."""
    return await _show(request, site, who, query, text)


@router.post("/history/arguments", name="reveal_history")
async def reveal_history(
    request: Request, site: SiteOf, who: Revealer, query: Ended, text: FormText = ""
) -> Response:
    """Show the arguments of ended tasks, in this answer only."""
    return await _show(request, site, who, query, text)


@router.post("/columns/{list}", name="choose_columns")
async def choose_columns(
    request: Request,
    who: Viewer,
    list: ListName,
    column: Annotated[tuple[str, ...], Form(max_length=30)] = (),
) -> Response:
    """Choose the columns of a list, for this browser; none: as at first."""
    answer = RedirectResponse(f"{path_of(request, list)}?{request.url.query}", 303)
    chosen = (name for name in _COLUMNS[list] if name in column)
    remember(request, answer, f"columns_{list}", ".".join(chosen))
    return answer


async def _show(
    request: Request,
    site: Site,
    who: Principal,
    query: LiveQuery | EndedQuery,
    text: str | None = None,
) -> Response:
    """Show a page of a list.

    Args:
        text: reveal the arguments of the tasks of the page that contain it; None: reveal nothing.
    """
    ensure_searchable(who, query.label, query.error)
    name: ListName = "history" if isinstance(query, EndedQuery) else "tasks"
    found, problem, revealed = _NOTHING, "", None
    try:
        if isinstance(query, EndedQuery):
            found = await site.read(history.find, site.stores, query)
        else:
            found = await site.read(tasks.find, site.stores, query)
    except InvalidArgumentsError as error:
        problem = str(error)
    if text is not None:
        ids = [item.id for item in found.items]
        shown = await site.perform(who, tasks.arguments_of, site.client, ids, text)
        revealed = Revealed(shown, text, len(ids))
        found = replace(found, items=[item for item in found.items if item.id in shown])
    state = query.state or ""
    chosen = remembered(request, f"columns_{name}").split(".")
    columns = [one for one in _COLUMNS[name] if one in chosen]
    usual = _ENDED if name == "history" else _BY_STATE.get(str(state), _MIXED)
    return render(
        request,
        "tasks.html",
        422 if problem else 200,
        found=found,
        query=query,
        problem=problem,
        revealed=revealed,
        list=name,
        is_ended=name == "history",
        columns=columns or list(usual),
        all_columns=_COLUMNS[name],
        saved=await filters.of(site, name),
        states=get_args(EndState if name == "history" else LiveState),
        classes=sorted(item.name for item in site.registry),
        now=await site.stores.broker.logical_now() if found.items else None,
    )

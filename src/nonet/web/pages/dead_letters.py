"""Dead letters: clusters of one cause, their letters, and changes of all that match."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from nonet.base.errors import UnknownTaskError
from nonet.rules.permissions import Action, Principal
from nonet.stores.sql.dead_letters import LetterFilter, Status
from nonet.web import letters, shown
from nonet.web.letters import WITHIN, WORDS, Row, Search, searched
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Site, SiteOf, Viewer, for_all_classes

router = APIRouter(include_in_schema=False)

_CLUSTERS = 50
_LETTERS = 50
_DEFAULT_RATE = 10
_Resubmitter = Annotated[Principal, for_all_classes(Action.RESUBMIT)]
_Discarder = Annotated[Principal, for_all_classes(Action.DISCARD)]
_Searched = Annotated[Search, Depends(searched)]
_UpTo = Annotated[Row, Form()]


@router.get("/dead-letters", name="dead_letters")
async def page(
    request: Request,
    site: SiteOf,
    who: Viewer,
    search: _Searched,
    view: str = "",
    start: Annotated[int, Query(ge=0, le=1_000_000, alias="from")] = 0,
    before: Row | None = None,
) -> Response:
    """Show clusters; or letters: of one cluster, of a task, or all."""
    problem = ""
    try:
        selection = search.selection(site.nonet.registry)
    except UnknownTaskError as error:
        problem, selection = str(error), LetterFilter(up_to=0)
    found = [] if problem else await letters.clusters(site, selection, search)
    common: dict[str, Any] = {
        "search": search,
        "problem": problem,
        "total": sum(cluster.count for cluster in found),
        "statuses": {status: sum(item.statuses[status] for item in found) for status in Status},
        "words": WORDS,
        "within": WITHIN,
        "classes": sorted(item.name for item in site.nonet.registry),
        "bulks": site.bulks.recent(),
    }
    if search.cluster or search.id or view == "letters":
        return await _letters(request, site, who, selection, common, before)
    return render(
        request,
        "dead_letters.html",
        422 if problem else 200,
        clusters=[letters.visible(item, who) for item in found[start : start + _CLUSTERS]],
        number=len(found),
        start=start,
        end=min(start + _CLUSTERS, len(found)),
        **common,
    )


async def _letters(
    request: Request,
    site: Site,
    who: Principal,
    selection: LetterFilter,
    common: dict[str, Any],
    before: int | None,
) -> Response:
    found, following = await letters.page_of(site, selection, _LETTERS, before)
    sample = None
    if selection.fingerprints and found:
        # The newest letter of the page has the traceback of them all.
        sample = shown.dead_letter(await letters.one(site, found[0].id, who, Action.READ), who)
    return render(
        request,
        "dead_letter_list.html",
        letters=[shown.dead_letter(item, who) for item in found],
        following=following,
        before=before,
        sample=sample,
        **common,
    )


@router.get("/dead-letters/resubmit", name="resubmit_letters")
async def preview_resubmission(
    request: Request, site: SiteOf, who: _Resubmitter, search: _Searched
) -> Response:
    """Show how many letters would be submitted again, before anything is changed."""
    selection = replace(search.selection(site.nonet.registry), status=Status.PENDING)
    number, exact = await letters.measured(site, selection)
    return render(
        request,
        "change_letters.html",
        action="resubmit",
        search=search,
        number=number,
        up_to=exact.up_to,
        rate=_DEFAULT_RATE,
    )


@router.post("/dead-letters/resubmit")
async def resubmit_all(
    request: Request,
    site: SiteOf,
    who: _Resubmitter,
    search: _Searched,
    up_to: _UpTo,
    rate: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Submit the letters again that existed at the preview."""
    selection = replace(search.selection(site.nonet.registry), up_to=up_to)
    bulk, _ = await letters.start_resubmission(
        site, who, selection, _rate_of(rate), letters.in_words_of(search)
    )
    text = f"Submitting {bulk.total} letters again. It goes on when you leave this page."
    return back(request, path_of(request, "dead_letters"), text)


def _rate_of(text: str) -> float | None:
    """Read a rate from a form.

    Raises:
        ValueError: it is not one.
    """
    if not text.strip():
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    return letters.checked_rate(rate)


@router.get("/dead-letters/discard", name="discard_letters")
async def preview_discarding(
    request: Request, site: SiteOf, who: _Discarder, search: _Searched
) -> Response:
    """Show how many letters would be deleted, before anything is changed."""
    number, exact = await letters.measured(site, search.selection(site.nonet.registry))
    return render(
        request,
        "change_letters.html",
        action="discard",
        search=search,
        number=number,
        up_to=exact.up_to,
    )


@router.post("/dead-letters/discard")
async def discard_all(
    request: Request,
    site: SiteOf,
    who: _Discarder,
    search: _Searched,
    up_to: _UpTo,
    note: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Delete the letters that existed at the preview."""
    selection = replace(search.selection(site.nonet.registry), up_to=up_to)
    bulk, _ = await letters.start_discarding(
        site, who, selection, note.strip(), letters.in_words_of(search)
    )
    text = f"Discarding {bulk.total} letters. It goes on when you leave this page."
    return back(request, path_of(request, "dead_letters"), text)


@router.post("/dead-letters/bulk/{id}/stop", name="stop_bulk")
async def stop(request: Request, site: SiteOf, who: _Resubmitter, id: str) -> Response:
    """Stop a change of many letters."""
    bulk = await letters.stop(site, who, id)
    text = f"Stopped it after {bulk.done} letters. The others are as they were."
    return back(request, path_of(request, "dead_letters"), text)

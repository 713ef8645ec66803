"""Dead letters: clusters of one cause, their letters, and changes of all that match."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from nonet.base.errors import UnknownTaskError
from nonet.stores.sql.dead_letters import LetterFilter, Status
from nonet.web import letters
from nonet.web.letters import WITHIN, WORDS, Row, Search
from nonet.web.pages.fields import Note
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Discarder, Resubmitter, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_CLUSTERS = 50
_LETTERS = 50
_DEFAULT_RATE = 10
_Searched = Annotated[Search, Depends()]
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
        return await _letters(request, site, selection, common, before)
    return render(
        request,
        "dead_letters.html",
        422 if problem else 200,
        clusters=found[start : start + _CLUSTERS],
        number=len(found),
        start=start,
        end=min(start + _CLUSTERS, len(found)),
        **common,
    )


async def _letters(
    request: Request,
    site: Site,
    selection: LetterFilter,
    common: dict[str, Any],
    before: int | None,
) -> Response:
    found, following = await letters.page_of(site, selection, _LETTERS, before)
    sample = None
    if selection.fingerprints and found:
        # The newest letter of the page has the traceback of them all.
        sample = await letters.one(site, found[0].id)
    return render(
        request,
        "dead_letter_list.html",
        letters=found,
        following=following,
        before=before,
        sample=sample,
        **common,
    )


@router.get("/dead-letters/resubmit", name="resubmit_letters")
async def preview_resubmission(
    request: Request, site: SiteOf, who: Resubmitter, search: _Searched
) -> Response:
    """Show how many letters would be submitted again, before anything is changed."""
    selection = replace(search.selection(site.nonet.registry), status=Status.PENDING)
    return await _preview(request, site, "resubmit", search, selection, rate=_DEFAULT_RATE)


async def _preview(
    request: Request, site: Site, action: str, search: Search, selection: LetterFilter, **more: Any
) -> Response:
    number, exact = await letters.measured(site, selection)
    known = {"number": number, "up_to": exact.up_to, **more}
    return render(request, "change_letters.html", action=action, search=search, **known)


@router.post("/dead-letters/resubmit")
async def resubmit_all(
    request: Request,
    site: SiteOf,
    who: Resubmitter,
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
    with suppress(ValueError):
        if 0.001 <= (rate := float(text)) <= 1_000_000:
            return rate
    raise ValueError("rate: a number of tasks per second, from 0.001; leave it out for no rate")


@router.get("/dead-letters/discard", name="discard_letters")
async def preview_discarding(
    request: Request, site: SiteOf, who: Discarder, search: _Searched
) -> Response:
    """Show how many letters would be deleted, before anything is changed."""
    selection = search.selection(site.nonet.registry)
    return await _preview(request, site, "discard", search, selection)


@router.post("/dead-letters/discard")
async def discard_all(
    request: Request, site: SiteOf, who: Discarder, search: _Searched, up_to: _UpTo, note: Note = ""
) -> Response:
    """Delete the letters that existed at the preview."""
    selection = replace(search.selection(site.nonet.registry), up_to=up_to)
    bulk, _ = await letters.start_discarding(
        site, who, selection, note.strip(), letters.in_words_of(search)
    )
    text = f"Discarding {bulk.total} letters. It goes on when you leave this page."
    return back(request, path_of(request, "dead_letters"), text)


@router.post("/dead-letters/bulk/{id}/stop", name="stop_bulk")
async def stop(request: Request, site: SiteOf, who: Resubmitter, id: str) -> Response:
    """Stop a change of many letters."""
    bulk = await letters.stop(site, who, id)
    text = f"Stopped it after {bulk.done} letters. The others are as they were."
    return back(request, path_of(request, "dead_letters"), text)

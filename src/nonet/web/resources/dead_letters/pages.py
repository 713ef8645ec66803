"""The pages of dead letters: clusters of one cause, their letters, one letter, changes of many."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NotFoundError, UnknownTaskError
from nonet.base.plain import plain
from nonet.operate.dead_letters import ClusterPage, LetterDetails, LetterQuery, LetterSelection
from nonet.operate.lists import Page
from nonet.rules.findings import remedies
from nonet.rules.letters import Status
from nonet.tasks.secrecy import MASK
from nonet.web.rendering import back, path_of, render
from nonet.web.resources import filters
from nonet.web.resources.dead_letters import letters
from nonet.web.resources.dead_letters.letters import Deleter, Doer, Noter, Revealer, Row
from nonet.web.routing import FormText
from nonet.web.site import Discarder, Resubmitter, Site, SiteOf, Viewer

pages = APIRouter(include_in_schema=False)

_DEFAULT_RATE = 10
_WITHIN = {"1h": "hour", "1d": "day", "7d": "week"}
_PATH = "/dead-letters"
_Selected = Annotated[LetterSelection, Query()]


class _Shown(LetterQuery):
    """What the page of the lists shows: clusters, or letters."""

    view: Literal["", "letters"] = ""


@pages.get(_PATH, name="dead_letters")
async def show_letters(
    request: Request, site: SiteOf, who: Viewer, query: Annotated[_Shown, Query()]
) -> Response:
    """Show clusters; or letters: of one cluster, of a task, or all."""
    asked = LetterQuery(**query.model_dump(exclude={"view"}))
    values: dict[str, Any] = {"problem": "", "found": Page([]), "sample": None}
    try:
        values["clusters"] = await letters.clusters(site, asked.model_copy(update={"cursor": ""}))
        if query.cluster or query.task_id or query.view:
            values["found"] = found = await letters.find(site, asked)
            if query.cluster and found.items:
                # The newest letter of the page has the traceback of them all.
                values["sample"] = await letters.get(site, found.items[0].id)
        else:
            values["found"] = await letters.clusters(site, asked)
    except UnknownTaskError as error:
        values |= {"problem": str(error), "clusters": ClusterPage([])}
    is_list = query.cluster or query.task_id or query.view
    return render(
        request,
        "dead_letter_list.html" if is_list else "dead_letters.html",
        422 if values["problem"] else 200,
        query=query,
        selection=LetterSelection.model_validate(query.given),
        statuses=list(Status),
        saved=await filters.of(site, "dead-letters"),
        within=_WITHIN,
        classes=sorted(item.name for item in site.registry),
        bulks=await site.read(site.bulks.recent),
        **values,
    )


@pages.get(f"{_PATH}/resubmit", name="resubmit_letters")
async def preview_resubmission(
    request: Request, site: SiteOf, who: Resubmitter, query: _Selected
) -> Response:
    """Show how many letters would be submitted again, before anything is changed."""
    return await _preview(request, site, query, "resubmit", status=Status.PENDING)


@pages.get(f"{_PATH}/discard", name="discard_letters")
async def preview_discarding(
    request: Request, site: SiteOf, who: Discarder, query: _Selected
) -> Response:
    """Show how many letters would be deleted, before anything is changed."""
    return await _preview(request, site, query, "discard")


async def _preview(
    request: Request, site: Site, query: LetterSelection, action: str, **more: Any
) -> Response:
    number, exact = await letters.measured(site, query.filter(lambda: site.registry, **more))
    values: dict[str, Any] = {"number": number, "up_to": exact.up_to, "rate": _DEFAULT_RATE}
    if query.cluster and number:
        found = await letters.find(site, LetterQuery(cluster=query.cluster, limit=1))
        values["sample"] = next(iter(found.items), None)
    return render(
        request, "change_letters.html", **{"sample": None, **values}, action=action, query=query
    )


@pages.post(f"{_PATH}/resubmit")
async def resubmit_all(
    request: Request,
    site: SiteOf,
    who: Resubmitter,
    query: _Selected,
    up_to: Annotated[Row, Form()],
    rate: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Submit the letters again that existed at the preview."""
    exact = query.filter(lambda: site.registry, status=Status.PENDING, up_to=up_to)
    number, exact = await letters.measured(site, exact)
    words = await letters.in_words(site, query)
    bulk = await letters.resubmit_many(site, who, exact, number, words, _rate_of(rate))
    text = f"Submitting {bulk.total} letters again. It continues when you leave this page."
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


@pages.post(f"{_PATH}/discard")
async def discard_all(
    request: Request,
    site: SiteOf,
    who: Discarder,
    query: _Selected,
    up_to: Annotated[Row, Form()],
    why: FormText = "",
) -> Response:
    """Delete the letters that existed at the preview."""
    number, exact = await letters.measured(site, query.filter(lambda: site.registry, up_to=up_to))
    words = await letters.in_words(site, query)
    bulk = await letters.discard_many(site, who, exact, number, words, why.strip())
    text = f"Discarding {bulk.total} letters. It continues when you leave this page."
    return back(request, path_of(request, "dead_letters"), text)


@pages.post(f"{_PATH}/bulk/{{id}}/stop", name="stop_bulk")
async def stop(request: Request, site: SiteOf, who: Resubmitter, id: str) -> Response:
    """Stop a change of many letters."""
    bulk = await letters.stop(site, who, id)
    text = f"It stops within a second, after {bulk.done} letters. The others stay as they are."
    return back(request, path_of(request, "dead_letters"), text)


@pages.get(f"{_PATH}/{{row:int}}", name="dead_letter")
async def show_letter(request: Request, site: SiteOf, row: Row, who: Viewer) -> Response:
    """Show a letter."""
    return await _render(request, site, await letters.get(site, row))


async def _render(
    request: Request, site: Site, letter: LetterDetails, revealed: dict[str, Any] | None = None
) -> Response:
    repeat, successor = letter.resubmitted_as, None
    if repeat and letter.pipeline is None:
        found = await letters.find(site, LetterQuery(task_id=repeat, limit=1))
        successor = found.items[0].id if found.items else None
    return render(
        request,
        "dead_letter.html",
        letter=letter,
        successor=successor,
        why_not_again=_why_not_again(letter, site),
        revealed=revealed,
        mask=MASK,
    )


def _why_not_again(letter: LetterDetails, site: Site) -> str:
    """Return why the letter cannot be submitted again from here; empty if it perhaps can."""
    if not letter.task_class:
        return "its bytes are no task: it can only be discarded"
    if letter.status == Status.FAILED:
        return "its repeat died as well, and has a letter of its own"
    if letter.pipeline is None and site.registry.find(letter.task_class) is None:
        return f"this task-web does not know {letter.task_class}: start it with --tasks MODULE"
    return ""


@pages.post(f"{_PATH}/{{row:int}}/resubmit", name="resubmit_letter")
async def resubmit(
    request: Request, site: SiteOf, row: Row, who: Doer, again: Annotated[bool, Form()] = False
) -> Response:
    """Submit a letter again."""
    letter = await letters.get(site, row)
    text = f"Submitted it again, as task {await letters.again(site, who, row, again)}."
    if letter.pipeline is not None:
        text = f"Row {letter.row_key} of pipeline {letter.pipeline} is due again."
    return back(request, path_of(request, "dead_letter", row=row), text)


@pages.post(f"{_PATH}/{{row:int}}/discard", name="discard_letter")
async def discard(
    request: Request, site: SiteOf, row: Row, who: Deleter, why: FormText = ""
) -> Response:
    """Delete a letter."""
    await letters.discard(site, who, row, why.strip())
    return back(request, path_of(request, "dead_letters"), f"Discarded dead letter {row}.")


@pages.post(f"{_PATH}/{{row:int}}/note", name="annotate_letter")
async def annotate(
    request: Request, site: SiteOf, row: Row, who: Noter, note: FormText = ""
) -> Response:
    """Write a note on a letter."""
    await letters.annotate(site, who, row, note.strip())
    return back(request, path_of(request, "dead_letter", row=row), "Saved the note.")


@pages.post(f"{_PATH}/{{row:int}}/reveal", name="reveal_letter")
async def reveal(request: Request, site: SiteOf, row: Row, who: Revealer) -> Response:
    """Show the arguments, and the command that runs the task here, in this answer only."""
    letter = await letters.get(site, row)
    revealed: dict[str, Any] = {"arguments": None, "command": "", "is_masked": False, "why": ""}
    try:
        arguments = plain(await letters.reveal(site, who, row))
        revealed["arguments"] = json.dumps(arguments, indent=2, ensure_ascii=False)
        revealed["command"] = remedies.of_call(letter.task_class, arguments)
        revealed["is_masked"] = MASK in json.dumps(arguments)
    except NotFoundError as error:
        revealed["why"] = str(error)
    return await _render(request, site, letter, revealed)

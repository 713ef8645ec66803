"""One dead letter: everything that is kept of it, and what can be done with it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from nonet.base.plain import plain
from nonet.operate.dead_letters import arguments_of, why_unknown
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action
from nonet.stores.sql.dead_letters import DeadLetter, Status
from nonet.tasks.secrecy import MASK, mask_names
from nonet.web import letters
from nonet.web.letters import Row
from nonet.web.pages.fields import Note
from nonet.web.pages.rendering import back, instant, path_of, render
from nonet.web.site import Discarder, Resubmitter, Revealer, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)


@router.get("/dead-letters/{row:int}", name="dead_letter")
async def page(request: Request, site: SiteOf, row: Row, who: Viewer) -> Response:
    """Show a letter."""
    return await _render(request, site, await letters.one(site, row))


async def _render(request: Request, site: Site, letter: DeadLetter, **more: Any) -> Response:
    repeat = letter.resubmitted_as
    return render(
        request,
        "dead_letter.html",
        letter=letter,
        labels=mask_names(letter.labels),
        words=letters.WORDS,
        instant=instant,
        successor=await letters.row_of_task(site, repeat)
        if repeat and letter.pipeline is None
        else None,
        why_not_again=_why_not_again(letter, site),
        **{"revealed": None, **more},
    )


def _why_not_again(letter: DeadLetter, site: Site) -> str:
    """Return why the letter cannot be submitted again from here; empty if it perhaps can."""
    if not letter.task_class:
        return "its bytes are no task: it can only be discarded"
    if letter.status is Status.FAILED:
        return "its repeat died as well, and has a letter of its own"
    if letter.pipeline is None and site.nonet.registry.find(letter.task_class) is None:
        return f"this task-web does not know {letter.task_class}: start it with --tasks MODULE"
    return ""


@router.post("/dead-letters/{row:int}/resubmit", name="resubmit_letter")
async def resubmit(
    request: Request,
    site: SiteOf,
    row: Row,
    who: Resubmitter,
    again: Annotated[bool, Form()] = False,
) -> Response:
    """Submit a letter again."""
    letter = await letters.one(site, row)
    id = await letters.resubmit(site, row, who, again=again)
    text = f"Submitted it again, as task {id}."
    if letter.pipeline is not None:
        text = f"Row {letter.row_key} of pipeline {letter.pipeline} is due again."
    return back(request, path_of(request, "dead_letter", row=row), text)


@router.post("/dead-letters/{row:int}/discard", name="discard_letter")
async def discard(
    request: Request, site: SiteOf, row: Row, who: Discarder, note: Note = ""
) -> Response:
    """Delete a letter."""
    await letters.discard(site, row, who, note.strip())
    return back(request, path_of(request, "dead_letters"), f"Discarded dead letter {row}.")


@router.post("/dead-letters/{row:int}/note", name="annotate_letter")
async def annotate(
    request: Request, site: SiteOf, row: Row, who: Resubmitter, note: Note = ""
) -> Response:
    """Write a note on a letter."""
    await letters.annotate(site, row, who, note.strip())
    return back(request, path_of(request, "dead_letter", row=row), "Saved the note.")


@router.post("/dead-letters/{row:int}/reveal", name="reveal_letter")
async def reveal(request: Request, site: SiteOf, row: Row, who: Revealer) -> Response:
    """Show the arguments, and the command that runs the task here, in this answer only."""
    letter = await letters.one(site, row)
    async with site.changing(who, Action.REVEAL, f"arguments of dead letter {row}"):
        arguments = arguments_of(letter, site.nonet.registry)
    revealed: dict[str, Any] = {"arguments": None, "command": "", "is_masked": False}
    if arguments is None:
        revealed["why"] = why_unknown(letter, site.nonet.client.cipher)
    else:
        plainly = plain(arguments)
        revealed = {
            "arguments": json.dumps(plainly, indent=2, ensure_ascii=False),
            "command": remedies.of_call(letter.task_class, plainly),
            "is_masked": MASK in json.dumps(plainly),
        }
    return await _render(request, site, letter, revealed=revealed, mask=MASK)

"""The form that submits a task of a class, or a task again with other arguments."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from nonet.base.errors import ConflictError, NonetError
from nonet.base.plain import plain
from nonet.operate import dead_letters, history, tasks
from nonet.operate.argument_fields import Draft
from nonet.operate.task_details import TaskReport
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action, Principal
from nonet.tasks.secrecy import masked_arguments
from nonet.web.error_responses import status_of
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.tasks.submitting import NewTask, made
from nonet.web.routing import Text
from nonet.web.site import Site, SiteOf, Submitter, ensure

router = APIRouter(include_in_schema=False)

_ARGUMENT = "argument."  # the names of fields with arguments begin with this


class Asked(BaseModel):
    """What the form submits: a new task of a class, or a task again."""

    task: Text = ""
    again: Text = ""


async def read(site: Site, id: str) -> TaskReport:
    """Return a task that can be submitted again.

    Raises:
        ConflictError: it cannot.
    """
    report = await site.read(tasks.details, site.client, id)
    if problem := report.why_not_again(site.registry):
        raise ConflictError(f"task {id} cannot be submitted again: {problem}")
    return report


async def submit_again(
    site: Site,
    who: Principal,
    report: TaskReport,
    once: str,
    changes: Mapping[str, Any] | None = None,
) -> str:
    """Submit a task again, and return the id: a live one as a copy, a failed one at most once.

    Args:
        once: identifies the request for a copy.
    """
    client, id = site.client, report.status.id
    if (letter := report.letter) is not None:
        new = await site.perform(who, dead_letters.resubmit, client, letter.id, changes=changes)
    elif report.is_live:
        new = await site.perform(who, tasks.copy, client, id, once, changes)
    else:
        new = await site.perform(who, history.resubmit, client, id, changes)
    return str(new)


@router.get("/submit", name="submit_form")
async def show(
    request: Request, site: SiteOf, who: Submitter, asked: Annotated[Asked, Query()]
) -> Response:
    """Show the fields of a class; or of a task, with its arguments if the caller may see them."""
    if not (asked.task or asked.again):
        return _render(request, asked)
    draft, report = await _draft(site, who, asked)
    if draft.texts:
        await site.perform(who, tasks.arguments, site.client, asked.again)
    return _render(request, asked, draft, report, texts=draft.texts)


@router.post("/submit")
async def submit(
    request: Request, site: SiteOf, who: Submitter, asked: Annotated[Asked, Query()]
) -> Response:
    """Submit the task; or only check it, and show the command that does the same."""
    sent, texts = await fields_in(request)
    draft, report = await _draft(site, who, asked)
    values, once = draft.typed(texts), sent.get("once", "")
    problems, problem, status = draft.problems(values), "", 422
    if not problems and "check" not in sent:
        try:
            id, text = await _submitted(site, who, draft, report, values, once)
            return back(request, path_of(request, "task", id=id), text)
        except NonetError as error:
            problem, status = str(error), status_of(error)
            if status == 409:  # the token is used up; after a lost answer it finds the task
                once = secrets.token_hex(8)
    found: dict[str, Any] = {"texts": texts, "problems": problems, "problem": problem, "once": once}
    if problems or problem:
        return _render(request, asked, draft, report, status, **found)
    command = _command(draft, report, values)
    return _render(request, asked, draft, report, command=command, is_good=True, **found)


async def fields_in(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of a form; and those of arguments by the name of the argument."""
    form = await request.form()
    sent = {name: str(value).replace("\r\n", "\n") for name, value in form.items()}
    found = {name: text for name, text in sent.items() if name.startswith(_ARGUMENT)}
    return sent, {name.removeprefix(_ARGUMENT): text for name, text in found.items()}


async def _draft(site: Site, who: Principal, asked: Asked) -> tuple[Draft, TaskReport | None]:
    if not asked.again:
        return Draft(site.registry.get(asked.task)), None
    ensure(site, who, Action.RESUBMIT)
    report = await read(site, asked.again)
    stored = report.envelope.args if report.envelope else {}
    return Draft(site.registry.get(report.status.name), stored, who.may(Action.REVEAL)), report


async def _submitted(
    site: Site,
    who: Principal,
    draft: Draft,
    report: TaskReport | None,
    values: dict[str, Any],
    once: str,
) -> tuple[str, str]:
    """Submit a draft; return the id of the task, and what to tell the user."""
    if report is not None:
        id = await submit_again(site, who, report, once, values)
        return id, f"Submitted task {report.status.id} again: this is the new task."
    new = NewTask(task=draft.task_class.name, arguments=values)
    (one,) = await made(site, who, [new], once or None, new)
    return one.id, "Submitted it." if one.created else "It was submitted before: this is the task."


def _command(draft: Draft, report: TaskReport | None, values: Mapping[str, Any]) -> str:
    """Return the command that does the same; empty: none does."""
    masked = plain(masked_arguments(values, draft.cls))
    if report is None:
        return remedies.of_call(draft.task_class.name, masked, "submit")
    if report.letter is not None:
        return remedies.of_changes("task-run dlq resubmit", str(report.letter.id), masked)
    id = report.status.id
    return "" if report.is_live else remedies.of_changes("task-run resubmit", id, masked)


def _render(
    request: Request,
    asked: Asked,
    draft: Draft | None = None,
    report: TaskReport | None = None,
    status: int = 200,
    **values: Any,
) -> Response:
    blank = {"texts": {}, "problems": {}, "problem": "", "command": "", "is_good": False}
    values = {**blank, "once": secrets.token_hex(8), **values}
    address = asked.model_dump(exclude_defaults=True)
    return render(
        request, "submit.html", status, draft=draft, report=report, asked=address, **values
    )

"""The form that submits a task of a class, or a task again with other arguments."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from nonet.base.errors import ConflictError, NonetError
from nonet.base.plain import plain
from nonet.operate import dead_letters, history, tasks
from nonet.operate.argument_fields import ArgumentField, fields_of, problems_of, shown, typed
from nonet.operate.task_details import TaskReport
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action, Principal
from nonet.tasks.registry import TaskClass
from nonet.tasks.secrecy import masked_arguments, secrets_in
from nonet.web.error_responses import status_of
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.tasks.submitting import NewTask, made
from nonet.web.routing import Text
from nonet.web.site import Site, SiteOf, Submitter, ensure

router = APIRouter(include_in_schema=False)

ARGUMENT = "argument."
"""The names of fields with arguments begin with this."""
_FIRST = "give this secret again: a task with changes does not keep it"


class Asked(BaseModel):
    """What the form submits: a new task of a class, or a task again."""

    task: Text = ""
    again: Text = ""


@dataclass(frozen=True)
class Draft:
    """A task before it is submitted.

    Attributes:
        task_class: its class.
        fields: its arguments.
        report: the task that is submitted again; None: it is a new one.
        shown: what the caller may see of the arguments of that task, as it would be typed.
    """

    task_class: TaskClass
    fields: list[ArgumentField]
    report: TaskReport | None = None
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored(self) -> Mapping[str, Any]:
        """The arguments of the task that is submitted again."""
        return self.report.envelope.args if self.report and self.report.envelope else {}

    def typed(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments that were typed; those that differ, of a task that is repeated."""
        if self.report is None:
            return typed(self.fields, texts)
        changed = {name: text for name, text in texts.items() if text != self.shown.get(name, "")}
        return typed(self.fields, {name: text for name, text in changed.items() if text})

    def problems(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return what is wrong with typed arguments, by name."""
        kept = secrets_in(self.stored, self.task_class.cls) - values.keys() if values else ()
        found = problems_of(self.task_class, {**self.stored, **values})
        return found | dict.fromkeys(kept, _FIRST)

    def command(self, values: Mapping[str, Any]) -> str:
        """Return the command that does the same; empty: none does."""
        masked = plain(masked_arguments(values, self.task_class.cls))
        report = self.report
        if report is None:
            return remedies.of_call(self.task_class.name, masked, "submit")
        if report.letter is not None:
            return remedies.of_changes("task-run dlq resubmit", str(report.letter.id), masked)
        if report.is_live:
            return ""
        return remedies.of_changes("task-run resubmit", report.status.id, masked)


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
        return str(
            await site.perform(who, dead_letters.resubmit, client, letter.id, changes=changes)
        )
    if report.is_live:
        return str(await site.perform(who, tasks.copy, client, id, once, changes))
    return str(await site.perform(who, history.resubmit, client, id, changes))


@router.get("/submit", name="submit_form")
async def show(
    request: Request, site: SiteOf, who: Submitter, asked: Annotated[Asked, Query()]
) -> Response:
    """Show the fields of a class; or of a task, with its arguments if the caller may see them."""
    if not (asked.task or asked.again):
        return _render(request, site, asked, None)
    draft = await _draft(site, who, asked)
    if draft.shown:
        await site.perform(who, tasks.arguments, site.client, asked.again)
    return _render(request, site, asked, draft, texts=draft.shown)


@router.post("/submit")
async def submit(
    request: Request, site: SiteOf, who: Submitter, asked: Annotated[Asked, Query()]
) -> Response:
    """Submit the task; or only check it, and show the command that does the same."""
    sent = {name: str(value) for name, value in (await request.form()).items()}
    texts = texts_in(sent)
    draft = await _draft(site, who, asked)
    values = draft.typed(texts)
    problems, problem, status = draft.problems(values), "", 422
    if not problems and "check" not in sent:
        try:
            id, text = await _submitted(site, who, draft, values, sent.get("once", ""))
            return back(request, path_of(request, "task", id=id), text)
        except NonetError as error:
            problem, status = str(error), status_of(error)
    is_good = not (problems or problem)
    # After a lost answer, the same token finds the task. A conflict used it up.
    once = secrets.token_hex(8) if status == 409 else sent.get("once", "")
    return _render(
        request,
        site,
        asked,
        draft,
        200 if is_good else status,
        texts={item.name: texts.get(item.name, "") for item in draft.fields if not item.is_secret},
        problems=problems,
        problem=problem,
        command=draft.command(values) if is_good else "",
        is_good=is_good,
        once=once,
    )


def texts_in(sent: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of arguments in a form, by name."""
    found = {name: text for name, text in sent.items() if name.startswith(ARGUMENT)}
    return {name.removeprefix(ARGUMENT): text for name, text in found.items()}


async def _draft(site: Site, who: Principal, asked: Asked) -> Draft:
    if not asked.again:
        task_class = site.registry.get(asked.task)
        return Draft(task_class, fields_of(task_class))
    ensure(site, who, Action.RESUBMIT)
    report = await read(site, asked.again)
    task_class = site.registry.get(report.status.name)
    draft = Draft(task_class, fields_of(task_class), report)
    secret = secrets_in(draft.stored, task_class.cls)
    fields = [
        replace(item, is_secret=item.is_secret or item.name in secret) for item in draft.fields
    ]
    known = shown(task_class, fields, draft.stored) if who.may(Action.REVEAL) else {}
    return replace(draft, fields=fields, shown=known)


async def _submitted(
    site: Site, who: Principal, draft: Draft, values: dict[str, Any], once: str
) -> tuple[str, str]:
    """Submit a draft; return the id of the task, and what to tell the user."""
    if draft.report is not None:
        id = await submit_again(site, who, draft.report, once, values)
        return id, f"Submitted task {draft.report.status.id} again: this is the new task."
    new = NewTask(task=draft.task_class.name, arguments=values)
    (one,) = await made(site, who, [new], once or None, new)
    return one.id, "Submitted it." if one.created else "It was submitted before: this is the task."


def _render(
    request: Request,
    site: Site,
    asked: Asked,
    draft: Draft | None,
    status: int = 200,
    **values: Any,
) -> Response:
    blank: dict[str, Any] = {"texts": {}, "problems": {}, "problem": "", "command": ""}
    blank |= {"is_good": False, "once": secrets.token_hex(8)}
    return render(
        request,
        "submit.html",
        status,
        draft=draft,
        asked=asked.model_dump(exclude_defaults=True),
        classes=sorted(item.name for item in site.registry),
        **{**blank, **values},
    )

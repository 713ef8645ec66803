"""One task: its life, why it does not run, and what can be done with it."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.actor import who as actor
from nonet.base.errors import ConflictError, NotFoundError
from nonet.base.plain import plain
from nonet.operate import delayed, tasks
from nonet.operate.history import resubmit_ended
from nonet.operate.task_details import TaskReport, arguments_of, submit_copy, task_report
from nonet.rules.findings import remedies
from nonet.rules.findings.explanation import Explanation, Facts
from nonet.rules.permissions import Action, Principal
from nonet.tasks.secrecy import MASK, mask_names, masked_result
from nonet.web import shown
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Canceller, Resubmitter, Revealer, Scheduler, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_SECONDS = 1.0
_STEP_SECONDS = 30.0
Reason = Annotated[str, Form(max_length=200)]


async def read(site: Site, id: str) -> TaskReport:
    """Read a task, at most once a second for all viewers.

    Raises:
        NotFoundError: nothing is known of it.
    """
    nonet = site.nonet
    has_sql = nonet.settings.may_have_sql()
    source = partial(task_report, id, nonet.client, nonet.stores, may_have_sql=has_sql)
    return await site.shared.read(("task", id), _SECONDS, source)


async def _why(
    site: Site, report: TaskReport, who: Principal
) -> tuple[Explanation | None, Facts | None]:
    """Explain a live task; it may have ended by now."""
    if report.is_live:
        with suppress(NotFoundError):
            return await shown.why(site, report.status.id, who)
    return None, None


async def _workflow_of(site: Site, id: str) -> str:
    """Return the id of the workflow whose step a task is or was, or an empty text."""
    read = partial(site.nonet.stores.workflows.workflow_of, id)
    return await site.shared.read(("workflow of", id), _STEP_SECONDS, read) if ":" in id else ""


@router.get("/tasks/{id:path}", name="task")
async def page(request: Request, site: SiteOf, id: str, who: Viewer) -> Response:
    """Show a task."""
    try:
        report = await read(site, id)
    except NotFoundError as error:
        if await site.nonet.stores.workflows.exists(id):
            return RedirectResponse(path_of(request, "workflow", id=id), 303)
        return render(request, "task_missing.html", 404, id=id, problem=str(error))
    if not report.status.name and await site.nonet.stores.workflows.exists(id):
        return RedirectResponse(path_of(request, "workflow", id=id), 303)
    return await _render(request, site, report, who)


async def _render(
    request: Request, site: Site, report: TaskReport, who: Principal, **more: Any
) -> Response:
    why, facts = await _why(site, report, who)
    registry = site.nonet.registry
    return render(
        request,
        "task.html",
        report=report,
        task=report.status,
        steps=report.timeline.steps,
        why=why,
        facts=facts,
        workflow=await _workflow_of(site, report.status.id),
        why_not_again=report.why_not_again(registry),
        why_no_call=report.problem if report.envelope is None else "",
        labels=mask_names(report.envelope.labels) if report.envelope else {},
        once=secrets.token_hex(8),
        now=await site.nonet.broker.logical_now(),
        **{"revealed": None, **more},
    )


@router.post("/tasks/{id:path}/cancel", name="cancel_task")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: Reason = ""
) -> Response:
    """Cancel a task in whatever state it is."""
    path = path_of(request, "task", id=id)
    try:
        await site.perform(who, tasks.cancel, site.nonet.client, id, reason)
    except ConflictError as error:
        return back(request, path, str(error), "bad")
    return back(request, path, "Cancelled it. If it runs, its worker ends it within seconds.")


@router.post("/tasks/{id:path}/hasten", name="hasten_task")
async def hasten(request: Request, site: SiteOf, id: str, who: Scheduler) -> Response:
    """Make a delayed task due now."""
    found = await site.perform(who, delayed.hasten, site.nonet.stores, [id])
    path = path_of(request, "task", id=id)
    if not found.changed:
        return back(request, path, "; ".join(found.problems("delayed")), "bad")
    return back(request, path, "It is due now.")


@router.post("/tasks/{id:path}/again", name="resubmit_task")
async def again(
    request: Request,
    site: SiteOf,
    id: str,
    who: Resubmitter,
    once: Annotated[str, Form(min_length=8, max_length=64)],
) -> Response:
    """Submit a task again: a live one as a copy, a failed one at most once."""
    report = await read(site, id)
    nonet = site.nonet
    async with site.changing(who, Action.RESUBMIT, f"task {id}"):
        if problem := report.why_not_again(nonet.registry):
            raise ConflictError(f"task {id} cannot be submitted again: {problem}")
        if report.letter is not None:
            handle = await nonet.resubmit(report.letter.id)
        elif not report.is_live:
            stores = nonet.stores
            handle = await resubmit_ended(id, nonet.client, stores.history, stores.dead_letters)
            await stores.events.log("tasks-resubmitted", actor(), f"task {id} as {handle}")
        else:
            assert report.envelope is not None  # or `why_not_again` says so
            namespace = nonet.settings.namespace
            handle = await submit_copy(id, once, report.envelope, nonet.client, namespace)
    path = path_of(request, "task", id=str(handle))
    return back(request, path, f"Submitted task {id} again: this is the new task.")


@router.post("/tasks/{id:path}/reveal", name="reveal_task")
async def reveal(request: Request, site: SiteOf, id: str, who: Revealer) -> Response:
    """Show arguments, result and the command that runs the task here, in this answer only."""
    report = await read(site, id)
    async with site.changing(who, Action.REVEAL, f"arguments and result of task {id}"):
        revealed = _revealed(site, report)
    return await _render(request, site, report, who, revealed=revealed)


def _revealed(site: Site, report: TaskReport) -> dict[str, Any]:
    registry = site.nonet.registry
    task_class = registry.find(report.status.name)
    arguments, is_masked = arguments_of(report, registry)
    result = report.result
    has_result = result is not None and report.status.state == "done" and not result.note
    shown_result = (
        masked_result(result.value, task_class.cls if task_class else None)
        if (result is not None and has_result)
        else None
    )
    return {
        "arguments": None if arguments is None else _json(arguments),
        "is_masked": is_masked,
        "mask": MASK,
        "has_result": has_result,
        "result": _json(shown_result),
        "command": ""
        if arguments is None
        else remedies.of_call(report.status.name, plain(arguments)),
    }


def _json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False)

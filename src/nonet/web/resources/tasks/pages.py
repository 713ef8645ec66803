"""The pages of tasks: one task with its actions, and the one that finds an id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.errors import ConflictError, NotFoundError
from nonet.base.plain import plain
from nonet.operate import delayed, history, logs, tasks
from nonet.operate.logs import AttemptLog
from nonet.operate.task_details import TaskReport
from nonet.rules.findings import remedies
from nonet.rules.findings.explanation import Explanation, Facts
from nonet.rules.permissions import Action, Principal
from nonet.rules.spans import Span
from nonet.tasks.secrecy import MASK, mask_names
from nonet.web.bars import axis
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.tasks import form, lists, many
from nonet.web.routing import FormText, Text
from nonet.web.site import Site, SiteOf, Viewer, may

pages = APIRouter(include_in_schema=False)
pages.routes.extend([*lists.router.routes, *many.router.routes, *form.router.routes])

_STEP_SECONDS = 30.0
Canceller = Annotated[Principal, may(tasks.cancel)]
Resubmitter = Annotated[Principal, may(history.resubmit)]
Revealer = Annotated[Principal, may(tasks.arguments)]
Hastener = Annotated[Principal, may(delayed.hasten)]


@pages.get("/find", name="find")
async def find(request: Request, site: SiteOf, who: Viewer, id: Text) -> Response:
    """Open the page of a task, group or workflow."""
    path = await _path_of_id(request, site, id.strip())
    if path:
        return RedirectResponse(path, 303)
    problem = f"no task, group or workflow has the id {id}"
    return render(request, "task_missing.html", 404, id=id, problem=problem)


async def _path_of_id(request: Request, site: Site, id: str) -> str:
    """Return the path of the page of a task, group or workflow; empty if none is known."""
    stores = site.stores
    if await stores.workflows.exists(id):
        return path_of(request, "workflow", id=id)
    reads = (
        ("task", site.nonet.status),
        ("group", stores.groups.status),
        ("task", stores.history.find),
    )
    for page, read in reads:
        with suppress(NotFoundError):
            if await read(id) is not None:
                return path_of(request, page, id=id)
    return ""


@pages.get("/tasks/{id:path}", name="task")
async def show_task(request: Request, site: SiteOf, id: str, who: Viewer) -> Response:
    """Show a task."""
    report, problem = None, ""
    try:
        report = await site.read(tasks.details, site.client, id)
    except NotFoundError as error:
        problem = str(error)
    if report is not None and report.status.name:
        return await _render(request, site, report, who)
    if await site.stores.workflows.exists(id):
        return RedirectResponse(path_of(request, "workflow", id=id), 303)
    if report is None:
        return render(request, "task_missing.html", 404, id=id, problem=problem)
    return await _render(request, site, report, who)


async def _render(
    request: Request, site: Site, report: TaskReport, who: Principal, **more: Any
) -> Response:
    explained, facts = await _explained(site, report, who)
    now = await site.nonet.broker.logical_now()
    attempts: dict[int, list[Span]] = {}
    for span in report.timeline.spans:
        attempts.setdefault(span.attempt, []).append(span)
    return render(
        request,
        "task.html",
        report=report,
        task=report.status,
        why=explained,
        facts=facts,
        logged=await _logged(site, report.status.id),
        workflow=await _workflow_of(site, report.status.id),
        why_not_again=report.why_not_again(site.registry),
        labels=mask_names(report.envelope.labels) if report.envelope else {},
        once=secrets.token_hex(8),
        now=now,
        attempts=attempts,
        axis=axis(list(attempts.values()), now),
        **{"revealed": None, **more},
    )


async def _explained(
    site: Site, report: TaskReport, who: Principal
) -> tuple[Explanation | None, Facts | None]:
    """Explain a live task; it may have ended by now."""
    if report.is_live:
        with suppress(NotFoundError):
            return await site.explain(report.status.id, who)
    return None, None


async def _logged(site: Site, id: str) -> Sequence[AttemptLog]:
    """Return what the attempts of a task have logged."""
    with suppress(NotFoundError):
        return (await site.read(logs.get, site.client, id)).attempts
    return ()


async def _workflow_of(site: Site, id: str) -> str:
    """Return the id of the workflow whose step a task is or was, or an empty text."""
    if ":" not in id:
        return ""

    async def read() -> str:
        return await site.stores.workflows.workflow_of(id)

    return await site.shared.read(("workflow of", id), _STEP_SECONDS, read)


@pages.post("/tasks/{id:path}/cancel", name="cancel_task")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: FormText = ""
) -> Response:
    """Cancel a task in whatever state it is."""
    path = path_of(request, "task", id=id)
    try:
        await site.perform(who, tasks.cancel, site.client, id, reason)
    except ConflictError as error:
        return back(request, path, str(error), "bad")
    return back(request, path, "Cancelled it. If it runs, its worker ends it within seconds.")


@pages.post("/tasks/{id:path}/hasten", name="hasten_task")
async def hasten(request: Request, site: SiteOf, id: str, who: Hastener) -> Response:
    """Make a delayed task due now."""
    found = await site.perform(who, delayed.hasten, site.stores, [id])
    path = path_of(request, "task", id=id)
    if not found.changed:
        return back(request, path, "; ".join(found.problems("delayed")), "bad")
    return back(request, path, "It is due now.")


@pages.post("/tasks/{id:path}/again", name="resubmit_task")
async def again(
    request: Request,
    site: SiteOf,
    id: str,
    who: Resubmitter,
    once: Annotated[str, Form(min_length=8, max_length=64)],
) -> Response:
    """Submit a task again: a live one as a copy, a failed one at most once."""
    new = await form.submit_again(site, who, await form.read(site, id), once)
    path = path_of(request, "task", id=new)
    return back(request, path, f"Submitted task {id} again: this is the new task.")


@pages.post("/tasks/{id:path}/reveal", name="reveal_task")
async def reveal(request: Request, site: SiteOf, id: str, who: Revealer) -> Response:
    """Show arguments, result and the command that runs the task here, in this answer only."""
    client = site.client
    report = await site.read(tasks.details, client, id)
    found, command = None, ""
    async with site.changing(who, Action.REVEAL, f"arguments and result of task {id}"):
        outcome = await tasks.outcome(client, id)
        with suppress(NotFoundError):
            found = await tasks.arguments(client, id)
            command = remedies.of_call(found.task, plain(found.arguments))
    revealed = {"outcome": outcome, "arguments": found, "command": command, "mask": MASK}
    return await _render(request, site, report, who, revealed=revealed)

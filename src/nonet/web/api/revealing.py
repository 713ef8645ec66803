"""``/api/v1/tasks/{id}/result`` and ``/arguments``: what only a reveal shows, audited each time."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from nonet.base.errors import NotFoundError, ResultError
from nonet.operate.task_details import TaskReport, arguments_of, task_report
from nonet.rules.permissions import Action, Principal
from nonet.tasks.secrecy import mask_names, masked_result
from nonet.web.api.routing import TaskId, ascii_json, resource
from nonet.web.shown import seen
from nonet.web.site import ResultReader, Revealer, Site, SiteOf

router = resource("tasks")


_LONGEST_WAIT = 60


class Outcome(BaseModel):
    """How a task ended, or that it has not."""

    id: str
    task: str = Field(description="Full name of its class.")
    state: str
    has_result: bool = Field(description="Whether it is done and its result is kept.")
    result: Any = Field(description="What `execute` returned, with secrets masked.")
    error: str = Field(description="Error of the last attempt, or who cancelled it and why.")
    reason: str = Field(description="Why it is dead: `retries`, `crash` …")
    traceback: str
    note: str = Field(description="Why the result was not kept; else empty.")


class Arguments(BaseModel):
    """What a task was submitted with."""

    id: str
    task: str = Field(description="Full name of its class.")
    arguments: dict[str, Any] = Field(description="By name, with secrets masked.")
    is_masked: bool = Field(description="Whether any of them is masked.")
    labels: dict[str, Any]


@router.get(
    "/tasks/{id:path}/result",
    response_model=Outcome,
    responses={202: {"model": Outcome, "description": "It has not ended."}},
)
async def get_result(
    id: TaskId,
    site: SiteOf,
    who: ResultReader,
    wait: Annotated[
        float, Query(ge=0, le=_LONGEST_WAIT, description="Wait this many seconds for its end.")
    ] = 0,
) -> Response:
    """Return the result of a task, or its error; wait for its end if asked to.

    It needs the permission `result`, and is audited.
    """
    report = await _read(site, id)
    if report.is_live and wait:
        with suppress(TimeoutError, ResultError):
            await site.nonet.result(id, timeout=wait)
        report = await _read(site, id)
    if report.is_live:
        return ascii_json(_outcome(site, who, report), 202)
    async with site.changing(who, Action.REVEAL, f"result of task {id}"):
        return ascii_json(_outcome(site, who, report), 200)


@router.get("/tasks/{id:path}/arguments", response_model=Arguments)
async def get_arguments(id: TaskId, site: SiteOf, who: Revealer) -> Response:
    """Return the arguments and labels of a live task, or of a failed one as long as they are kept.

    It needs the permission `reveal`, and is audited.
    """
    report = await _read(site, id)
    found, is_masked = arguments_of(report, site.nonet.registry)
    if found is None or report.envelope is None:
        raise NotFoundError(f"the arguments of task {id} are unknown: {report.problem}")
    async with site.changing(who, Action.REVEAL, f"arguments of task {id}"):
        labels = mask_names(report.envelope.labels)
        return ascii_json(
            {
                "id": id,
                "task": report.status.name,
                "arguments": found,
                "is_masked": is_masked,
                "labels": labels,
            },
            200,
        )


async def _read(site: Site, id: str) -> TaskReport:
    nonet = site.nonet
    return await task_report(
        id, nonet.client, nonet.stores, may_have_sql=nonet.settings.may_have_sql()
    )


def _outcome(site: Site, who: Principal, report: TaskReport) -> dict[str, Any]:
    status, document = seen(report.status, who), report.result
    task_class = site.nonet.registry.find(status.name)
    has_result = status.state == "done" and document is not None and not document.note
    value = document.value if document is not None and has_result else None
    return {
        "id": status.id,
        "task": status.name,
        "state": status.state,
        "has_result": has_result,
        "result": masked_result(value, task_class.cls if task_class else None)
        if has_result
        else None,
        "error": status.error,
        "reason": status.reason,
        "traceback": status.traceback,
        "note": status.note,
    }

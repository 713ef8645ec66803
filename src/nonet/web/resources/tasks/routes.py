"""``/api/v1/tasks``: lists, one task, its result; cancel one or many; submit, submit again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Header, Query
from fastapi.responses import Response
from pydantic import Field, StringConstraints

from nonet.operate import history, logs, tasks
from nonet.operate.audited import Cancelled
from nonet.operate.lists import Searched
from nonet.operate.logs import TaskLog
from nonet.operate.tasks import Arguments, CancelledMany, LiveQuery, Outcome
from nonet.rules.findings.explanation import Explanation
from nonet.rules.findings.timeline import Timeline
from nonet.rules.permissions import Action, Principal
from nonet.rules.viewing import seen
from nonet.stores.queue.places import TaskFilter
from nonet.tasks.handles import TaskStatus
from nonet.web.resources.tasks.submitting import (
    Changes,
    NewTask,
    NewTasks,
    Submitted,
    SubmittedTasks,
    made,
)
from nonet.web.routing import (
    NO_REASON,
    Body,
    ClassName,
    Made,
    Reason,
    TaskId,
    Text,
    ascii_json,
    resource,
)
from nonet.web.site import Knower, ResultReader, SiteOf, Submitter, Viewer, ensure_searchable, may

api = resource("tasks")

_LONGEST_WAIT = 60

Listed = Annotated[LiveQuery, Query()]
Canceller = Annotated[Principal, may(tasks.cancel)]
Resubmitter = Annotated[Principal, may(history.resubmit)]
Revealer = Annotated[Principal, may(tasks.arguments)]
Key = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[ -~]+$")] | None,
    Header(
        alias="Idempotency-Key",
        description="A text of your own, such as a UUID. A request with the same key and the same "
        "body is answered with the same tasks and submits nothing twice; with another body it is "
        "refused (409). Keys belong to the user or token that sends them, and are remembered as "
        "long as the ids of the tasks.",
    ),
]


class Selection(Body):
    """Selects live tasks of a class, or with labels."""

    task: ClassName | None = Field(
        default=None, description="Task class: its full or bare name; null: any."
    )
    labels: dict[Text, Text] = Field(
        default={}, max_length=20, description="The tasks have all of these labels."
    )
    states: Annotated[
        tuple[Literal["queued", "delayed", "waiting", "running"], ...], Field(min_length=1)
    ] = Field(
        default=("queued", "delayed", "waiting", "running"), description="In which states they are."
    )


class CancelMany(Selection, Reason):
    """Which tasks to cancel, first as a preview."""

    dry_run: bool = Field(
        default=True,
        description="Only return how many tasks match, and the moment for the real call.",
    )
    moment: datetime | None = Field(
        default=None,
        description="`moment` of the preview: tasks that were submitted later are left alone. "
        "Needed unless `dry_run`.",
    )


@api.get("/tasks")
async def list_tasks(site: SiteOf, who: Viewer, query: Listed) -> Searched[TaskStatus]:
    """List tasks that have not ended: running ones first, then waiting, queued and delayed ones.

    A page with a filter can have fewer items than `limit`, even none, although more follow.
    """
    ensure_searchable(who, query.label, query.error)
    return await site.read(tasks.find, site.stores, query)


@api.post("/tasks", status_code=202)
async def submit(body: NewTask, site: SiteOf, who: Submitter, key: Key = None) -> Submitted:
    """Submit one task."""
    (one,) = await made(site, who, [body], key, body)
    return one


@api.post("/tasks/bulk", status_code=202)
async def submit_bulk(
    body: NewTasks, site: SiteOf, who: Submitter, key: Key = None
) -> SubmittedTasks:
    """Submit up to 1000 tasks. All are validated before the first is submitted.

    A ceiling can refuse the rest behind a batch of 500: `accepted` in the problem says how many
    tasks were submitted. With an Idempotency-Key, or ids of your own, send the whole request again.
    """
    return SubmittedTasks(tasks=await made(site, who, body.tasks, key, body))


@api.get(
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
    outcome = await tasks.outcome(site.client, id, wait)
    found = replace(seen(outcome, who), result=outcome.result)  # a result may have any fields
    if found.is_live:
        return ascii_json(found, 202)
    async with site.changing(who, Action.REVEAL, f"result of task {id}"):
        return ascii_json(found)


@api.get("/tasks/{id:path}/arguments")
async def get_arguments(id: TaskId, site: SiteOf, who: Revealer) -> Arguments:
    """Return the arguments and labels of a live task, or of a failed one as long as they are kept.

    It needs the permission `reveal`, and is audited.
    """
    return await site.perform(who, tasks.arguments, site.client, id)


@api.get("/tasks/{id:path}/explanation")
async def explain_task(id: TaskId, site: SiteOf, who: Knower) -> Explanation:
    """Explain where a task is, or the first thing that keeps it from running."""
    return (await site.explain(id, who))[0]


@api.get("/tasks/{id:path}/timeline")
async def get_timeline(id: TaskId, site: SiteOf, who: Viewer) -> Timeline:
    """Return what happened to a task, and when it waited and ran."""
    return (await tasks.details(site.client, id)).timeline


@api.get("/tasks/{id:path}/log")
async def get_log(id: TaskId, site: SiteOf, who: Viewer) -> TaskLog:
    """Return the last lines that the code of a task has logged, attempt by attempt."""
    return await logs.get(site.client, id)


@api.get("/tasks/{id:path}")
async def get_task(id: TaskId, site: SiteOf, who: Knower) -> TaskStatus:
    """Return the status of a task."""
    return await tasks.get(site.client, id)


@api.post("/tasks/cancel")
async def cancel_tasks(body: CancelMany, site: SiteOf, who: Canceller) -> CancelledMany:
    """Cancel all tasks of a class or with some labels, in two steps.

    The first call (`dry_run`, the default) returns about how many tasks match, and a moment. The
    second one, with this moment, cancels those that existed then.
    """
    if not (body.task or body.labels):
        raise ValueError("give a task class or labels, or it would cancel all tasks")
    client = site.client
    selection = TaskFilter(body.task or "", body.labels, body.states)
    if body.dry_run:
        return await tasks.preview_cancel(client, selection)
    if body.moment is None:
        raise ValueError("moment: take it from the answer of the same request with dry_run")
    moment = body.moment if body.moment.tzinfo else body.moment.replace(tzinfo=UTC)
    return await site.perform(who, tasks.cancel_many, client, selection, moment, body.reason)


@api.post("/tasks/{id:path}/cancel")
async def cancel_task(
    id: TaskId, site: SiteOf, who: Canceller, body: Reason = NO_REASON
) -> Cancelled:
    """Cancel a task in whatever state it is; it does not run any further."""
    await tasks.get(site.client, id)
    return await site.perform(who, tasks.cancel, site.client, id, body.reason)


@api.post("/tasks/{id:path}/resubmit", status_code=202)
async def resubmit_task(
    id: TaskId, site: SiteOf, who: Resubmitter, how: Changes | None = None
) -> Made:
    """Submit a failed task of the history again as a new task, once.

    Dead letters have a route of their own.
    """
    await tasks.get(site.client, id)
    changes = how.changes if how else None
    return Made(id=str(await site.perform(who, history.resubmit, site.client, id, changes)))

"""``/api/v1/tasks``: one task, its explanation; cancel one or many; submit again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from nonet.base.actor import who as actor
from nonet.base.errors import NotFoundError
from nonet.operate import tasks
from nonet.operate.cancelling import Cancelled, cancel_existing, preview_cancel
from nonet.operate.history import resubmit_ended
from nonet.operate.task_details import task_report
from nonet.rules.findings.explanation import Explanation
from nonet.rules.permissions import Action
from nonet.stores.queue.places import TaskFilter
from nonet.tasks.handles import TaskStatus
from nonet.web import shown
from nonet.web.api.routing import NO_REASON, Body, ClassName, Made, Reason, TaskId, Text, resource
from nonet.web.site import Canceller, Knower, Resubmitter, Site, SiteOf

router = resource("tasks")


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


class CancelledMany(BaseModel):
    """What was cancelled, or would be."""

    dry_run: bool
    number: int = Field(description="How many tasks were cancelled, or would be.")
    is_exact: bool = Field(description="False if the number of a preview is an estimate.")
    is_complete: bool = Field(
        description="False if there are more: send the request again with the same moment."
    )
    moment: datetime = Field(description="Send it with the real call.")
    sample: list[TaskStatus] = Field(description="In a preview, some of the tasks.")


@router.get("/tasks/{id:path}/explanation")
async def explain_task(id: TaskId, site: SiteOf, who: Knower) -> Explanation:
    """Explain where a task is, or the first thing that keeps it from running."""
    return (await shown.why(site, id, who))[0]


@router.get("/tasks/{id:path}")
async def get_task(id: TaskId, site: SiteOf, who: Knower) -> TaskStatus:
    """Return the status of a task."""
    return await _found(site, id)


@router.post("/tasks/cancel")
async def cancel_tasks(body: CancelMany, site: SiteOf, who: Canceller) -> CancelledMany:
    """Cancel all tasks of a class or with some labels, in two steps.

    The first call (`dry_run`, the default) returns about how many tasks match, and a moment. The
    second one, with this moment, cancels those that existed then.
    """
    if not (body.task or body.labels):
        raise ValueError("give a task class or labels, or it would cancel all tasks")
    client = site.nonet.client
    selection = TaskFilter(body.task or "", body.labels, body.states)
    if body.dry_run:
        found = await preview_cancel(client, selection)
        return CancelledMany(
            dry_run=True,
            number=found.number,
            is_exact=found.is_exact,
            is_complete=True,
            moment=found.moment,
            sample=list(found.sample),
        )
    if body.moment is None:
        raise ValueError("moment: take it from the answer of the same request with dry_run")
    moment = body.moment if body.moment.tzinfo else body.moment.replace(tzinfo=UTC)
    async with site.changing(who, Action.CANCEL, f"tasks {selection}: cancel"):
        done = await cancel_existing(client, selection, moment, actor(), body.reason)
    return CancelledMany(
        dry_run=False,
        number=done.number,
        is_exact=True,
        is_complete=done.is_complete,
        moment=moment,
        sample=[],
    )


@router.post("/tasks/{id:path}/cancel")
async def cancel_task(
    id: TaskId, site: SiteOf, who: Canceller, body: Reason = NO_REASON
) -> Cancelled:
    """Cancel a task in whatever state it is; it does not run any further."""
    await _found(site, id)
    state = await site.perform(who, tasks.cancel, site.nonet.client, id, body.reason)
    return Cancelled(id=id, state=state)


@router.post("/tasks/{id:path}/resubmit", status_code=202)
async def resubmit_task(id: TaskId, site: SiteOf, who: Resubmitter) -> Made:
    """Submit a failed task of the history again as a new task, once.

    Dead letters have a route of their own.
    """
    stores = site.nonet.stores
    found = await _found(site, id)
    async with site.changing(who, Action.RESUBMIT, f"task {id} ({found.name}): submit again"):
        made = await resubmit_ended(id, site.nonet.client, stores.history, stores.dead_letters)
    return Made(id=str(made))


async def _found(site: Site, id: str) -> TaskStatus:
    nonet = site.nonet
    try:
        return await nonet.status(id)
    except NotFoundError:  # the history, or a dead letter, may know it
        has_sql = nonet.settings.may_have_sql()
        return (await task_report(id, nonet.client, nonet.stores, may_have_sql=has_sql)).status

"""``/api/v1/workflows``: tasks that run in an order; their steps, cancel and resume."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from nonet.operate.lists import opened
from nonet.rules.findings.explanation import Explanation
from nonet.rules.permissions import Action
from nonet.stores.queue.workflow_steps import WorkflowStep
from nonet.tasks.handles import TaskStatus
from nonet.tasks.runs import State, StepState, WorkflowStatus
from nonet.web import shown
from nonet.web.api.routing import NO_REASON, Cancelled, Cursor, Limit, Page, Reason, page, resource
from nonet.web.site import Canceller, Resubmitter, SiteOf, Viewer

router = resource("workflows")

Id = Annotated[str, Path(pattern=r"^[!-~]{1,90}$", description="Id of the workflow.")]


class WorkflowItem(BaseModel, from_attributes=True):
    """A workflow."""

    id: str = Field(description="Its id; its steps have the ids `ID:0`, `ID:1` …")
    title: str = Field(description="The title that its author gave it.")
    state: str = Field(
        description="`building` (its steps are being submitted), `running`, `resuming`, `done`, "
        "`failed` or `cancelled`."
    )
    total: int = Field(description="Number of steps, with those that steps have added.")
    left: int = Field(description="Number of steps that have not ended.")
    failed: str = Field(description="Id of the step that failed first; empty unless it failed.")
    reason: str = Field(description="Who cancelled it, and why; or empty.")
    runs: int = Field(description="How often it was resumed.")
    parent: str = Field(description="Id of the task that submitted it, or empty.")
    opened: datetime = Field(description="When it was submitted.")
    changed: datetime = Field(description="When its state changed last.")
    ended: datetime | None = Field(description="When it ended; null: it has not.")


class WorkflowInFull(WorkflowItem):
    """A workflow, and what it waits for."""

    counts: dict[str, int] = Field(
        description="How many steps are in each state; `blocked`: they wait for other steps."
    )
    why: Explanation | None = Field(
        description="What the first step that has not ended waits for; null: all have ended."
    )
    failure: TaskStatus | None = Field(description="The step that failed first, if it failed.")


class StepItem(BaseModel):
    """A step of a workflow."""

    place: str = Field(description="Its place: the part of its id behind the last colon.")
    after: Sequence[str] = Field(
        description="The steps before it: a letter (`s` on success, `f` on failure, `a` always) "
        "and the place."
    )
    task: TaskStatus = Field(description="Its task; state `lost`: Redis has lost it.")


class Resumed(BaseModel):
    """A workflow that was resumed."""

    id: str
    steps: int = Field(description="Number of steps that run again.")


@router.get("/workflows")
async def list_workflows(
    site: SiteOf,
    who: Viewer,
    state: Annotated[State | None, Query(description="Only workflows in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Page[WorkflowItem]:
    """List the workflows that are kept, those whose state changed last first."""
    found = await site.nonet.stores.workflows.page(
        [state] if state else [], limit=limit, cursor=opened(cursor)
    )
    return page([_item(item) for item in found.rows], found.cursor)


@router.get("/workflows/{id:path}/steps")
async def list_steps(
    id: Id,
    site: SiteOf,
    who: Viewer,
    state: Annotated[StepState | None, Query(description="Only steps in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Page[StepItem]:
    """List the steps of a workflow, in the order of their places."""
    offset = opened(cursor) or "0"
    if not offset.isdecimal() or len(offset) > 9:
        raise ValueError("cursor: it belongs to another list; leave it out to begin anew")
    found = await shown.workflow(site, who, id, state=state, offset=int(offset), limit=limit)
    end = found.offset + len(found.steps)
    return page([_step(item) for item in found.steps], str(end) if end < found.matched else "")


@router.get("/workflows/{id:path}")
async def get_workflow(id: Id, site: SiteOf, who: Viewer) -> WorkflowInFull:
    """Return how far a workflow is, and what it waits for."""
    found = await shown.workflow(site, who, id, state=None, offset=0, limit=0)
    return WorkflowInFull(
        **_item(found.status).model_dump(),
        counts=found.counts,
        why=found.why,
        failure=found.failure.task if found.failure else None,
    )


@router.post("/workflows/{id:path}/cancel")
async def cancel_workflow(
    id: Id, site: SiteOf, who: Canceller, body: Reason = NO_REASON
) -> Cancelled:
    """Cancel all steps of a workflow that have not ended; it cannot be resumed."""
    async with site.changing(who, Action.CANCEL, f"workflow {id}: {body.reason}".rstrip(": ")):
        state = await site.nonet.client.cancel_workflow(id, body.reason)
    return Cancelled(id=id, state=state)


@router.post("/workflows/{id:path}/resume")
async def resume_workflow(id: Id, site: SiteOf, who: Resubmitter) -> Resumed:
    """Run the failed steps of a workflow again, and what was cancelled because of them."""
    async with site.changing(who, Action.RESUBMIT, f"workflow {id}: resume"):
        number = await site.nonet.client.resume_workflow(id)
    return Resumed(id=id, steps=number)


def _item(found: WorkflowStatus) -> WorkflowItem:
    return WorkflowItem.model_validate(found)


def _step(found: WorkflowStep) -> StepItem:
    return StepItem(place=found.place, after=found.after, task=found.task)

"""Workflows for operators: one in full, and those that failed or are stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from nonet.base.errors import NotFoundError
from nonet.client.client import Client
from nonet.rules.findings import remedies
from nonet.rules.workflows import FailedWorkflows, StuckWorkflows, counts, first_cause
from nonet.stores.queue.results import error_line
from nonet.stores.queue.workflow_steps import Graph, WorkflowStep, read_steps
from nonet.stores.queue.workflows import Workflows, step_id
from nonet.tasks.runs import WorkflowStatus

if TYPE_CHECKING:
    from nonet.rules.findings.explanation import Explanation

_HOUR = 3600.0
# A workflow should be submitted or resumed within so many seconds.
_LONG = 60.0
_MOST = 200  # workflows that are counted
_QUOTED = 10  # titles whose last error is read


@dataclass(frozen=True, slots=True)
class WorkflowReport:
    """What is known of a workflow.

    Attributes:
        status: its status.
        graph: class and predecessors of each step, by place.
        states: how far each step is, see `nonet.stores.queue.workflows.Workflows.states`.
        why: what its first step that has not ended waits for; None: all have ended, or none has
            been released yet.
        failure: the step that failed first, if the workflow has failed.
        steps: some of the steps, from number `offset` of `matched` ones on.
    """

    status: WorkflowStatus
    graph: Graph
    states: Mapping[str, str]
    why: Explanation | None
    failure: WorkflowStep | None
    steps: Sequence[WorkflowStep]
    offset: int
    matched: int

    @property
    def counts(self) -> dict[str, int]:
        """How many steps are in each state."""
        return counts(self.states.values())

    @property
    def next(self) -> str:
        """The command that lets it go on, or helps to find out why it does not; may be empty."""
        if self.status.state == "failed":
            return remedies.of_workflow("resume", self.status.id)
        return self.why.next if self.why else ""


async def workflow_report(
    id: str, client: Client, *, offset: int = 0, limit: int = 100, state: str | None = None
) -> WorkflowReport:
    """Read a workflow.

    Args:
        offset, limit: which steps to read in full, in the order of their places.
        state: only steps in this state, see `nonet.rules.workflows.counts`; None: all.

    Raises:
        NotFoundError: it is unknown, or is not kept any more.
        ServerUnreachableError: Redis does not answer.
    """
    workflows = client.stores.workflows
    status = await workflows.status(id)
    graph = await workflows.graph(id)
    states = dict(zip(graph, await workflows.states(id, list(graph)), strict=True))
    chosen = [place for place in graph if state in (None, states[place])]
    failed = [place] if (place := status.failed.rpartition(":")[2]) in graph else []
    some = chosen[offset : offset + limit]
    steps = await read_steps(workflows, client.stores.results, id, graph, [*failed, *some])
    return WorkflowReport(
        status=status,
        graph=graph,
        states=states,
        why=await _why(client, status, states),
        failure=steps[0] if failed else None,
        steps=steps[len(failed) :],
        offset=offset,
        matched=len(chosen),
    )


async def _why(
    client: Client, status: WorkflowStatus, states: Mapping[str, str]
) -> Explanation | None:
    place = first_cause(states)
    if not place:
        return None
    try:
        return await client.explain(step_id(status.id, place))
    except NotFoundError:  # it has just ended, or is lost
        return None


async def failed_workflows(workflows: Workflows, now: datetime) -> list[FailedWorkflows]:
    """Return the workflows that failed within an hour, by title, the newest first."""
    newest: dict[str, WorkflowStatus] = {}
    numbers: Counter[str] = Counter()
    for item in (await workflows.page(["failed"], limit=_MOST)).rows:
        if _seconds(item.ended, now) > _HOUR:
            break
        key = item.title or item.id
        newest.setdefault(key, item)  # they are read newest first
        numbers[key] += 1
    found = []
    for key, item in list(newest.items())[:_QUOTED]:
        place = item.failed.rpartition(":")[2]
        (ended,) = await workflows.results(item.id, [place])
        document = ended.document if ended else None
        found.append(
            FailedWorkflows(
                title=item.title,
                id=item.id,
                number=numbers[key],
                seconds_ago=_seconds(item.ended, now),
                step=item.failed,
                task=document.name if document else "",
                error=error_line(document.error_type, document.error) if document else "",
            )
        )
    return found


async def stuck_workflows(workflows: Workflows, now: datetime) -> list[StuckWorkflows]:
    """Return the workflows that are being submitted or resumed for over a minute, by state."""
    found = []
    for state in ("building", "resuming"):
        rows = (await workflows.page([state], limit=_MOST)).rows
        stuck = [item for item in rows if _seconds(item.changed, now) > _LONG]
        if stuck:
            oldest = stuck[-1]
            seconds = _seconds(oldest.changed, now)
            found.append(
                StuckWorkflows(state, oldest.id, len(stuck), seconds, oldest.left, oldest.total)
            )
    return found


def _seconds(since: datetime | None, now: datetime) -> float:
    return (now - since).total_seconds() if since else 0.0

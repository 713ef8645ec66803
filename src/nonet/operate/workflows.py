"""Workflows: find them, their steps and what they wait for; cancel and resume; their findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from nonet.base.errors import NotFoundError
from nonet.operate.audited import Cancelled, audited
from nonet.operate.lists import ListQuery, Page, Remember, always, cut, opened, sealed, view_of
from nonet.rules.findings import remedies
from nonet.rules.findings.explanation import Explanation
from nonet.rules.permissions import Action
from nonet.rules.spans import last_run, since_when, spans, those_before
from nonet.rules.workflows import (
    FailedWorkflows,
    StuckWorkflows,
    counts,
    counts_in_words,
    first_cause,
)
from nonet.stores.queue.results import error_line
from nonet.stores.queue.workflow_steps import Graph, WorkflowStep, read_steps
from nonet.stores.queue.workflows import Workflows, step_id
from nonet.tasks.handles import TaskStatus
from nonet.tasks.runs import Signalled, State, StepState, WorkflowStatus
from nonet.tasks.steps import EVENT

if TYPE_CHECKING:
    from nonet.client.client import Client

_HOUR = 3600.0
# A workflow should be submitted or resumed within so many seconds.
_LONG = 60.0
_MOST = 200  # workflows that are counted
_MOST_BEFORE = 1000  # steps whose ends are read to tell since when others waited
_QUOTED = 10  # titles whose last error is read


class WorkflowQuery(ListQuery):
    """Which workflows are listed."""

    state: State | None = Field(default=None, description="Only workflows in this state.")


class StepQuery(ListQuery):
    """Which steps of a workflow are listed."""

    state: StepState | None = Field(
        default=None, description="Only steps in this state; blocked: they wait for other steps."
    )


@dataclass(frozen=True, kw_only=True)
class WorkflowView(WorkflowStatus):
    """A workflow, and what it waits for.

    Attributes:
        id: its id. Its steps have the ids ``ID:0``, ``ID:1`` …
        title: the title that its author gave it.
        state: ``building`` (its steps are being submitted), ``running``, ``resuming``, ``done``,
            ``failed`` or ``cancelled``.
        total: number of steps, with those that steps have added.
        left: number of steps that have not ended.
        failed: id of the step that failed first; empty unless it failed.
        reason: who cancelled it, and why; or empty.
        runs: how often it was resumed.
        parent: id of the task that submitted it, or empty.
        opened, changed, ended: when it was submitted, changed its state, and ended (null: not yet).
        counts: how many steps are in each state; ``blocked``: they wait for other steps.
        why: what the first step that has not ended waits for; null: all have ended.
        failure: the step that failed first, if it failed.
        awaits: events of steps that have not ended, in the order of their places.
    """

    counts: Mapping[str, int]
    why: Explanation | None
    failure: TaskStatus | None
    awaits: Sequence[str] = ()

    @property
    def next(self) -> str:
        """The command that lets it continue, or that helps to find out why it does not."""
        if self.state == "failed":
            return remedies.of_workflow("resume", self.id)
        return self.why.next if self.why else ""

    @property
    def steps_in_words(self) -> str:
        """How many steps are in each state."""
        return counts_in_words(self.counts)

    @property
    def waits_for(self) -> str:
        """What its first step waits for; may be empty."""
        return f"step {self.why.id} is {self.why.text}" if self.why else ""

    @property
    def failed_at(self) -> str:
        """The step that failed first, with its error; may be empty."""
        one = self.failure
        return f"{one.id} ({one.name}): {one.error}" if one else ""


@dataclass(frozen=True)
class StepPage(Page[WorkflowStep]):
    """Some steps of a workflow, in the order of their places.

    Attributes:
        matched: how many steps are in the state that was asked for.
    """

    matched: int = 0


@dataclass(frozen=True)
class Resumed:
    """A workflow that was resumed.

    Attributes:
        steps: number of steps that run again.
    """

    id: str
    steps: int


class Drawing(NamedTuple):
    """What the picture of a workflow needs: its graph, and how far each step is."""

    graph: Graph
    states: Mapping[str, str]


async def find(workflows: Workflows, query: WorkflowQuery) -> Page[WorkflowStatus]:
    """Return the workflows that are kept, those whose state changed last first."""
    states = [query.state] if query.state else []
    found = await workflows.page(states, limit=query.limit, cursor=opened(query.cursor))
    return Page(found.rows, sealed(found.cursor))


async def get(client: Client, id: str, remember: Remember = always) -> WorkflowView:
    """Return how far a workflow is, and what it waits for.

    Raises:
        NotFoundError: it is unknown, or is not kept any more.
    """
    status = await client.stores.workflows.status(id)
    graph, states = await drawing(client, id, remember)
    failed = [place] if (place := status.failed.rpartition(":")[2]) in graph else []
    first = await read_steps(client.stores.workflows, client.stores.results, id, graph, failed)
    return view_of(
        WorkflowView,
        status,
        counts=counts(states.values()),
        why=await _why(client, status, states),
        failure=first[0].task if first else None,
        awaits=[
            name.removeprefix(EVENT)
            for place, (name, _) in graph.items()
            if name.startswith(EVENT) and states[place] == "blocked"
        ],
    )


async def drawing(client: Client, id: str, remember: Remember = always) -> Drawing:
    """Return the steps of a workflow and their states."""

    async def read() -> Drawing:
        graph = await client.stores.workflows.graph(id)
        states = await client.stores.workflows.states(id, list(graph))
        return Drawing(graph, dict(zip(graph, states, strict=True)))

    return await remember(("workflow", id), 2.0, read)


async def steps(client: Client, id: str, query: StepQuery, remember: Remember = always) -> StepPage:
    """Return the steps of a workflow, in the order of their places.

    Raises:
        NotFoundError: it is unknown, or is not kept any more.
    """
    status = await client.stores.workflows.status(id)
    graph, states = await drawing(client, id, remember)
    matched = [place for place in graph if query.state in (None, states[place])]
    some = cut(matched, query)
    before = {place: after for place, (_, after) in graph.items()}
    earlier = those_before(before, some.items)
    # Of steps that come after very many others, only the run is shown.
    known = earlier if len(earlier) <= _MOST_BEFORE else []
    places = list(dict.fromkeys([*some.items, *known]))
    read = await read_steps(client.stores.workflows, client.stores.results, id, graph, places)
    ends = {step.place: step.task.finished for step in read}
    since = since_when(before, ends, status.opened, some.items)
    found = [
        replace(step, spans=tuple(spans(step.task, since[step.place], last_run(step.task))))
        for step in read[: len(some.items)]
    ]
    return StepPage(found, some.cursor, len(matched))


@audited(Action.CANCEL, "workflow {id}: {reason}")
async def cancel(client: Client, id: str, reason: str = "") -> Cancelled:
    """Cancel all steps of a workflow that have not ended; it cannot be resumed."""
    return Cancelled(id, await client.cancel_workflow(id, reason))


@audited(Action.SIGNAL, "workflow {id}: event {event}")
async def signal(client: Client, id: str, event: str, payload: Any = None) -> Signalled:
    """Let an event come that a step of a workflow waits for; the payload is the step's result."""
    return await client.signal(id, event, payload)


@audited(Action.RESUBMIT, "workflow {id}: resume")
async def resume(client: Client, id: str) -> Resumed:
    """Run the failed steps of a workflow again, and what was cancelled because of them."""
    return Resumed(id, await client.resume_workflow(id))


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
    first: dict[str, datetime | None] = {}
    numbers: Counter[str] = Counter()
    for item in (await workflows.page(["failed"], limit=_MOST)).rows:
        if _seconds(item.ended, now) > _HOUR:
            break
        key = item.title or item.id
        newest.setdefault(key, item)  # they are read newest first
        first[key] = item.ended
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
                first_ago=_seconds(first[key], now),
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

"""Submit workflows, read their results, cancel and resume them."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from nonet.base.errors import ConflictError, InvalidArgumentsError, ResultUnavailable
from nonet.client.outcomes import child_result, value_of
from nonet.messages.encryption import NO_KEY, MissingKeyError
from nonet.messages.message import Reference, is_id, references, resolved
from nonet.stores.queue.groups import group_id
from nonet.stores.queue.results import Ended
from nonet.stores.queue.workflows import NewWorkflow, step_id
from nonet.tasks.execution import TaskContext, running_context
from nonet.tasks.handles import ChildResult
from nonet.tasks.runs import StepStatus, WorkflowRun, WorkflowStatus
from nonet.tasks.task import Options
from nonet.tasks.workflows import Step, Workflow, step_terms
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.client.client import Client  # it imports this module
    from nonet.stores.queue.submissions import Submission

_LONGEST_ID = 90
_LIKE_A_STEP = re.compile(r":[\d.]+$")
_RESERVED = (":live", ":graph", ":results", ":failed")
_CANCELLED_AT_ONCE = 100
_ENDED = ("done", "failed", "cancelled")


async def submit_workflows(
    client: Client, workflows: Sequence[tuple[str | None, Workflow]]
) -> list[WorkflowRun]:
    """Submit workflows, each with the id of its caller or None; see `Client.submit_workflows`."""
    running = running_context()
    if running:
        running.ensure_lease()
    names = [_checked(one, _id_for(running) if id is None else id) for id, one in workflows]
    await client.live_config.refresh()
    runs: dict[int, WorkflowRun] = {}
    with sending() as trace:
        by_home: dict[Client, dict[int, NewWorkflow]] = {}
        for place, (id, workflow) in enumerate(workflows):
            steps = _prepared(client, workflow, names[place], trace)
            title, parent = workflow.title, running.id if running else ""
            home, steps = client.routing.together("workflow", title or "Workflow", steps)
            new = NewWorkflow(names[place], title, parent, steps, id is not None)
            by_home.setdefault(home, {})[place] = new
        asked = {home: _steps_of(those.values()) for home, those in by_home.items()}
        if trace:
            describe_sent([step for steps in asked.values() for step in steps])
        for home, those in by_home.items():
            await home.broker.check_room(asked[home])
            if running:
                running.ensure_lease()
            ttl = home.settings.workflow_ttl
            started = await home.workflows.submit([*those.values()], ttl)
            for (place, new), is_new in zip(those.items(), started, strict=True):
                runs[place] = WorkflowRun(new.id, home, is_new)
    return [runs[place] for place in range(len(workflows))]


def _steps_of(workflows: Iterable[NewWorkflow]) -> list[Submission]:
    return [step for new in workflows for step in new.steps]


def _id_for(running: TaskContext | None) -> str:
    return group_id(running.id, running.next_spawn()) if running else uuid.uuid4().hex


def _checked(workflow: Workflow, id: str) -> str:
    if not workflow.steps:
        raise InvalidArgumentsError("Workflow", ["it has no steps: add one with step()"])
    if not (isinstance(id, str) and is_id(id) and len(id) <= _LONGEST_ID):
        problem = f"id {id!r:.200} must be 1 to {_LONGEST_ID} printable ASCII characters, no blanks"
        raise InvalidArgumentsError("Workflow", [problem])
    if _LIKE_A_STEP.search(id):
        problem = f"id {id!r} must not end in a colon and a number: ids of steps do"
        raise InvalidArgumentsError("Workflow", [problem])
    if id.endswith(_RESERVED):
        problem = f"id {id!r} must not end in {', '.join(_RESERVED)}: Redis keys of workflows do"
        raise InvalidArgumentsError("Workflow", [problem])
    return id


def _prepared(client: Client, workflow: Workflow, id: str, trace: str) -> list[Submission]:
    terms = step_terms(id, workflow.steps)
    return [
        client.envelopes.prepare(step.task, _options(id, step), trace=trace, is_step=True).as_step(
            term
        )
        for step, term in zip(workflow.steps, terms, strict=True)
    ]


def _options(id: str, step: Step[Any]) -> Options:
    """Return the options of the submission; the terms of the step have the delay."""
    return replace(step.options, id=step_id(id, step.place), delay=None)


async def with_results(client: Client, id: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the references in the arguments of a step by results.

    Raises:
        ResultUnavailable: a result was not kept.
    """
    found = set(references(arguments))
    if not found:
        return arguments
    workflow = id.rpartition(":")[0]
    places = {each: [each.place] for each in found}
    for each in found:
        if each.added:
            places[each] = await client.workflows.added(workflow, each.place)
    wanted = list(dict.fromkeys(place for some in places.values() for place in some))
    ends = dict(zip(wanted, await client.workflows.results(workflow, wanted), strict=True))

    def value_of_reference(reference: Reference) -> Any:
        if reference.added:  # a step that failed, or was not needed, has none
            done = [place for place in places[reference] if _is_done(ends[place])]
            return [_packed_value(step_id(workflow, place), ends[place]) for place in done]
        return _packed_value(step_id(workflow, reference.place), ends[reference.place])

    changed: Mapping[str, Any] = resolved(dict(arguments), value_of_reference)
    return changed


def _is_done(ended: Ended | None) -> bool:
    return ended is not None and ended.state == "done"


def _packed_value(id: str, ended: Ended | None) -> Any:
    document = ended.document if ended is not None else None
    if document is not None and NO_KEY in document.note:
        raise MissingKeyError("of a step before")
    if not _is_done(ended) or document is None or document.note:
        why = (document.note if document else "") or "it is not kept"
        raise ResultUnavailable(f"the result of step {id} is needed as an argument, but {why}")
    return document.value


async def step_inputs(client: Client, id: str) -> list[ChildResult]:
    """Return how the predecessors of a step ended; see `TaskContext.inputs`."""
    workflow, _, place = id.rpartition(":")
    places = await client.workflows.predecessors(workflow, place)
    ends = await client.workflows.results(workflow, places)
    return [
        child_result(step_id(workflow, one), ended, client.registry)
        for one, ended in zip(places, ends, strict=True)
    ]


async def steps_of(client: Client, id: str) -> list[StepStatus]:
    """Return the steps of a workflow; see `WorkflowRun.steps`."""
    from nonet.stores.queue.workflow_steps import read_steps  # workers show no workflows

    await client.workflows.status(id)
    graph = await client.workflows.graph(id)
    return [
        StepStatus(
            id=step.task.id,
            place=step.place,
            name=step.task.name,
            after=step.after,
            state=step.task.state,
            error=step.task.error,
            blocker=step.task.blocker,
        )
        for step in await read_steps(client.workflows, client.results, id, graph, list(graph))
    ]


async def wait_for(client: Client, id: str, timeout: float | None) -> WorkflowStatus:
    """Wait for the end of a workflow; see `WorkflowRun.wait`."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = None if timeout is None else max(0, deadline - time.monotonic())
        try:
            await client.results.wait(id, left)
        except TimeoutError:
            from nonet.rules.findings.remedies import of_workflow

            show = of_workflow("show", id)
            raise TimeoutError(
                f"workflow {id} has not ended after {timeout:g} s; '{show}' shows what it waits for"
            ) from None
        status = await client.workflows.status(id)
        if status.state in _ENDED:  # it may have been resumed meanwhile
            return status


async def step_result(client: Client, id: str, place: str, timeout: float | None) -> Any:
    """Wait for the result of a step; see `WorkflowRun.result`."""
    step = step_id(id, place)
    (ended,) = await client.workflows.results(id, [place])
    if ended is None:
        try:
            return await client.result(step, timeout=timeout)
        except ResultUnavailable:  # its result may be kept for its workflow only
            (ended,) = await client.workflows.results(id, [place])
            if ended is None:
                raise
    return value_of(step, ended, client.registry)


async def cancel(client: Client, id: str, reason: str) -> str:
    """Cancel the steps of a workflow that have not ended; see `WorkflowRun.cancel`."""
    before = await client.workflows.status(id)
    if before.state in _ENDED:
        raise ConflictError(f"workflow {id} is {before.state} and can no longer be cancelled")
    await client.workflows.mark_cancelled(id, client.signed(reason))
    await client.log_event("workflow-cancelled", f"{id}: {reason}".removesuffix(": "))
    await go_on(client, id)
    return (await client.workflows.status(id)).state


async def resume(client: Client, id: str) -> int:
    """Run the failed steps of a workflow again; see `WorkflowRun.resume`."""
    from nonet.rules.resuming import above, runs_again  # workers resume no workflows

    before = await client.workflows.status(id)
    if before.state not in ("failed", "resuming"):
        raise ConflictError(
            f"workflow {id} is {before.state}: only a failed workflow can be resumed"
        )
    places, graph = await client.workflows.failed(id), await client.workflows.graph(id)
    have_added = {above(place) for place in graph}
    if before.state == "failed":
        again = runs_again(set(places), {place: after for place, (_, after) in graph.items()})
        if lost := await client.workflows.lost(id, sorted(again - have_added)):
            raise ConflictError(
                f"step {step_id(id, lost[0])} of workflow {id} was lost by Redis and cannot run "
                "again: submit the workflow again, with another id"
            )
        await client.withdraw_letters([step_id(id, place) for place in again], before.opened)
        await client.workflows.begin_to_resume(id, [one for one in places if one not in again])
        places = sorted(again)
    number = len([place for place in places if place not in have_added])
    if before.state == "failed":
        await client.log_event("workflow-resumed", f"{id}: {_steps(number)}")
    await go_on(client, id)
    return number


async def go_on(client: Client, id: str) -> None:
    """Continue to cancel or resume a workflow; it can be repeated at any point."""
    workflows = client.workflows
    status = await workflows.status(id)
    if status.reason:
        who, _, text = status.reason.removeprefix("by ").partition(": ")
        why = ": ".join(filter(None, ("with its workflow", text)))
        async for places in workflows.live(id):
            for start in range(0, len(places), _CANCELLED_AT_ONCE):
                some = [step_id(id, place) for place in places[start : start + _CANCELLED_AT_ONCE]]
                await client.cancel_steps(some, who, why)
        await workflows.forget_failed(id)
    elif status.state == "resuming":
        await workflows.resume(id)
    if (await workflows.status(id)).reason == status.reason:
        await workflows.finished(id)
    else:  # it was cancelled while it was being resumed
        await go_on(client, id)


def _steps(number: int) -> str:
    return f"{number} step" + ("" if number == 1 else "s")

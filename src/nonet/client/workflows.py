"""Submit workflows, read their results, cancel and resume them."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from nonet.base.actor import who
from nonet.base.errors import ConflictError, InvalidArgumentsError, NotFoundError, ResultUnavailable
from nonet.base.messages.encryption import NO_KEY, MissingKeyError
from nonet.base.messages.message import (
    Reference,
    ResultDocument,
    encode,
    is_id,
    pack,
    references,
    resolved,
)
from nonet.base.messages.terms import tenant_term, unix_microseconds
from nonet.client.namespace import InNamespace, OpenNamespace
from nonet.client.reading import result_of
from nonet.client.results import child_result, value_of
from nonet.rules.findings.remedies import of_workflow
from nonet.rules.resuming import above, runs_again
from nonet.stores.queue.groups import group_id
from nonet.stores.queue.results import Ended, parse_ended
from nonet.stores.queue.workflows import NewWorkflow, step_id
from nonet.tasks.execution import TaskContext, running_context
from nonet.tasks.handles import ChildResult
from nonet.tasks.runs import Signalled, StepResult, StepStatus, WorkflowRun, WorkflowStatus
from nonet.tasks.steps import EVENT, Event, Step
from nonet.tasks.task import Options
from nonet.tasks.workflows import Workflow, step_terms
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.stores.queue.submissions import Submission

_LONGEST_ID = 90
_LIKE_A_STEP = re.compile(r":[\d.]+$")
_RESERVED = (":live", ":graph", ":results", ":failed", ":signals")
_CANCELLED_AT_ONCE = 100
_ENDED = ("done", "failed", "cancelled")


class InWorkflows(InNamespace):
    """Submits workflows to a namespace, and reads, cancels and resumes them."""

    async def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> WorkflowRun:
        """Submit all steps of a workflow; see `Workflow.submit`.

        Args:
            workflow: the workflow.

        Example:
            run = await app.submit_workflow(chain(Add(1, 2), Add(3, 4)), id="nightly-2026-11-25")
        """
        (run,) = await _submit(self._open(), [(id, workflow)])
        return run

    async def submit_workflows(
        self, workflows: Iterable[Workflow] | Mapping[str, Workflow]
    ) -> list[WorkflowRun]:
        """Submit many workflows in few round trips; return their runs in the same order.

        All are validated before the first is submitted. A call takes up to 500 steps and edges.

        Args:
            workflows: any number. A mapping gives each an id, see `Workflow.submit`.

        Raises:
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached; nothing was submitted.
            ConflictError: a task has the id of a workflow or of a step. Later workflows in the same
                namespace were not submitted.
            ServerUnreachableError: Redis does not answer; any of them may have been submitted.

        Example:
            days = {f"import-{day}": chain(Add(1, day), Add(3, 4)) for day in range(7)}
            runs = await app.submit_workflows(days)
            print([run for run in runs if not run.created])
        """
        home = self._open()
        if isinstance(workflows, Mapping):
            return await _submit(home, [*workflows.items()])
        return await _submit(home, [(None, workflow) for workflow in workflows])

    def workflow(self, id: str) -> WorkflowRun:
        """Return the run of a submitted workflow.

        Args:
            id: id of the workflow; nothing is read before its methods are called.

        Raises:
            NotBoundError: the application is not open.

        Example:
            print((await app.workflow("nightly-2026-11-25").status()).state)
        """
        client: Any = self._open()  # a `Client`
        return WorkflowRun(id, client)

    async def workflows(
        self, limit: int = 100, *, state: str | None = None
    ) -> list[WorkflowStatus]:
        """Return the workflows that are still kept, the last changed first.

        Args:
            limit: the most workflows to return.
            state: only workflows in this state, see `WorkflowStatus`; None: any.

        Raises:
            NotBoundError: the application is not open.
            ValueError: there is no such state, or `limit` is less than 1.
            ServerUnreachableError: Redis does not answer.

        Example:
            for workflow in await app.workflows(state="failed"):
                print(workflow.id, workflow.failed)
        """
        page = self._open().stores.workflows.page
        return (await page([state] if state else (), limit=limit)).rows

    async def workflow_status(self, id: str) -> WorkflowStatus:
        """Return the state of a workflow; see `WorkflowRun.status`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: home.stores.workflows.status(id))

    async def workflow_steps(self, id: str) -> list[StepStatus]:
        """Return the steps of a workflow; see `WorkflowRun.steps`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: _status_of_steps(home, id))

    async def workflow_results(self, id: str) -> list[StepResult]:
        """Return how the steps of a workflow ended; see `WorkflowRun.results`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: _results_of_steps(home, id))

    async def workflow_ended(self, id: str, timeout: float | None = None) -> WorkflowStatus:
        """Wait for the end of a workflow; see `WorkflowRun.wait`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: _wait_for(home, id, timeout))

    async def step_result(self, id: str, place: str, timeout: float | None = None) -> Any:
        """Wait for the result of a step; see `WorkflowRun.result`.

        Args:
            id: id of the workflow.
            place: place of the step in it.
        """
        return await _step_result(self._open(), id, place, timeout)

    async def cancel_workflow(self, id: str, reason: str = "") -> str:
        """Cancel a workflow; see `WorkflowRun.cancel`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: _cancel(home, id, reason))

    async def signal(self, workflow: str, event: str, payload: Any = None) -> Signalled:
        """Let an event come that a step of a workflow waits for; see `Workflow.event`.

        The step is done once the steps before it have ended; its result is the payload. Calling it
        again with the same payload is safe, and returns the same.

        Args:
            workflow: id of the workflow.
            event: name of the event.
            payload: any value that a task could return.

        Raises:
            NotFoundError: the workflow is unknown, or has no such event.
            ConflictError: the event came before with another payload, or too late.
            InvalidArgumentsError: the payload cannot be stored, or is too long.
            ServerUnreachableError: Redis does not answer. The event may have come.

        Example:
            workflow = Workflow()
            workflow.event("approved")
            await app.submit_workflow(workflow, id="refund-7")
            await app.signal("refund-7", "approved", {"by": "ann"})
        """
        find = self._open().routing.find
        return await find(lambda home: _signal(home, workflow, event, payload))

    async def resume_workflow(self, id: str) -> int:
        """Run the failed steps of a workflow again; see `WorkflowRun.resume`.

        Args:
            id: id of the workflow.
        """
        return await self._open().routing.find(lambda home: _resume(home, id))


async def _submit(
    home: OpenNamespace, workflows: Sequence[tuple[str | None, Workflow]]
) -> list[WorkflowRun]:
    """Submit workflows, each with the id of its caller or None; see `submit_workflows`."""
    running = running_context()
    if running:
        running.ensure_lease()
    names = [_checked(one, _id_for(running) if id is None else id) for id, one in workflows]
    await home.live_config.refresh()
    runs: dict[int, WorkflowRun] = {}
    with sending() as trace:
        by_home: dict[OpenNamespace, dict[int, NewWorkflow]] = {}
        for place, (id, workflow) in enumerate(workflows):
            steps = _prepared(home, workflow, names[place], trace)
            title, parent = workflow.title, running.id if running else ""
            there, steps = home.routing.together("workflow", title or "Workflow", steps)
            new = NewWorkflow(names[place], title, parent, steps, id is not None)
            by_home.setdefault(there, {})[place] = new
        asked = {there: _steps_of(those.values()) for there, those in by_home.items()}
        if trace:
            describe_sent([step for steps in asked.values() for step in steps])
        for there, those in by_home.items():
            await there.stores.broker.check_room(asked[there])
            if running:
                running.ensure_lease()
            client: Any = there  # a `Client`
            ttl = there.settings.workflow_ttl
            started = await there.stores.workflows.submit([*those.values()], ttl)
            for (place, new), is_new in zip(those.items(), started, strict=True):
                runs[place] = WorkflowRun(new.id, client, is_new)
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


def _prepared(home: OpenNamespace, workflow: Workflow, id: str, trace: str) -> list[Submission]:
    terms = step_terms(id, workflow.steps)
    made: dict[str, Submission] = {}
    for step in workflow.steps:
        if not isinstance(step.task, Event):
            options = _options(id, step)
            made[step.place] = home.envelopes.prepare(step.task, options, trace=trace, is_step=True)
    # An event belongs to the tenant of the first step that has one.
    tenant = next(filter(None, (tenant_term(one.terms) for one in made.values())), "")
    for step in workflow.steps:
        if isinstance(event := step.task, Event):
            timeout: Any = step.options.start_by
            made[step.place] = home.envelopes.prepare_event(
                step_id(id, step.place), event.name, timeout, trace, tenant
            )
    return [
        made[step.place].as_step(term) for step, term in zip(workflow.steps, terms, strict=True)
    ]


def _options(id: str, step: Step[Any]) -> Options:
    """Return the options of the submission; the terms of the step have the delay."""
    return replace(step.options, id=step_id(id, step.place), delay=None)


async def _signal(home: OpenNamespace, id: str, event: str, payload: Any) -> Signalled:
    """Let an event of a workflow come; see `InWorkflows.signal`."""
    graph, name = await home.stores.workflows.graph(id), f"{EVENT}{event}"
    if not graph:
        await home.stores.workflows.status(id)
    events = [step for step, _ in graph.values() if step.startswith(EVENT)]
    place = next((place for place, (step, _) in graph.items() if step == name), None)
    if place is None:
        known = ", ".join(step.removeprefix(EVENT) for step in events) or "no event"
        raise NotFoundError(f"workflow {id} has no event {event!r:.100}: it has {known}")
    step, limit = step_id(id, place), home.settings.message_limit
    try:
        packed = pack(payload)
        if home.cipher.everything:
            packed = home.cipher.encrypt(encode(packed), step, "value")
        sent = encode(ResultDocument(name, 0, time.time(), packed))
    except TypeError as error:
        raise InvalidArgumentsError(name, [f"its payload cannot be stored: {error}"]) from None
    if len(sent) > limit:
        problem = f"its payload of {len(sent)} bytes exceeds the limit of {limit}"
        raise InvalidArgumentsError(name, [f"{problem} (NONET_MESSAGE_LIMIT)"])
    by, at, first = await home.stores.workflows.signal(id, place, who(), sent)
    if first == sent:
        await home.stores.events.log("event-signalled", who(), f"{id}: {event}")
    elif _payload(home, step, first) != _payload(home, step, sent):
        raise ConflictError(
            f"event {event} of workflow {id} came before, with another payload: {by} sent it at "
            f"{at:%Y-%m-%d %H:%M:%SZ}. Nothing was changed"
        )
    return Signalled(id, event, step, by, at)


def _payload(home: OpenNamespace, step: str, document: bytes) -> Any:
    ended = parse_ended(step, b"done|0|" + document, home.cipher)
    return ended.document.value if ended.document else None


async def with_results(
    home: OpenNamespace, id: str, arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
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
            places[each] = await home.stores.workflows.added(workflow, each.place)
    wanted = list(dict.fromkeys(place for some in places.values() for place in some))
    ends = dict(zip(wanted, await home.stores.workflows.results(workflow, wanted), strict=True))

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


async def step_inputs(home: OpenNamespace, id: str) -> list[ChildResult]:
    """Return how the predecessors of a step ended; see `TaskContext.inputs`."""
    workflow, _, place = id.rpartition(":")
    places = await home.stores.workflows.predecessors(workflow, place)
    ends = await home.stores.workflows.results(workflow, places)
    return [
        child_result(step_id(workflow, one), ended, home.registry)
        for one, ended in zip(places, ends, strict=True)
    ]


async def _status_of_steps(home: OpenNamespace, id: str) -> list[StepStatus]:
    """Return the steps of a workflow; see `WorkflowRun.steps`."""
    from nonet.stores.queue.workflow_steps import read_steps  # 10 ms; workers show no workflows

    await home.stores.workflows.status(id)
    graph = await home.stores.workflows.graph(id)
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
        for step in await read_steps(
            home.stores.workflows, home.stores.results, id, graph, list(graph)
        )
    ]


async def _results_of_steps(home: OpenNamespace, id: str) -> list[StepResult]:
    """Return how the steps of a workflow ended; see `WorkflowRun.results`."""
    await home.stores.workflows.status(id)
    graph = await home.stores.workflows.graph(id)
    found = []
    ends = await home.stores.workflows.results(id, list(graph))
    for (place, (name, _)), ended in zip(graph.items(), ends, strict=True):
        if ended is not None:
            one = child_result(step_id(id, place), ended, home.registry)
            found.append(StepResult(one.id, place, name, one.state, one.value, one.error))
    return found


async def _wait_for(home: OpenNamespace, id: str, timeout: float | None) -> WorkflowStatus:
    """Wait for the end of a workflow; see `WorkflowRun.wait`."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = None if timeout is None else max(0, deadline - time.monotonic())
        try:
            await home.stores.results.wait(id, left)
        except TimeoutError:
            show = of_workflow("show", id)
            raise TimeoutError(
                f"workflow {id} has not ended after {timeout:g} s; '{show}' shows what it waits for"
            ) from None
        status = await home.stores.workflows.status(id)
        if status.state in _ENDED:  # it may have been resumed meanwhile
            return status


async def _step_result(home: OpenNamespace, id: str, place: str, timeout: float | None) -> Any:
    """Wait for the result of a step; see `WorkflowRun.result`."""
    step = step_id(id, place)
    (ended,) = await home.stores.workflows.results(id, [place])
    if ended is None:
        try:
            return await result_of(home, step, timeout)
        except ResultUnavailable:  # its result may be kept for its workflow only
            (ended,) = await home.stores.workflows.results(id, [place])
            if ended is None:
                raise
    return value_of(step, ended, home.registry)


async def _cancel(home: OpenNamespace, id: str, reason: str) -> str:
    """Cancel the steps of a workflow that have not ended; see `WorkflowRun.cancel`."""
    before = await home.stores.workflows.status(id)
    if before.state in _ENDED:
        raise ConflictError(f"workflow {id} is {before.state} and can no longer be cancelled")
    await home.stores.workflows.mark_cancelled(id, ": ".join(filter(None, (f"by {who()}", reason))))
    await home.stores.events.log("workflow-cancelled", who(), f"{id}: {reason}".removesuffix(": "))
    await go_on(home, id)
    return (await home.stores.workflows.status(id)).state


async def _resume(home: OpenNamespace, id: str) -> int:
    """Run the failed steps of a workflow again; see `WorkflowRun.resume`."""
    before = await home.stores.workflows.status(id)
    if before.state not in ("failed", "resuming"):
        raise ConflictError(
            f"workflow {id} is {before.state}: only a failed workflow can be resumed"
        )
    places, graph = await home.stores.workflows.failed(id), await home.stores.workflows.graph(id)
    have_added = {above(place) for place in graph}
    if before.state == "failed":
        again = runs_again(set(places), {place: after for place, (_, after) in graph.items()})
        if lost := await home.stores.workflows.lost(id, sorted(again - have_added)):
            raise ConflictError(
                f"step {step_id(id, lost[0])} of workflow {id} was lost by Redis and cannot run "
                "again: submit the workflow again, with another id"
            )
        await _withdraw_letters(home, [step_id(id, place) for place in again], before.opened)
        await home.stores.workflows.begin_to_resume(id, [one for one in places if one not in again])
        places = sorted(again)
    number = len([place for place in places if place not in have_added])
    if before.state == "failed":
        await home.stores.events.log("workflow-resumed", who(), f"{id}: {_steps(number)}")
    await go_on(home, id)
    return number


async def _withdraw_letters(home: OpenNamespace, ids: Sequence[str], since: datetime) -> None:
    """Delete the dead letters of tasks that run again.

    Args:
        since: when these tasks were submitted; letters of earlier tasks with these ids stay.

    Raises:
        ConflictError: one was submitted again; none was deleted.
    """
    if home.settings.may_have_sql():
        await (await home.stores.dead_letters()).withdraw(ids, unix_microseconds(since))


async def go_on(home: OpenNamespace, id: str) -> None:
    """Continue to cancel or resume a workflow; it can be repeated at any point."""
    workflows = home.stores.workflows
    status = await workflows.status(id)
    if status.reason:
        author, _, text = status.reason.removeprefix("by ").partition(": ")
        why = ": ".join(filter(None, ("with its workflow", text)))
        async for places in workflows.live(id):
            for start in range(0, len(places), _CANCELLED_AT_ONCE):
                some = [step_id(id, place) for place in places[start : start + _CANCELLED_AT_ONCE]]
                await home.cancellation.cancel(some, author, why, running=True, is_logged=False)
        await workflows.forget_failed(id)
    elif status.state == "resuming":
        await workflows.resume(id)
    if (await workflows.status(id)).reason == status.reason:
        await workflows.finished(id)
    else:  # it was cancelled while it was being resumed
        await go_on(home, id)


def _steps(number: int) -> str:
    return f"{number} step" + ("" if number == 1 else "s")

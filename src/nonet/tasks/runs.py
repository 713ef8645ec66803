"""Submitted workflows: the handle `WorkflowRun`, and the status of a workflow and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NoReturn, Protocol

from nonet.base.errors import NotBoundError
from nonet.tasks.handles import BoundId, R
from nonet.tasks.steps import MISSING, Step

State = Literal["building", "running", "resuming", "done", "failed", "cancelled"]
"""The states of a workflow."""
StepState = Literal[
    "done",
    "dead",
    "expired",
    "cancelled",
    "running",
    "dying",
    "queued",
    "waiting",
    "blocked",
    "delayed",
    "lost",
]
"""The states of a step, in the order of a count."""


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """The state of a submitted workflow.

    Attributes:
        id: its id. Its steps have the ids ``ID:0``, ``ID:1`` …
        title: the title that its author gave it.
        state: ``building`` (steps are being submitted), ``running``, ``resuming``, ``done``,
            ``failed`` or ``cancelled``.
        total: number of steps, including those that steps have added.
        left: number of steps that have not ended.
        failed: id of the first step that failed, if the workflow has failed; else empty. Its error
            is among `WorkflowRun.results`.
        reason: why it was cancelled, or empty; a failed workflow has none.
        runs: how often it was resumed.
        parent: id of the task that submitted it, or empty.
        opened, ended: when it was submitted, and when it ended (None: it has not).
        changed: when its state changed last.

    Example:
        run = await chain(Add(1, 2), Add(3, 4)).submit()
        status = await run.status()
        print(f"{status.total - status.left} of {status.total} steps have ended")
    """

    id: str
    title: str
    state: str
    total: int
    left: int
    failed: str
    reason: str
    runs: int
    parent: str
    opened: datetime
    changed: datetime
    ended: datetime | None

    @property
    def progress(self) -> str:
        """How many steps have ended, of how many: ``3 of 10``."""
        return f"{self.total - self.left:,} of {self.total:,}"


@dataclass(frozen=True, slots=True)
class StepStatus:
    """A step of a submitted workflow.

    Attributes:
        id: id of its task.
        place: its place in the workflow, the part of the id behind the last colon.
        name: full name of its class.
        after: its predecessors, each the letter of the edge (``s`` on success, ``f`` on failure,
            ``a`` always) and the place.
        state: state of its task; ``lost`` if Redis has lost it.
        error: its last failure, or why it was cancelled; else empty.
        blocker: the steps or the lock that it waits for; else empty.

    Example:
        run = await chain(Add(1, 2), Add(3, 4)).submit()
        for step in await run.steps():
            print(step.place, step.name, step.state)
    """

    id: str
    place: str
    name: str
    after: tuple[str, ...]
    state: str
    error: str = ""
    blocker: str = ""


@dataclass(frozen=True, slots=True)
class Signalled:
    """An event of a workflow that has come.

    Attributes:
        workflow: id of the workflow.
        event: name of the event.
        step: id of the step that waited for it.
        by: who sent it first.
        at: when that was.

    Example:
        workflow = Workflow()
        workflow.event("approved")
        run = await workflow.submit()
        print((await app.signal(run, "approved", {"by": "ann"})).at)
    """

    workflow: str
    event: str
    step: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step of a workflow ended; see `WorkflowRun.results`.

    Attributes:
        id: id of its task.
        place: its place in the workflow, the part of the id behind the last colon.
        name: full name of its class.
        state: its final state.
        value: its result if it is ``done``.
        error: the failure in one line, otherwise empty.

    Example:
        run = await chain(Add(1, 2), Add(3, 4)).submit()
        await run.wait()
        print({step.name: step.value for step in await run.results()})
    """

    id: str
    place: str
    name: str
    state: str
    value: Any = None
    error: str = ""


def place_of(step: object) -> str:
    """Return the place of a step whose result is asked for.

    Raises:
        TypeError: it is no step.
    """
    if isinstance(step, Step):
        return step.place
    what = "no step was passed" if step is MISSING else f"{step!r:.100} is no step"
    raise TypeError(
        f"result: {what}: pass what step() returned, or the last step of a chain, as in "
        "run.result(workflow.last[0], timeout=60); wait() and results() return those of all steps"
    )


class WorkflowClient(Protocol):
    """The methods that a `WorkflowRun` calls on the client of the open application."""

    async def workflow_status(self, id: str) -> WorkflowStatus:
        """Return the state of a workflow."""

    async def workflow_steps(self, id: str) -> list[StepStatus]:
        """Return the steps of a workflow."""

    async def workflow_results(self, id: str) -> list[StepResult]:
        """Return how the steps of a workflow ended."""

    async def workflow_ended(self, id: str, timeout: float | None) -> WorkflowStatus:
        """Wait for the end of a workflow."""

    async def step_result(self, id: str, place: str, timeout: float | None) -> Any:
        """Wait for the result of a step."""

    async def cancel_workflow(self, id: str, reason: str = "") -> str:
        """Cancel a workflow; return its state."""

    async def resume_workflow(self, id: str) -> int:
        """Run the failed steps of a workflow again; return their number."""


class WorkflowId(BoundId):
    """The id of a submitted workflow, and the client that submitted it: what runs share."""

    @classmethod
    def _unbound(cls) -> object:
        return _Unbound()


class WorkflowRun(WorkflowId):
    """The id of a submitted workflow, with methods to ask for its state and its results.

    Like a `nonet.Handle` it is a ``str``; a copy in another process is a plain one.
    ``app.workflow(id)`` makes a run from an id.

    Attributes:
        created: False if the workflow was submitted before, under the same id.

    Example:
        run = await chain(Add(1, 2), Add(3, 4)).submit()
        assert (await run.wait(timeout=30)).state == "done"
    """

    _client: WorkflowClient

    async def status(self) -> WorkflowStatus:
        """Return the state of the workflow.

        Raises:
            NotFoundError: it is unknown, or is not kept any more.
            ServerUnreachableError: Redis does not answer.
        """
        return await self._client.workflow_status(self)

    async def steps(self) -> list[StepStatus]:
        """Return all steps, in the order of their places.

        Raises:
            NotFoundError: the workflow is unknown, or is not kept any more.
            ServerUnreachableError: Redis does not answer.
        """
        return await self._client.workflow_steps(self)

    async def results(self) -> list[StepResult]:
        """Return how the steps that have ended so far have ended, in the order of their places.

        It waits for none: call `wait` before, or the list may be empty. Raises as `steps`.
        """
        return await self._client.workflow_results(self)

    async def wait(self, timeout: float | None = None) -> WorkflowStatus:
        """Wait until the workflow has ended, and return its state; a failed one raises nothing.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            NotFoundError: it is unknown, or is not kept any more.
            TimeoutError: it has not ended in time.
        """
        return await self._client.workflow_ended(self, timeout)

    async def result(self, step: Step[R] = MISSING, timeout: float | None = None) -> R:
        """Wait for a step to end, and return its result.

        It is kept until the workflow has ended, and for NONET_RESULT_TTL after that.

        Args:
            step: a step of the workflow, as `Workflow.step` and `Workflow.last` return them.
            timeout: seconds; None waits without limit.

        Raises:
            TypeError: it is no step.
            TaskFailed, TaskCancelled, TaskExpired: the step ended otherwise.
            ResultUnavailable: the step is unknown, or its result is not kept.
            TimeoutError: it has not ended in time.
        """
        value: R = await self._client.step_result(self, place_of(step), timeout)
        return value

    async def cancel(self, reason: str = "") -> str:
        """Cancel all steps that have not ended.

        Args:
            reason: shown to operators.

        Returns:
            The state. It is ``cancelled``, or ``running`` while running steps are being stopped.

        Raises:
            NotFoundError: it is unknown.
            ConflictError: it has ended.
        """
        return await self._client.cancel_workflow(self, reason)

    async def resume(self) -> int:
        """Run the failed steps again, and the steps that were cancelled because of them.

        Steps that are done do not run again, nor do steps whose failure was taken over. The
        dead letters of the failed steps are deleted. If this call is interrupted, the leading
        scheduler continues.

        Returns:
            The number of steps that run again.

        Raises:
            NotFoundError: it is unknown, or is not kept any more.
            ConflictError: it has not failed, or a dead letter of one of its steps was submitted
            again.
        """
        return await self._client.resume_workflow(self)


class _Unbound:
    """The client of a run that was read from JSON."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotBoundError(
            "the run of a workflow was read from text and has no application: use app.workflow(id)"
        )

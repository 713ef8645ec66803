"""`SyncWorkflowRun`: the run of a workflow, with methods that block."""

from __future__ import annotations

from typing import Any, Protocol

from nonet.tasks.handles import R
from nonet.tasks.runs import StepResult, StepStatus, WorkflowId, WorkflowStatus, place_of
from nonet.tasks.steps import MISSING, Step


class SyncWorkflowClient(Protocol):
    """The methods that a run calls on the application that submitted the workflow."""

    def workflow_status(self, id: str) -> WorkflowStatus:
        """Return the state of a workflow."""

    def workflow_steps(self, id: str) -> list[StepStatus]:
        """Return the steps of a workflow."""

    def workflow_results(self, id: str) -> list[StepResult]:
        """Return how the steps of a workflow ended."""

    def workflow_ended(self, id: str, timeout: float | None) -> WorkflowStatus:
        """Wait for the end of a workflow."""

    def step_result(self, id: str, place: str, timeout: float | None) -> Any:
        """Wait for the result of a step."""

    def cancel_workflow(self, id: str, reason: str) -> str:
        """Cancel a workflow; return its state."""

    def resume_workflow(self, id: str) -> int:
        """Run the failed steps of a workflow again; return their number."""


class SyncWorkflowRun(WorkflowId):
    """The id of a submitted workflow, with methods that block: `nonet.WorkflowRun` without a loop.

    Attributes:
        created: False if the workflow was submitted before, under the same id.

    Example:
        run = app.submit_workflow(chain(Add(1, 2), Add(3, 4)))
        assert run.wait(timeout=30).state == "done"
    """

    _client: SyncWorkflowClient

    def status(self) -> WorkflowStatus:
        """Return the state of the workflow; raises as `nonet.WorkflowRun.status`."""
        return self._client.workflow_status(self)

    def steps(self) -> list[StepStatus]:
        """Return all steps, in the order of their places; raises as `nonet.WorkflowRun.steps`."""
        return self._client.workflow_steps(self)

    def results(self) -> list[StepResult]:
        """Return how the steps that have ended so far have ended; see `nonet.WorkflowRun.results`.

        It waits for none: call `wait` before, or the list may be empty.
        """
        return self._client.workflow_results(self)

    def wait(self, timeout: float | None = None) -> WorkflowStatus:
        """Wait until the workflow has ended, and return its state; a failed one raises nothing.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            NotFoundError, TimeoutError: as `nonet.WorkflowRun.wait`.
        """
        return self._client.workflow_ended(self, timeout)

    def result(self, step: Step[R] = MISSING, timeout: float | None = None) -> R:
        """Wait for a step to end, and return its result.

        Args:
            step: a step of the workflow.
            timeout: seconds; None waits without limit.

        Raises:
            TypeError, TaskFailed, TaskCancelled, TaskExpired, ResultUnavailable, TimeoutError: as
                `nonet.WorkflowRun.result`.
        """
        value: R = self._client.step_result(self, place_of(step), timeout)
        return value

    def cancel(self, reason: str = "") -> str:
        """Cancel all steps that have not ended; returns and raises as `nonet.WorkflowRun.cancel`.

        Args:
            reason: shown to operators.
        """
        return self._client.cancel_workflow(self, reason)

    def resume(self) -> int:
        """Run the failed steps again; returns and raises as `nonet.WorkflowRun.resume`."""
        return self._client.resume_workflow(self)

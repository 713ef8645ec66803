"""Submit tasks from views: at the commit of a transaction, or with ``.schedule_sync()``."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from django.db import transaction

from nonet.base.forks import Lock
from nonet.base.ids import new_id
from nonet.client.sync_application import SyncNonet
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.sync_runs import SyncWorkflowRun
from nonet.tasks.task import BaseTask, SubmitOptions, TaskOf
from nonet.tasks.workflows import Workflow


def submit_on_commit(
    task: BaseTask, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> str:
    """Submit a task when the current transaction commits, or now without a transaction.

    The task is validated at once. It is not submitted if the transaction rolls back, and lost if
    the process dies between the commit and the submission. A durable class is not lost with
    ``task.schedule_sync(transaction=connection)``.

    Args:
        task: an instance of a task class of an application.
        using: alias of the database; None: the default one.
        options: the options of `nonet.BaseTask.schedule_sync`.

    Returns:
        The id that the task will have, unless another task holds its unique key by then.

    Raises:
        InvalidArgumentsError: an argument or option is invalid; raised by the call itself.
        NonetError: as `nonet.Nonet.submit`; raised by the end of the transaction, which is
            committed by then.

    Example:
        with transaction.atomic():
            id = submit_on_commit(SendInvoice(4711, "me@example.org"))
    """
    if options.get("id") is None:
        options["id"] = new_id()
    project.app().check(task, **options)
    transaction.on_commit(partial(project.submit, task, **options), using=using)
    return str(options["id"])


class Project:
    """The application of this project, which its first submission opens."""

    def __init__(self) -> None:
        self._app: SyncNonet | None = None
        self._opening = Lock()  # a server may fork while another of its threads holds it

    def app(self) -> SyncNonet:
        """Return the open application."""
        with self._opening:
            if self._app is None:
                self._app = SyncNonet.from_settings().open()
        return self._app

    def submit(self, task: TaskOf[Any], **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit a task, for ``.schedule_sync()``."""
        return self.app().submit(task, **options)

    def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> SyncWorkflowRun:
        """Submit a workflow, for its ``submit_sync()``."""
        return self.app().submit_workflow(workflow, id=id)

    def close(self) -> None:
        """Close the application, for tests."""
        if self._app is not None:
            self._app.close()
        self._app = None


project = Project()

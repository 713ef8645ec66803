"""Submit tasks from views: at the commit of a transaction, or with ``.schedule_sync()``."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, Unpack, cast

from django.db import transaction

from nonet.base.forks import Lock
from nonet.base.ids import new_id
from nonet.client.sync_application import SyncNonet
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.sync_runs import SyncWorkflowRun
from nonet.tasks.task import BaseTask, SubmitOptions, TaskOf, sync_submitters
from nonet.tasks.workflows import Workflow

R = TypeVar("R")


def submit_on_commit(
    task: TaskOf[R], *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> SyncHandle[R]:
    """Submit a task when the current transaction commits, or now without a transaction.

    ``task.schedule_sync()`` does the same for a class with ``on_commit = True``.

    The task is validated at once. It is not submitted if the transaction rolls back, and lost if
    the process dies between the commit and the submission. A durable class is not lost with
    ``task.schedule_sync(transaction=connection)``.

    Args:
        task: an instance of a task class of an application.
        using: alias of the database; None: the default one.
        options: the options of `nonet.BaseTask.schedule_sync`.

    Returns:
        A handle with the id that the task will have, unless another task holds its unique key by
        then. Until the commit nothing is known of the task.

    Raises:
        InvalidArgumentsError: an argument or option is invalid; raised by the call itself.
        NonetError: as `nonet.Nonet.submit`; raised by the end of the transaction, which is
            committed by then.

    Example:
        with transaction.atomic():
            handle = submit_on_commit(SendInvoice(4711, "me@example.org"))
    """
    app, id = project.app(), options.get("id") or new_id()
    options["id"] = id
    app.check(cast(BaseTask, task), **options)
    transaction.on_commit(partial(app.submit, task, **options), using=using)
    return SyncHandle(id, app)


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
                sync_submitters.append(self)  # it stays the one that .schedule_sync() calls
        return self._app

    def submit(self, task: TaskOf[Any], **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit a task, for ``.schedule_sync()``: at the commit if its class says so."""
        if getattr(task, "on_commit", False) and options.get("transaction") is None:
            return submit_on_commit(task, **options)
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

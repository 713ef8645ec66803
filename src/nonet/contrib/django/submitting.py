"""Submit tasks from views and other code without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, Unpack

from django.db import transaction

from nonet.app import Nonet
from nonet.base.ids import new_id
from nonet.tasks.task import BaseTask, Options, SubmitOptions, unbind_submitter

_T = TypeVar("_T")

_OPEN_SECONDS = 30.0


def submit(task: BaseTask, **options: Unpack[SubmitOptions]) -> str:
    """Submit a task now.

    In a transaction prefer `submit_on_commit`: a worker may start the task before you commit, and
    also runs it if you roll back. In an asynchronous view call ``await sync_to_async(submit)(…)``.

    Args:
        task: an instance of a task class of an application.
        options: those of `nonet.BaseTask.schedule`.

    Returns:
        The id of the task.

    Raises:
        NonetError: as `nonet.Nonet.submit`.

    Example:
        id = submit(SendInvoice(4711, "me@example.org"), labels={"customer": "acme"})
    """
    return str(_with_application(lambda app: app.submit(task, **options)))


def submit_on_commit(
    task: BaseTask, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> str:
    """Submit a task when the current transaction commits, or now if there is none.

    The task is validated at once. It is not submitted if the transaction rolls back, and lost if
    the process dies between the commit and the submission.

    Args:
        task: an instance of a task class of an application.
        using: alias of the database; None: the default one.
        options: those of `nonet.BaseTask.schedule`.

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
    _with_application(partial(_check, task, Options(**options)))
    transaction.on_commit(partial(submit, task, **options), using=using)
    return str(options["id"])


async def _check(task: BaseTask, options: Options, app: Nonet) -> None:
    app.client.envelopes.prepare(task, options)


def _with_application(work: Callable[[Nonet], Awaitable[_T]]) -> _T:
    """Do work with the application of this process: the one place that knows how it is open.

    It is open in a thread of its own, in whose loop the work runs, with the context variables of
    the caller.
    """
    global _background
    with _opening:
        if _background is None:
            _background = _Background()
        background = _background

    async def run() -> _T:
        return await work(background.app)

    return asyncio.run_coroutine_threadsafe(run(), background.loop).result()


class _Background:
    """An open application in a daemon thread."""

    def __init__(self) -> None:
        self.app = Nonet.from_settings()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="nonet", daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(_OPEN_SECONDS)

    async def _open(self) -> None:
        await self.app.__aenter__()
        # `.schedule()` runs in the loop of its caller, where this client must not be used.
        unbind_submitter(self.app.client)


_background: _Background | None = None
_opening = threading.Lock()


def _forget() -> None:
    """In a process that a server has forked: its parent has the thread, and perhaps the lock."""
    global _background, _opening
    _background, _opening = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)

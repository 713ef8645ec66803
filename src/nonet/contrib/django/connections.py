"""Close database connections around attempts, as Django does around requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from nonet.tasks.invoke import is_coroutine_function
from nonet.tasks.middleware import Middleware, RunningTask


class CloseConnections(Middleware):
    """Closes connections that the database has dropped, or that are older than CONN_MAX_AGE.

    Django keeps connections by thread: a plain ``execute`` has those of its thread, and a coroutine
    those of the thread in which Django runs ``sync_to_async``.
    """

    order = -50

    def around_thread(self, task: RunningTask) -> Iterator[None]:
        """For the framework."""
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        """For the framework."""
        if not is_coroutine_function(task.task_class.execute):
            yield
            return
        await sync_to_async(close_old_connections)()
        try:
            yield
        finally:
            await sync_to_async(close_old_connections)()

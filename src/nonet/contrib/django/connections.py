"""Close database connections around tasks, as Django does around requests; wait for SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from nonet.tasks.invoke import is_coroutine_function
from nonet.tasks.middleware import Middleware, RunningTask

SQLITE_SECONDS = 60
"""How long a task waits for SQLite's write lock."""


def wait_for_sqlite() -> None:
    """Let concurrent tasks wait for SQLite's write lock; its default of 5 s fails under load.

    A ``timeout`` of the project is kept.
    """
    for database in connections.settings.values():
        if is_sqlite(database):
            database["OPTIONS"].setdefault("timeout", SQLITE_SECONDS)


def is_sqlite(database: Mapping[str, Any]) -> bool:
    """Whether an item of ``DATABASES`` is SQLite, in a file or in memory."""
    return str(database["ENGINE"]).rpartition(".")[2] == "sqlite3"


class CloseConnections(Middleware):
    """Closes connections that the database has dropped, or that are older than CONN_MAX_AGE.

    Django keeps connections by thread: a plain ``execute`` uses the connections of its thread, and
    a coroutine those of the thread in which Django runs ``sync_to_async``.
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

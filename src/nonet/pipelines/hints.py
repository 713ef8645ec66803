"""Hints between processes: a row of a table became due.

`announce` sends them after the commit of a program; `Listener` wakes the pipelines of a process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from nonet.base.errors import NonetError, NotBoundError
from nonet.client.client import Client
from nonet.daemon.service import Stop, every
from nonet.stores.namespace.hints import LISTENING_SECONDS, Hints, hint_of
from nonet.stores.queue.wakes import Wakes
from nonet.tasks.task import current_submitter

logger = logging.getLogger(__name__)

_TABLES = "nonet_hints"
_WAIT_SECONDS = 60.0


def announce(session: AsyncSession, table: str) -> None:
    """Hint a table after the commit of the session's transaction; a rollback discards the hint.

    The hint goes through the open application of this process. Without one, pipelines find the row
    by polling.
    """
    tables: set[str] = session.sync_session.info.setdefault(_TABLES, set())
    tables.add(table)


# SQLAlchemy calls both at the end of a savepoint, too.
@sa.event.listens_for(Session, "after_commit")
def _send(session: Session) -> None:
    if not session.in_nested_transaction() and (tables := session.info.pop(_TABLES, None)):
        send_soon(tables)


@sa.event.listens_for(Session, "after_rollback")
def _discard(session: Session) -> None:
    if not session.in_nested_transaction():
        session.info.pop(_TABLES, None)


def send_soon(tables: set[str]) -> None:
    """Hint tables through the open application of this process, if there is one."""
    try:
        submitter = current_submitter()
    except NotBoundError:
        return
    if isinstance(submitter, Client):
        submitter.hints.send_soon(tables)


class Listener:
    """Wakes the pipelines of this process when rows of their tables became due.

    Args:
        woken: what to call, by table.
    """

    def __init__(
        self, hints: Hints, wakes: Wakes, woken: Sequence[tuple[str, Callable[[], Any]]]
    ) -> None:
        self._hints = hints
        self._wakes = wakes
        self._woken: defaultdict[str, list[Callable[[], Any]]] = defaultdict(list)
        for table, call in woken:
            self._woken[table].append(call)

    async def run(self, stop: Stop) -> None:
        """Listen until a stop is requested."""
        waits = [asyncio.create_task(self._wait(table)) for table in self._woken]
        try:
            await every(stop, "hints", self._listen)
        finally:
            for wait in waits:
                wait.cancel()
            try:
                async with asyncio.timeout(1.0):
                    await self._hints.leave(self._wakes.client, self._woken)
            except (NonetError, TimeoutError) as error:
                logger.debug("still registered for hints, which ends by itself: %s", error)

    async def _listen(self) -> float:
        await self._hints.listen(self._wakes.client, self._woken)
        return LISTENING_SECONDS / 3

    async def _wait(self, table: str) -> None:
        with self._wakes.expecting(hint_of(table)) as wake:
            while True:
                if await wake.wait(_WAIT_SECONDS):
                    for call in self._woken[table]:
                        call()

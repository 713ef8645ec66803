"""Cancels tasks, in Redis and in SQL, by id or by class and labels.

The worker of a running task gets an order and ends the task. All other tasks end at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.messages.message import is_id
from nonet.rules.outcomes import shortened
from nonet.stores.queue.broker import CANCELLED_AT_A_TIME, Broker
from nonet.stores.queue.places import Places, TaskFilter

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Outbox

logger = logging.getLogger(__name__)

_RECORDS_PER_PAGE = 700
_NAMED = 3


class CancelledTasks(Struct, frozen=True):
    """The result of a mass cancellation.

    Attributes:
        number: how many tasks are cancelled, or will be once their workers have ended them.
        running: ids of the tasks that their workers still have to end.
        is_complete: False if the time was over before all tasks were examined.
    """

    number: int
    running: tuple[str, ...] = ()
    is_complete: bool = True


class Cancellation:
    """Cancels tasks of one namespace.

    Args:
        outbox: opens the SQL store of durable tasks on first use; None: no durable tasks.
        may_have_sql: whether a database may hold tasks that Redis does not know.
    """

    def __init__(
        self,
        broker: Broker,
        outbox: Callable[[], Awaitable[Outbox]] | None,
        may_have_sql: Callable[[], bool],
    ) -> None:
        self._broker = broker
        self._places = Places(broker.scripts)
        self._outbox = outbox
        self._may_have_sql = may_have_sql

    async def cancel(
        self,
        ids: Sequence[str],
        who: str,
        reason: str = "",
        *,
        running: bool = False,
        is_logged: bool = True,
    ) -> dict[str, str]:
        """Cancel tasks by their ids.

        Args:
            who: ``user@host pid``, for the event stream and for programs that wait for the result.
            reason: why, for the same readers; may be empty. For a running task only 60 bytes of
                `who` and `reason` together are kept.
            running: also cancel running tasks.
            is_logged: record it in the event stream; False: the caller does.

        Returns:
            The state of each task now: ``cancelled``, also if it was cancelled before;
            ``cancelling`` if it runs and its worker will end it within seconds; its unchanged state
            if it cannot be cancelled; empty if it is unknown.

        Raises:
            ServerUnreachableError: Redis does not answer, or SQL does not while Redis does not
                know a task. Some tasks may be cancelled; call it again.
        """
        why = _why(who, reason)
        done: list[str] = []
        try:
            states = await self._cancel(ids, why, running=running)
            done = _cancelled(states, "cancelling")
            unknown = [id for id, state in states.items() if not state and is_id(id)]
            states |= await self._cancel_kept(await self._kept(unknown), why)
            done = _cancelled(states, "cancelling")
        finally:
            await self._log(done, len(done) if is_logged else 0, who, reason)
        return {id: states[id] for id in ids}

    async def cancel_all(
        self,
        selection: TaskFilter,
        who: str,
        reason: str = "",
        *,
        seconds: float = math.inf,
        advance: Callable[[int], None] = lambda number: None,
    ) -> CancelledTasks:
        """Cancel all tasks of a selection.

        Tasks that are submitted meanwhile may be missed. Works page by page, in constant memory.

        Args:
            seconds: end after this time, behind a page.
            advance: called with the number of tasks that a page cancelled.

        Raises:
            ServerUnreachableError: Redis or SQL does not answer. Some tasks may be cancelled; call
                it again.
        """
        why, end, is_complete = _why(who, reason), time.monotonic() + seconds, True
        number, first, running = 0, list[str](), list[str]()
        try:
            async for states in self._each_page(selection, why):
                done = _cancelled(states, "cancelling")
                number, first = number + len(done), first or done[:_NAMED]
                running += [id for id in done if states[id] == "cancelling"]
                advance(len(done))
                if time.monotonic() > end:
                    is_complete = False
                    break
        finally:
            await self._log(first, number, who, f"{reason + '; ' if reason else ''}{selection}")
        return CancelledTasks(number, tuple(running), is_complete)

    async def _each_page(self, selection: TaskFilter, why: str) -> AsyncIterator[dict[str, str]]:
        """Cancel page by page; yield the state of each task afterwards."""
        # Ask SQL once: a query for each page would take longer than the cancellation in Redis. A
        # durable task has its row before it is in Redis; the relay deletes the rows of later tasks.
        has_rows = await self._has_rows()
        async for ids in _in_batches(self.find(selection)):
            running = "running" in selection.states
            yield await self._cancel(ids, why, running=running, has_rows=has_rows)
        async for kept in self._kept_ones(selection):
            yield await self._cancel_kept(kept, why)

    async def find(self, selection: TaskFilter) -> AsyncIterator[list[str]]:
        """Yield the ids of the selected tasks that live in Redis, page by page, in no order.

        Walks all records and not the places of tasks, because a task that moves from one place to
        another meanwhile must not be missed.
        """
        async for page in self._places.walk("records", selection, _RECORDS_PER_PAGE):
            if page.found:
                yield list(dict.fromkeys(item.id for item in page.found))

    async def _cancel(
        self, ids: Sequence[str], why: str, *, running: bool, has_rows: bool = True
    ) -> dict[str, str]:
        """Cancel in Redis. Delete the rows of durable tasks, or leave them to the relay."""
        order = shortened(why.removeprefix("cancelled ")) if running else ""
        states = dict(zip(ids, await self._broker.cancel(ids, why, order=order), strict=True))
        await self._close(_cancelled(states) if has_rows else [])
        return states

    async def _has_rows(self) -> bool:
        """Whether there are durable tasks; also true if SQL does not answer."""
        if self._outbox is None or not self._may_have_sql():
            return False
        try:
            return await (await self._outbox()).count() > 0
        except ConfigurationError:
            return False
        except NonetError:
            return True

    async def _cancel_kept(self, kept: Mapping[str, str], why: str) -> dict[str, str]:
        """Cancel durable tasks, given their classes, that may be in SQL only."""
        ids = list(kept)
        states = dict(zip(ids, await self._broker.cancel(ids, why, in_sql=kept), strict=True))
        await self._close(_cancelled(states))
        return states

    async def _close(self, ids: Sequence[str]) -> None:
        if not ids or self._outbox is None or not self._may_have_sql():
            return
        try:
            await (await self._outbox()).close(ids)
        except ConfigurationError:
            return  # without tables or a driver this process has stored nothing
        except NonetError as error:  # the relay deletes them later: Redis remembers the end
            logger.warning(
                "could not delete rows of cancelled tasks now: count=%d error=%s", len(ids), error
            )

    async def _kept(self, ids: Sequence[str]) -> dict[str, str]:
        """Classes of durable tasks that Redis does not know, by their ids."""
        if not ids or self._outbox is None or not self._may_have_sql():
            return {}
        try:
            return await (await self._outbox()).names(ids)
        except ConfigurationError:
            return {}

    async def _kept_ones(self, selection: TaskFilter) -> AsyncIterator[dict[str, str]]:
        """Yield the classes of the selected durable tasks by id. They count as delayed."""
        is_any = "delayed" in selection.states
        if not is_any or self._outbox is None or not self._may_have_sql():
            return
        try:
            async for page in (await self._outbox()).pages():
                meant = {
                    item.id: item.name
                    for item in page
                    if selection.names(item.name, "delayed") and selection.fits(item.envelope)
                }
                if meant:
                    yield meant
        except ConfigurationError:
            return

    async def _log(self, ids: Sequence[str], number: int, who: str, text: str) -> None:
        if not number:
            return
        names = ", ".join(ids[:_NAMED]) + (" …" if number > _NAMED else "")
        what = f"{number} task{'s' if number > 1 else ''} ({names})"
        await self._broker.scripts.run(
            "log_event", "tasks-cancelled", who, what + (f": {text}" if text else "")
        )


async def _in_batches(pages: AsyncIterator[list[str]]) -> AsyncIterator[list[str]]:
    """Yield as many ids as one script call ends: a page of records may have few tasks."""
    found = dict[str, None]()  # a walk may meet a task twice before it is cancelled
    async for page in pages:
        found |= dict.fromkeys(page)
        while len(found) >= CANCELLED_AT_A_TIME:
            batch = list(islice(found, CANCELLED_AT_A_TIME))
            for id in batch:
                del found[id]
            yield batch
    if found:
        yield list(found)


def _cancelled(states: Mapping[str, str], *others: str) -> list[str]:
    return [id for id, state in states.items() if state in ("cancelled", *others)]


def _why(who: str, reason: str) -> str:
    by = f"cancelled by {who or 'an unknown caller'}"
    return f"{by}: {reason}" if reason else by

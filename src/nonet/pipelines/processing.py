"""What happens to one leased row: load → process → apply or fail: `Processing`.

A pipeline does this in its own process (`pipeline_runner`), or in a task (`row_task`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import NonetError, ServerUnreachableError, TaskTimeoutError
from nonet.base.forks import ending_copies
from nonet.base.loop import uncancel
from nonet.client.client import Client
from nonet.pipelines.changes import Changes
from nonet.pipelines.heartbeat import Beating
from nonet.pipelines.lease import Exhausted, Lease, Loaded, NotSelected, RelatedBusy, Stale
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.pipeline import Pipeline
from nonet.rules.outcomes import End, Failed, Settlement, decide
from nonet.stores.sql.callers import is_same_database
from nonet.tasks.execution import running_context
from nonet.tasks.injection import Injector
from nonet.tasks.task import BaseTask
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 0.5
# How long to try to submit the tasks of changes that were applied.
_SUBMIT_SECONDS = 60.0
# How long to try to release a row whose lease was lost.
_GIVE_UP_SECONDS = 60.0

WriteLetter = Callable[[Any, Exhausted, Settlement | None], Awaitable[float | None]]
"""Writes the letter of a row; returns None, or in how many seconds to try again."""


@dataclass(slots=True, eq=False)
class Item:
    """A leased row in this process.

    Attributes:
        is_alone: no other row or task runs in this process.
        lost: why the lease is lost; None while it is not.
        is_stopped: the process stops, so the row is handed back.
        task: the asyncio task that processes it; None while it is queued.
        error: what `process` raised.
    """

    lease: Lease
    is_alone: bool = False
    beating: Beating = field(init=False)
    lost: str | None = None
    is_stopped: bool = False
    task: asyncio.Task[Any] | None = None
    error: BaseException | None = None

    def lose(self, reason: str) -> bool:
        """Cancel the processing; return False if a transaction that ends the lease has begun.

        That transaction may have been committed already, so it must not look like a loss.
        """
        if self.beating.is_ending:
            return False
        self.lost = reason
        if self.task is not None:
            self.task.cancel()
        return True


class Processing:
    """Processes leased rows of one pipeline.

    Args:
        interval: returns the seconds until a processed row is due again.
        write: writes dead letters.
        started: called with the seconds from the due time of a row to its start.
        waits: called with the seconds until a row that waits for related rows tries again.
    """

    def __init__(
        self,
        leasing: Leasing,
        injector: Injector,
        client: Client,
        interval: Callable[[], float],
        write: WriteLetter,
        *,
        started: Callable[[float], None] = lambda seconds: None,
        waits: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        self.pipeline: Pipeline[Any] = leasing.pipeline
        self.leasing: Leasing = leasing
        self._injector = injector
        self._client = client
        self._interval = interval
        self._write = write
        self._started = started
        self._waits = waits
        # Whether durable tasks are stored in the database of the rows.
        settings, database = client.settings, self.pipeline.database
        self._has_outbox = settings.may_have_sql() and is_same_database(
            settings.sql_url(), database.url
        )
        self._log = FailureLog(f"rows of pipeline {self.pipeline.name}", logger)
        self._injected = of_row(self.pipeline.process)

    async def run(self, item: Item) -> str:
        """Load, process and settle a leased row; return its outcome.

        Raises:
            Stale: the lease was lost. Related rows were released.
        """
        try:
            return await self._run(item)
        except asyncio.CancelledError:
            if item.lost is None:
                raise
            uncancel()
            await self._give_up(item)
            raise Stale from None
        except Stale:
            item.lost = item.lost or "another process has the row"
            await self._give_up(item)
            raise
        except Exception:  # the lease ends by itself, and then the row is fetched again
            await self._until_lost(item, partial(self.leasing.clear, item.lease))
            raise

    async def _run(self, item: Item) -> str:
        lease = item.lease
        load = partial(self.leasing.load, lease, alone=item.is_alone)
        try:
            loaded = await self._until_lost(item, load)
        except RelatedBusy:
            self._waits(await self._end(item, partial(self.leasing.wait, lease)))
            return "waiting"
        except NotSelected:
            fail = partial(self.leasing.fail, lease, self._interval(), [], counts=False)
            await self._end(item, fail)
            return "not-selected"
        except Stale:
            raise
        except Exception as error:  # of the author's load() or needs_related()
            item.error = error
            await self._until_lost(item, partial(self.leasing.count, lease))
            return await self._fail(item, error)
        if isinstance(loaded, Exhausted):
            return await self._bury(item, loaded, None)
        item.beating.items = self.leasing.held(lease)
        self._started(lease.waited + time.monotonic() - lease.since)
        return await self._process(item, loaded)

    async def _process(self, item: Item, loaded: Loaded) -> str:
        changes = None
        try:
            changes = await self._call(loaded.row)
            await self._apply(item, loaded, changes)
            return "done"
        except Stale:
            await self._on_stale(loaded, changes)
            raise
        except BaseException as error:  # SystemExit in an author's code must not end the process
            if item.lost is not None:  # whatever the author's code made of its cancellation
                uncancel()
                await self._on_stale(loaded, changes)
                raise Stale from error
            if is_cancelled():
                if (limit := _exceeded_limit()) is None:
                    raise asyncio.CancelledError from error
                uncancel()
                if error is not limit:
                    limit.__cause__, error = error, limit
            item.error = error
            return await self._fail(item, error)

    async def _call(self, row: Any) -> Changes:
        """Call the author's code outside of any transaction."""
        process = self.pipeline.process
        limit = self.pipeline.timeout
        try:
            async with asyncio.timeout(limit) as timer:
                async with self._injector.open(self._injected) as arguments:
                    with ending_copies():
                        changes = await process(row, **arguments)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise _timed_out(limit) from error
        if timer.expired():  # it has swallowed its cancellation
            raise _timed_out(limit)
        if (exceeded := _exceeded_limit()) is not None:
            raise exceeded
        if changes is not None and not isinstance(changes, Changes):
            raise TypeError(
                f"process of pipeline {self.pipeline} returned {changes!r:.100}: "
                "return Changes(…) or None"
            )
        refuse_modified(row)
        return changes or Changes()

    async def _apply(self, item: Item, loaded: Loaded, changes: Changes) -> None:
        tries: list[datetime] = []
        durable, others = self._split(changes)
        for task in others:
            self._client.envelopes.prepare(task)  # an invalid task fails here, not after the commit
        apply = partial(
            self.leasing.apply,
            item.lease,
            loaded.row,
            changes,
            self._interval(),
            tries,
            within=partial(self._submit_within, durable),
        )
        await self._end(item, apply)
        await self._submit_after(others)

    def _split(self, changes: Changes) -> tuple[list[BaseTask], list[BaseTask]]:
        """Tasks that are submitted within the transaction, and those submitted after it."""
        within = [task for task in changes.tasks if self._has_outbox and task.durable]
        return within, [task for task in changes.tasks if task not in within]

    async def _submit_within(self, tasks: Sequence[BaseTask], session: AsyncSession) -> None:
        if tasks:
            await self._client.submit_many(tasks, transaction=session)

    async def _submit_after(self, tasks: Sequence[BaseTask]) -> None:
        """Submit tasks whose changes are committed; wait for Redis if it is unavailable."""
        ends_at = time.monotonic() + _SUBMIT_SECONDS
        for task in tasks:
            id = str(uuid.uuid4())  # so that a repetition after a lost reply is the same task
            reason: object = "the process stops"
            try:
                while True:
                    try:
                        await self._client.submit(task, id=id)
                        reason = ""
                        break
                    except NonetError as error:
                        reason = error
                        if time.monotonic() > ends_at:
                            break
                    await asyncio.sleep(_AGAIN_SECONDS)
            finally:
                if reason:
                    name = type(task).__name__
                    logger.error("task of an applied row lost: class=%s error=%s", name, reason)

    async def _fail(self, item: Item, error: BaseException) -> str:
        lease = item.lease
        settlement = decide(
            Failed(error),
            self.pipeline.retry_policy,
            lease.attempt,
            datetime.now(UTC),
            dlq_eligible=True,
        )
        is_last = lease.attempt >= self.pipeline.max_attempts and settlement.end is End.RETRY
        if settlement.end is End.DEAD or is_last:
            self._log_failure(item, settlement, "becomes a dead letter")
            exhausted = await self._end(item, partial(self.leasing.exhaust, lease))
            item.beating.items = self.leasing.held(lease)  # its related rows are free now
            return await self._bury(item, exhausted, settlement)
        delay = settlement.delay.total_seconds()
        counts = settlement.end is End.RETRY
        self._log_failure(item, settlement, f"due again in {delay:.0f} s")
        await self._end(item, partial(self.leasing.fail, lease, delay, [], counts=counts))
        return "failed" if counts else "handed-back"

    async def _bury(self, item: Item, exhausted: Exhausted, last: Settlement | None) -> str:
        """Write the dead letter, then finish the row; it stays dying while that is impossible."""
        key = item.lease.key
        if (delay := await self._write(key, exhausted, last)) is not None:
            await self._end(item, partial(self.leasing.put_off, item.lease, delay))
            return "dying"
        await self._end(item, partial(self.leasing.bury, item.lease))
        return "dead"

    async def _on_stale(self, loaded: Loaded, changes: Changes | None) -> None:
        try:
            await self.pipeline.on_stale(loaded.row, changes)
        except Exception:
            logger.exception("on_stale of pipeline %s failed", self.pipeline)

    async def _end(self, item: Item, step: Callable[[], Any]) -> Any:
        """Do a step that ends the lease. It checks the lease itself and raises `Stale`.

        A renewal that meets the lease in the meantime must not report a loss: after a commit whose
        reply has not arrived yet, `on_stale` would revert what was applied.
        """
        item.beating.is_ending = True
        return await self._until_lost(item, step)

    async def _until_lost(self, item: Item, step: Callable[[], Any]) -> Any:
        """Do a step, and repeat it while the database is unavailable and the lease holds."""
        while True:
            try:
                done = await step()
                self._log.succeeded()
                return done
            except ServerUnreachableError as error:
                if time.monotonic() >= item.beating.deadline:
                    raise Stale from error
                self._log.failed(error, _AGAIN_SECONDS)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _give_up(self, item: Item) -> None:
        """Release the rows of a lost lease, and retry until the database answers.

        Otherwise, after an outage, all rows of this process would look as if the process had died,
        and would run one by one.
        """
        ends_at = time.monotonic() + _GIVE_UP_SECONDS
        while True:
            try:
                await self.leasing.give_up(item.lease)
                return
            except ServerUnreachableError as error:
                if time.monotonic() > ends_at:
                    logger.warning("lost row not released, its lease ends: %s", error)
                    return
            await asyncio.sleep(_AGAIN_SECONDS)

    def _log_failure(self, item: Item, settlement: Settlement, what: str) -> None:
        logger.error(
            "row failed, %s: pipeline=%s key=%s attempt=%s error=%s\n%s",
            what,
            self.pipeline,
            item.lease.key,
            item.lease.attempt,
            settlement.error.brief,
            settlement.error.traceback,
        )


def _timed_out(limit: float | None) -> TaskTimeoutError:
    return TaskTimeoutError(f"process did not end within its timeout of {limit:g} s")


def of_row(process: Callable[..., Any]) -> Callable[..., Any]:
    """The parameters that an injector fills: all parameters of `process` except the row."""
    return partial(process, **{next(iter(inspect.signature(process).parameters)): None})


def refuse_modified(row: Any) -> None:
    """Raise `TypeError` if code has changed a detached row, because that would not be saved."""
    state: Any = sa.inspect(row)
    changed = sorted(name for name in state.committed_state)
    if changed:
        raise TypeError(
            f"process changed {', '.join(changed)} of the row, which is read-only: "
            f"return Changes({changed[0]}=…)"
        )


def _exceeded_limit() -> TaskTimeoutError | None:
    """The time limit for which the task that processes the row was cancelled, or None."""
    running = running_context()
    return None if running is None else running.timed_out


def is_cancelled() -> bool:
    """Whether the current asyncio task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""One pipeline in one process: `Runner`.

The fetch loop leases due rows into a short queue. Each row takes one of the pipeline's workers and
passes through `Runner._run`: load → process → apply or fail → forget.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import NonetError, ServerUnreachableError, TaskTimeoutError
from nonet.client.client import Client
from nonet.daemon.service import Stop
from nonet.pipelines.backoff import Pauses, wanted
from nonet.pipelines.changes import Changes
from nonet.pipelines.heartbeat import Beating, Heartbeat
from nonet.pipelines.hints import send_soon
from nonet.pipelines.leasing import (
    Exhausted,
    Lease,
    Leasing,
    Loaded,
    NotSelected,
    RelatedBusy,
    Stale,
)
from nonet.pipelines.options import PipelineOptions
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.tally import PipelineTally
from nonet.rules.outcomes import End, Failed, Settlement, decide
from nonet.tasks.injection import Injector
from nonet.tasks.task import BaseTask
from nonet.telemetry.failures import FailureLog

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 0.5
_LOOK_SECONDS = 1.0  # how soon a changed number of workers or a pause is noticed
_LEAST_SECONDS = 0.05
# How long to try to submit the tasks of changes that were applied.
_SUBMIT_SECONDS = 60.0
_CANCEL_SECONDS = 2.0
_RELEASE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Item:
    """A leased row in this process.

    Attributes:
        lost: why the lease is lost; None while it is not.
        is_stopped: the process stops, so the row is handed back.
        task: the asyncio task that processes it; None while it is queued.
    """

    lease: Lease
    beating: Beating = field(init=False)
    lost: str | None = None
    is_stopped: bool = False
    task: asyncio.Task[None] | None = None


class Runner:
    """Run one pipeline.

    Args:
        options: returns what is configured now.
        letters: writes dead letters.
        has_outbox: durable tasks are stored in the database of the rows.

    Attributes:
        table: name of its table.
        hinted: set when a row of the table may have become due.
        problem: why the database does not work, or empty.
    """

    def __init__(
        self,
        leasing: Leasing,
        heartbeat: Heartbeat,
        injector: Injector,
        client: Client,
        options: Callable[[], PipelineOptions],
        letters: Any,
        tally: PipelineTally,
        *,
        has_outbox: bool,
    ) -> None:
        self.pipeline: Pipeline[Any] = leasing.pipeline
        self.leasing = leasing
        self.table = leasing.table.name
        self._heartbeat = heartbeat
        self._injector = injector
        self._client = client
        self._options = options
        self._letters = letters
        self.tally = tally
        self._has_outbox = has_outbox
        self.hinted = asyncio.Event()
        self._queue: deque[Item] = deque()
        self._running: set[Item] = set()
        self._pauses = Pauses()
        self._log = FailureLog(f"fetch of pipeline {self.pipeline.name}", logger)
        self._loop = asyncio.get_running_loop()
        # What the injector has to fill: all parameters of `process` but the row.
        self._injected = partial(self.pipeline.process, **{_first(self.pipeline.process): None})

    @property
    def problem(self) -> str:
        """Why the last fetch failed, or empty."""
        return self._log.error

    @property
    def queued(self) -> int:
        """How many leased rows wait for a worker."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many rows are in process."""
        return len(self._running)

    # ---- fetch ----------------------------------------------------------------------------------

    async def run(self, stop: Stop) -> None:
        """Fetch rows and start to process them until a stop is requested; then call `drain`."""
        stopping = asyncio.create_task(stop.requested.wait())
        try:
            while not stop.requested.is_set():
                # Cleared before the fetch, so that a hint during it causes another one.
                self.hinted.clear()
                pause = await self._fetch()
                hinted = asyncio.create_task(self.hinted.wait())
                either = {hinted, stopping}
                await asyncio.wait(either, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                hinted.cancel()
        finally:
            stopping.cancel()

    async def _fetch(self) -> float:
        """Fill the queue; return the seconds until the next fetch, which a hint shortens."""
        options = self._options()
        if options.paused:
            await self._release_queue()
            return _LOOK_SECONDS
        self._start_queued()
        limit = wanted(self.queued, options.workers, options.queue)
        if not limit:
            return _LOOK_SECONDS  # the next row that starts wakes this loop
        try:
            leases = await self.leasing.fetch(limit, time.monotonic())
        except Exception as error:  # whatever it is, the next fetch may work
            pause = self._pauses.after(0)
            self._log.failed(error, pause)
            return pause
        self._log.succeeded()
        self.tally.fetched(len(leases))
        self._queue += [self._hold(lease) for lease in leases]
        self._start_queued()
        if not leases:
            await asyncio.sleep(_LEAST_SECONDS)  # so that many hints cause few fetches
        return 0.0 if len(leases) == limit else self._pauses.after(len(leases)) or _AGAIN_SECONDS

    def _hold(self, lease: Lease) -> Item:
        item = Item(lease)
        item.beating = self._heartbeat.hold(
            self.leasing.held(lease),
            self.pipeline.lease,
            lease.since,
            partial(self._lose_soon, item),
        )
        return item

    def _lose_soon(self, item: Item, reason: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lose, item, reason)

    def _lose(self, item: Item, reason: str) -> None:
        self.tally.lost()
        item.lost = reason
        if item.task is not None:
            item.task.cancel()
        elif item in self._queue:
            self._queue.remove(item)

    def _start_queued(self) -> None:
        """Give queued rows to free workers."""
        options = self._options()
        while self._queue and len(self._running) < options.workers and not options.paused:
            item = self._queue.popleft()
            self._running.add(item)
            # A new context, so that no row sees the context variables of another one.
            item.task = self._loop.create_task(
                self._run(item),
                name=f"{self.pipeline.name}:{item.lease.key}",
                context=contextvars.Context(),
            )
        if wanted(self.queued, options.workers, options.queue):
            self.hinted.set()

    # ---- one row: load → process → apply or fail → forget ---------------------------------------

    async def _run(self, item: Item) -> None:
        """Process one row, from the queue to the end of its lease."""
        began, outcome = time.monotonic(), "lost"
        try:
            outcome = await self._process(item)
        except Stale:
            item.lost = item.lost or "another worker has the row"
            await self._release_related(item)
        except asyncio.CancelledError:
            if item.lost is None and not item.is_stopped:
                raise
            outcome = "stopped" if item.lost is None else "lost"
            _uncancel()
            if item.lost is None:
                await self._release([item])
        except Exception:
            # The lease ends by itself, and then the row is fetched again.
            logger.exception("row not settled: pipeline=%s key=%s", self.pipeline, item.lease.key)
        finally:
            self._forget(item)
            self.tally.processed(outcome, time.monotonic() - began)

    async def _process(self, item: Item) -> str:
        """Load, process and settle a row; return its outcome."""
        lease = item.lease
        try:
            loaded = await self._until_lost(item, partial(self.leasing.load, lease))
        except RelatedBusy:
            await self._until_lost(item, partial(self.leasing.wait, lease))
            return "waiting"
        except NotSelected:
            fail = partial(self.leasing.fail, lease, self._options().interval, [], counts=False)
            await self._until_lost(item, fail)
            return "not-selected"
        if isinstance(loaded, Exhausted):
            return await self._bury(item, loaded, None)
        item.beating.items = self.leasing.held(lease)
        self.tally.started(max(0.0, (datetime.now(UTC) - lease.due_at).total_seconds()))
        changes = None
        try:
            changes = await self._call(loaded.row)
            await self._apply(item, loaded, changes)
            return "done"
        except Stale:
            await self._on_stale(loaded, changes)
            raise
        except asyncio.CancelledError:
            if item.lost is not None:
                _uncancel()
                await self._on_stale(loaded, changes)
            raise
        except BaseException as error:  # SystemExit in an author's code must not end the process
            return await self._fail(item, error)

    async def _call(self, row: Any) -> Changes:
        """Call the author's code outside of any transaction."""
        process = self.pipeline.process
        limit = self.pipeline.timeout
        try:
            async with asyncio.timeout(limit) as timer:
                async with self._injector.open(self._injected) as arguments:
                    changes = await process(row, **arguments)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise TaskTimeoutError(
                f"process did not end within its timeout of {limit:g} s"
            ) from error
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
        apply = partial(
            self.leasing.apply,
            *(item.lease, loaded.row, changes, self._options().interval, tries),
            within=partial(self._submit_within, durable),
        )
        await self._until_lost(item, apply)
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
            while True:
                try:
                    await self._client.submit(task, id=id)
                    break
                except NonetError as error:
                    if time.monotonic() > ends_at:
                        name = type(task).__name__
                        logger.error("task of an applied row lost: class=%s error=%s", name, error)
                        break
                await asyncio.sleep(_LOOK_SECONDS)

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
            exhausted = await self._until_lost(item, partial(self.leasing.exhaust, lease))
            return await self._bury(item, exhausted, settlement)
        delay = settlement.delay.total_seconds()
        counts = settlement.end is End.RETRY
        self._log_failure(item, settlement, f"due again in {delay:.0f} s")
        await self._until_lost(item, partial(self.leasing.fail, lease, delay, [], counts=counts))
        return "failed" if counts else "handed-back"

    async def _bury(self, item: Item, exhausted: Exhausted, last: Settlement | None) -> str:
        """Write the dead letter, then finish the row; it stays dying while that is impossible."""
        key = item.lease.key
        if not await self._letters.write(self.pipeline.name, key, exhausted, last):
            delay = self._letters.retry_seconds
            await self._until_lost(
                item, partial(self.leasing.fail, item.lease, delay, [], counts=False)
            )
            return "dying"
        await self._until_lost(item, partial(self.leasing.bury, item.lease))
        return "dead"

    async def _on_stale(self, loaded: Loaded, changes: Changes | None) -> None:
        try:
            await self.pipeline.on_stale(loaded.row, changes)
        except Exception:
            logger.exception("on_stale of pipeline %s failed", self.pipeline)

    async def _until_lost(self, item: Item, step: Callable[[], Any]) -> Any:
        """Do a step, and repeat it while the database is unavailable and the lease holds."""
        while True:
            try:
                return await step()
            except ServerUnreachableError as error:
                if time.monotonic() >= item.beating.deadline:
                    raise Stale from error
                logger.warning("pipeline %s: %s", self.pipeline, error)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _forget(self, item: Item) -> None:
        self._heartbeat.drop(item.beating)
        self._running.discard(item)
        self._start_queued()

    def _log_failure(self, item: Item, settlement: Settlement, what: str) -> None:
        logger.error(
            "row failed, %s: pipeline=%s key=%s attempt=%s error=%s\n%s",
            *(what, self.pipeline, item.lease.key, item.lease.attempt),
            *(settlement.error.brief, settlement.error.traceback),
        )

    # ---- release --------------------------------------------------------------------------------

    async def drain(self, grace: float, forced: asyncio.Event) -> bool:
        """Release the queued rows, let the others end within `grace` seconds, release the rest.

        Returns:
            Whether all rows in process have ended by themselves.
        """
        await self._release_queue()
        send_soon({self.table})
        deadline = time.monotonic() + grace
        while self._running and time.monotonic() < deadline and not forced.is_set():
            tasks = {item.task for item in self._running if item.task is not None}
            await asyncio.wait(tasks, timeout=0.1)
        left = list(self._running)
        for item in left:
            item.is_stopped = True
            if item.task is not None:
                item.task.cancel()
        if left:
            await asyncio.wait({i.task for i in left if i.task}, timeout=_CANCEL_SECONDS)
        return not left

    async def _release_queue(self) -> None:
        items = list(self._queue)
        self._queue.clear()
        await self._release(items)
        for item in items:
            self._heartbeat.drop(item.beating)

    async def _release(self, items: list[Item]) -> None:
        if not items:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.leasing.release([item.lease for item in items])
        except (NonetError, TimeoutError, sa.exc.SQLAlchemyError) as error:
            logger.warning("%d rows not released, their leases end: %s", len(items), error)

    async def _release_related(self, item: Item) -> None:
        try:
            await self.leasing.release_related(item.lease)
        except NonetError as error:
            logger.warning("related rows not released, their leases end: %s", error)


def _first(process: Callable[..., Any]) -> str:
    return next(iter(inspect.signature(process).parameters))


def refuse_modified(row: Any) -> None:
    """Raise `TypeError` if code has changed a detached row, because that would not be saved."""
    state: Any = sa.inspect(row)
    changed = sorted(name for name in state.committed_state)
    if changed:
        raise TypeError(
            f"process changed {', '.join(changed)} of the row, which is read-only: "
            f"return Changes({changed[0]}=…)"
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()

"""One pipeline in one process: `PipelineRunner`.

The fetch loop leases due rows into a short queue. Each row takes one of the pipeline's workers and
passes through `PipelineRunner._run`, which calls `processing`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import NonetError
from nonet.base.loop import uncancel
from nonet.client.client import Client
from nonet.daemon.service import Stop
from nonet.pipelines.backoff import Pauses, queue_size, wanted
from nonet.pipelines.burial import Letters
from nonet.pipelines.dispatch import dispatch
from nonet.pipelines.heartbeat import Heartbeat
from nonet.pipelines.hints import send_soon
from nonet.pipelines.lease import Lease, Stale
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.pipeline_options import PipelineOptions
from nonet.pipelines.pipeline_tally import PipelineTally
from nonet.pipelines.processing import Item, Processing
from nonet.pipelines.room import ALONE_SECONDS, RowAdmission
from nonet.pipelines.table_keys import text_of_key
from nonet.tasks.injection import Injector
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.tracing import fetching, start_row

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 0.5
_LOOK_SECONDS = 1.0  # how soon a changed number of workers or a pause is noticed
_LEAST_SECONDS = 0.05
_CANCEL_SECONDS = 2.0
_RELEASE_SECONDS = 5.0


class PipelineRunner:
    """Run one pipeline.

    Args:
        options: returns what is configured now.
        room: the rows that all pipelines of this process run.
        letters: writes dead letters.

    Attributes:
        table: name of its table.
        hinted: set when a row of the table may have become due.
        problem: why the database does not work, or empty.
    """

    def __init__(
        self,
        leasing: Leasing,
        injector: Injector,
        client: Client,
        options: Callable[[], PipelineOptions],
        room: RowAdmission,
        letters: Letters,
    ) -> None:
        self.pipeline: Pipeline[Any] = leasing.pipeline
        self.leasing: Leasing = leasing
        self.table: str = leasing.table.name
        self._options = options
        self._room = room
        room.watch(self._room_changed)
        self.tally: PipelineTally = PipelineTally()
        self._client = client
        self._processing = Processing(
            leasing,
            injector,
            client,
            lambda: options().interval,
            partial(letters.write, self.pipeline.name),
            started=self.tally.started,
            # A release that wakes the row may be missed: fetch when it tries again by itself.
            waits=lambda seconds: self._loop.call_later(seconds, self.hinted.set),
        )
        self.hinted: asyncio.Event = asyncio.Event()
        self._queue: deque[Item] = deque()
        self._running: set[Item] = set()
        self._pauses = Pauses()
        self._log = FailureLog(f"fetch of pipeline {self.pipeline.name}", logger)
        self._stop = Stop()
        self._loop = asyncio.get_running_loop()

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

    async def run(self, stop: Stop, heartbeat: Heartbeat) -> None:
        """Fetch rows and start to process them until a stop is requested; then call `drain`.

        Rows whose processing has not begun by then are released at once.

        Args:
            heartbeat: renews the leases; it runs until `drain` has ended.
        """
        self._stop, self._heartbeat = stop, heartbeat
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
                if self.hinted.is_set():  # a row that is locked in this moment is found soon after
                    self._pauses.empty = 0
            await self._release_queue()
            send_soon({self.table})
        finally:
            stopping.cancel()

    async def _fetch(self) -> float:
        """Fill the queue; return the seconds until the next fetch, which a hint shortens."""
        options = self._options()
        if options.paused:
            await self._release_queue()
            return _LOOK_SECONDS
        if self._room.is_reserved:  # meanwhile other processes can take the queued rows
            await self._put_off_overdue()
            await self._release_queue(but_suspect=True)
            return _LOOK_SECONDS
        self._start_queued()
        limit = wanted(self.queued, options.workers, options.queue)
        if not limit:
            return _LOOK_SECONDS  # the next row that starts wakes this loop
        try:
            dispatched = await self._dispatch(options)
            with fetching(self.pipeline.name) as found_rows:
                leases = await self.leasing.fetch(limit, time.monotonic())
                found_rows(len(leases))
        except Exception as error:  # whatever it is, the next fetch may work
            pause = self._pauses.after(0)
            self._log.failed(error, pause)
            return pause
        self._log.succeeded()
        self.tally.fetches += 1
        await self._take_in([self._hold(lease) for lease in leases])
        if not (leases or dispatched):
            await asyncio.sleep(_LEAST_SECONDS)  # so that many hints cause few fetches
        found = len(leases) + dispatched
        return 0.0 if len(leases) == limit else self._pauses.after(found) or _AGAIN_SECONDS

    async def _take_in(self, items: list[Item]) -> None:
        """Queue leased rows, and release or put off rows that this process cannot run now."""
        if self._room.is_reserved:
            await self._let_go(items)
            return
        suspects = [item for item in items if item.lease.suspect]
        if suspects and self._room.reserve(suspects[0]):
            self._queue.appendleft(suspects[0])
            self._start_queued()
            await self._let_go([item for item in items if item is not suspects[0]])
            return
        # First the rows that have waited for related rows: their related rows are held back for
        # them.
        others = [item for item in items if not item.lease.suspect]
        self._queue.extendleft(item for item in others[::-1] if item.lease.waiting_since)
        self._queue += [item for item in others if not item.lease.waiting_since]
        self._start_queued()
        for suspect in suspects:
            await self._put_off(suspect)

    async def _put_off_overdue(self) -> None:
        suspect = self._room.overdue_suspect
        if suspect is not None and suspect in self._queue:
            self._queue.remove(suspect)
            self._room.give_up_waiting(suspect)
            await self._put_off(suspect)

    async def _put_off(self, suspect: Item) -> None:
        """Leave a row that must run alone to other processes for a while."""
        self._heartbeat.drop(suspect.beating)
        try:
            await self.leasing.defer(suspect.lease, ALONE_SECONDS)
        except (Stale, NonetError) as error:
            logger.warning("row not released, its lease ends: %s", error)

    def _room_changed(self) -> None:
        self._start_queued()
        self.hinted.set()

    async def _dispatch(self, options: PipelineOptions) -> int:
        """Submit a task for each due row, if the pipeline is processed by tasks.

        At most `queue` such tasks are live at a time in the namespace.
        """
        if self.pipeline.process_as is None:
            return 0
        name = self._client.registry.of_class(self.pipeline.process_as).name
        room = queue_size(options.workers, options.queue) - await self._client.active_tasks(name)
        if room <= 0:
            return 0
        rows = await dispatch(self.leasing, room)
        make = self.pipeline.process_as
        tasks = [make(self.pipeline.name, text_of_key(row.key), row.series) for row in rows]
        await self._client.submit_many(tasks)
        return len(rows)

    def _hold(self, lease: Lease) -> Item:
        item = Item(lease, is_alone=lease.suspect > 0)
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
        if item.lose(reason) and item in self._queue:
            self._queue.remove(item)
            self._room.leave(item)
            self.tally.losses += 1

    def _start_queued(self) -> bool:
        """Give queued rows to free workers; return whether there were any."""
        options, before = self._options(), len(self._queue)
        may_start = not (options.paused or self._stop.requested.is_set())
        while may_start and self._queue and len(self._running) < options.workers:
            if not self._room.admits(self._queue[0]):
                break
            item = self._queue.popleft()
            self._running.add(item)
            self._room.enter(item)
            # A new context, so that no row sees the context variables of another one.
            item.task = self._loop.create_task(
                self._run(item),
                name=f"{self.pipeline.name}:{item.lease.key}",
                context=contextvars.Context(),
            )
        return len(self._queue) < before

    # ---- one row: load → process → apply or fail → forget ---------------------------------------

    async def _run(self, item: Item) -> None:
        """Process one row, from the queue to the end of its lease."""
        began, outcome = time.monotonic(), "lost"
        span = start_row(self.pipeline.name, item.lease.key)
        try:
            outcome = await self._processing.run(item)
        except Stale:
            self.tally.losses += 1
        except asyncio.CancelledError:
            if not item.is_stopped:
                raise
            outcome = "stopped"
            uncancel()
            await self._release([item])
        except Exception:
            # The lease ends by itself, and then the row is fetched again.
            logger.exception("row not settled: pipeline=%s key=%s", self.pipeline, item.lease.key)
        finally:
            self._forget(item)
            self.tally.processed(outcome, time.monotonic() - began)
            if span is not None:
                kind = type(item.error).__qualname__ if item.error else ""
                span.end(outcome, kind, str(item.error or ""), "", ())

    def _forget(self, item: Item) -> None:
        self._heartbeat.drop(item.beating)
        self._running.discard(item)
        self._room.leave(item)
        options = self._options()
        # Only if a row left the queue: an empty queue means that the last fetch found no more rows.
        if self._start_queued() and wanted(self.queued, options.workers, options.queue):
            self.hinted.set()

    # ---- release --------------------------------------------------------------------------------

    async def drain(self, grace: float, forced: asyncio.Event) -> bool:
        """Let the rows in process end within `grace` seconds, and release the rest.

        Returns:
            Whether all rows in process have ended by themselves.
        """
        deadline = time.monotonic() + grace
        while self._running and time.monotonic() < deadline and not forced.is_set():
            tasks = {item.task for item in self._running if item.task is not None}
            await asyncio.wait(tasks, timeout=0.1)
        left = list(self._running)
        for item in left:
            item.is_stopped = True
            # Do not interrupt its last transaction, which has 2 s left to end.
            if item.task is not None and not item.beating.is_ending:
                item.task.cancel()
        if left:
            await asyncio.wait({i.task for i in left if i.task}, timeout=_CANCEL_SECONDS)
        return not left

    async def _release_queue(self, *, but_suspect: bool = False) -> None:
        items = [item for item in self._queue if not (but_suspect and item.lease.suspect)]
        for item in items:
            self._queue.remove(item)
            self._room.leave(item)
        await self._let_go(items)

    async def _let_go(self, items: list[Item]) -> None:
        for item in items:  # first, because a renewal would report the released ones as lost
            self._heartbeat.drop(item.beating)
        await self._release(items)

    async def _release(self, items: list[Item]) -> None:
        if not items:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.leasing.release([item.lease for item in items])
        except (NonetError, TimeoutError, sa.exc.SQLAlchemyError) as error:
            logger.warning("%d rows not released, their leases end: %s", len(items), error)

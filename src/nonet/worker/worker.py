"""The worker daemon: free slots are filled by fetching, each delivery is executed and settled."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nonet.client import Client
from nonet.errors import NonetError
from nonet.health import Report
from nonet.injection import Injector
from nonet.locks import leased_ttl_ms
from nonet.outcomes import Failed, Lost
from nonet.registry import Registry
from nonet.service import ExitCode, Stop, every, log_tick_failure, wind_up
from nonet.settings import Settings
from nonet.stores.broker import Broker, Delivery, new_cursors
from nonet.stores.inspection import Inspection
from nonet.stores.leases import Lease, Leases
from nonet.task import Size
from nonet.watchdog import Watchdog
from nonet.worker.attempt import Attempt
from nonet.worker.execute import Tools, execute
from nonet.worker.settle import Settler

logger = logging.getLogger(__name__)

# Small tasks share the loop; the others take the whole worker.
DEFAULT_CONCURRENCY = {Size.SMALL: 100, Size.MEDIUM: 1, Size.LARGE: 1}
_WORKER_DEATH_LIMIT = 10
_HELP_PROMOTE_SECONDS = 1.0
_PAGES_PER_SWEEP = 60
# How long cancelled tasks may take to end before the process goes without them.
_CANCEL_SECONDS = 2.0
_LEAVE_SECONDS = 1.0
_STOPPED = "the worker stopped"
# Who has not heard of Redis for so long is not ready.
_SILENT_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerParts:
    """What an open application gives a worker."""

    settings: Settings
    broker: Broker
    client: Client
    registry: Registry
    injector: Injector
    settler: Settler
    version: str


class Worker:
    """One worker process of one size.

    Attributes:
        id: incarnation, never used again: ``size-nonce``.
        name: ``pid@host``, for people.
    """

    def __init__(self, parts: WorkerParts, size: Size, concurrency: int | None = None) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._size = size
        self._concurrency = concurrency or parts.settings.concurrency or DEFAULT_CONCURRENCY[size]
        self.id = f"{size}-{secrets.token_hex(6)}"
        self.name = f"{os.getpid()}@{socket.getfqdn()}"
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._slot_freed = asyncio.Event()
        # Threads of attempts that are over; each keeps its slot until it ends.
        self._abandoned: set[Future[Any]] = set()
        # What goes on beyond its hard timeout; it frees its slot, unless there are too many.
        self._given_up: set[Future[Any] | asyncio.Task[Any]] = set()
        # Set while a fetch may have handed over tasks of which we know nothing.
        self._unsure = False
        self._heard_at = time.monotonic()
        self._stop = Stop()
        self._cursors = new_cursors()
        self._threads = ThreadPoolExecutor(2 * self._concurrency, thread_name_prefix="nonet-task")
        self._tools = Tools(
            parts.client,
            parts.registry,
            parts.injector,
            self._threads,
            parts.settings.message_limit,
            self._relock,
            self._abandon,
            self._give_up,
        )
        self._leases = self._make_leases()
        self._watchdog = Watchdog(self._leases, parts.settings.renew_interval)
        self._broker.epoch.tell(self._notice_loss)

    async def run(self, stop: Stop) -> ExitCode:
        """Work until a stop is requested, then drain.

        Returns:
            OK when everything that ran has ended, FAILED when the grace cut tasks off,
            SECOND_SIGNAL when a second signal did.

        Raises:
            ServerUnreachableError: Redis does not answer at the start. Later losses are waited
                out.
            ConfigurationError: it is not fit: too old, may evict, denies a command.
        """
        self._stop = stop
        settings = self._parts.settings
        inspection = Inspection(self._broker, settings.namespace)
        await inspection.check(allow_eviction=settings.allow_eviction)
        await self._follow_config()
        await _in_own_thread(self._watchdog.start)
        logger.info("worker %s (%s) ready: %d slots", self.id, self.name, self._concurrency)
        try:
            async with asyncio.TaskGroup() as loops:
                running = {
                    loops.create_task(every(stop, "sweep", self._sweep), name="sweep"),
                    loops.create_task(every(stop, "help to promote", self._help_promote)),
                    loops.create_task(self._read(stop), name="reader"),
                }
                await wind_up(stop, running)
            return await self._drain(stop)
        finally:
            await _in_own_thread(self._watchdog.stop)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def report(self) -> Report:
        """Whether this process takes tasks: registered, not stopping, and Redis answers."""
        now, reasons = time.monotonic(), []
        if self._stop.requested.is_set():
            reasons.append("it drains")
        if now - self._watchdog.renewed_at > self._parts.settings.worker_ttl:
            reasons.append("it is not registered with Redis")
        if now - self._heard_at > _SILENT_SECONDS:
            reasons.append(f"Redis has not answered for {now - self._heard_at:.0f} s")
        elif self._unsure:
            reasons.append("the last fetch failed")
        details = {
            "worker": self.id,
            "name": self.name,
            "size": self._size,
            "slots": self._concurrency,
            "running": len(self._running),
        }
        return Report(not reasons, reasons, details)

    async def _read(self, stop: Stop) -> None:
        """Fetch for the free slots; wait for a free slot, a wake-up or the stop."""
        stopping = asyncio.create_task(stop.requested.wait())
        while not stop.requested.is_set():
            try:
                await self._fill_slots(stopping)
            except Exception as error:  # Redis away or restarted: wait and read on
                self._unsure = True
                pause = random.uniform(0.2, 1.0)
                log_tick_failure("fetch", error, pause)
                await stop.sleep(pause)
        stopping.cancel()

    async def _fill_slots(self, stopping: asyncio.Task[Any]) -> None:
        free = self._concurrency - len(self._running) - len(self._abandoned) - self._overdue
        if free <= 0:
            self._slot_freed.clear()
            await _first(stopping, self._slot_freed.wait())
            return
        if self._unsure:
            held = [attempt.delivery for attempt in self._running]
            if given := await self._broker.disown(self.id, self._size, held):
                logger.warning("gave back %d tasks of a lost reply", given)
            self._unsure = False
            self._watchdog.beat_soon()  # Redis is back, perhaps without our leases
        since = time.monotonic()
        deliveries, more = await self._broker.fetch(self.id, self._size, free)
        self._heard_at = time.monotonic()
        for delivery in deliveries:
            self._start(delivery, since)
        if len(deliveries) < free and not more:
            await _first(stopping, self._broker.wait_for_wake(self.id))

    def _notice_loss(self) -> None:
        """Called by any thread that hears of another epoch."""
        logger.warning("Redis has lost its data, or came back with older ones")
        self._watchdog.beat_soon()  # tells at once which attempts nobody knows any more

    def _start(self, delivery: Delivery, since: float) -> None:
        attempt = Attempt(delivery, since)
        attempt.lease = self._lease(attempt)
        attempt.context.check_lease_with(lambda: self._watchdog.check(attempt.lease))
        self._watchdog.hold(attempt.lease, since, attempt.lose)
        # A context of its own, so that one attempt never sees another one's variables.
        task = asyncio.create_task(
            self._run_attempt(attempt), name=delivery.id, context=contextvars.Context()
        )
        self._running[attempt] = task

    async def _run_attempt(self, attempt: Attempt) -> None:
        try:
            if attempt.lost is not None:
                # The loop was blocked while the reply waited, and others may hold its locks.
                await self._parts.settler.settle(attempt, None, Lost(attempt.lost))
            elif attempt.delivery.state == "dying":
                await self._parts.settler.bury(attempt)
            else:
                task_class, outcome = await execute(attempt, self._tools)
                await self._parts.settler.settle(attempt, task_class, outcome)
        except GeneratorExit as error:
            # Of a future that a task awaited: it closes each coroutine between that and this one,
            # whatever they would have returned.
            task_class = self._parts.registry.find(attempt.context.name)
            await self._parts.settler.settle(attempt, task_class, Failed(error))
        except Exception:
            # The delivery stays pending and is reclaimed when its lease ends: nothing is lost.
            logger.exception("task %s: its settlement failed", attempt.delivery.id)
        finally:
            self._watchdog.drop(attempt.lease)
            del self._running[attempt]
            self._slot_freed.set()

    async def _sweep(self) -> float:
        """Reclaim what dead workers held; at a quarter of the lease, spread by jitter."""
        taken, self._cursors = await self._broker.reclaim(
            self.id, self._size, _WORKER_DEATH_LIMIT, self._cursors
        )
        if taken:
            logger.warning("reclaimed %d tasks of lost workers", taken)
        if any(cursor != b"0-0" for cursor in self._cursors):
            return 0.0
        await self._mend()
        return self._parts.settings.lease / 4 * random.uniform(0.75, 1.25)

    async def _mend(self) -> None:
        """Queue again what is in no place; so many records that one sweep does not see to all."""
        lease = timedelta(seconds=self._parts.settings.lease)
        for _ in range(_PAGES_PER_SWEEP):
            mended, more = await self._broker.mend(_WORKER_DEATH_LIMIT, lease / 4)
            if mended:
                logger.warning("queued %d tasks again that were in no place", mended)
            if not more:
                break

    async def _help_promote(self) -> float:
        """Delays must not depend on a living scheduler."""
        await self._follow_config()
        promoted = await self._broker.promote()
        if promoted.next_in is None:
            return _HELP_PROMOTE_SECONDS
        return min(_HELP_PROMOTE_SECONDS, promoted.next_in)

    async def _follow_config(self) -> None:
        """Look what holds; a loss of data is noticed too, also with all slots in use."""
        await self._broker.presence([])
        self._heard_at = time.monotonic()
        live, before = self._parts.client.live_config, self._info()
        await live.follow(self._broker.config_version)
        if self._info() != before:
            self._leases.tell(self._info())
            self._watchdog.beat_soon()

    async def _drain(self, stop: Stop) -> ExitCode:
        """Let running tasks finish within the grace; cut the others off and hand them back."""
        logger.info("draining %d tasks", len(self._running))
        forced = asyncio.create_task(stop.forced.wait())
        await self._wait_for_running(self._parts.settings.grace, forced)
        code = ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK
        forced.cancel()
        if self._running:
            code = code or ExitCode.FAILED
            for attempt in list(self._running):
                attempt.cut(_STOPPED)
            await self._wait_for_running(_CANCEL_SECONDS)
        if self._running:
            logger.error("%d tasks did not end when cancelled", len(self._running))
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                # A fetch that the stop cut off may have been given tasks that we never saw.
                held = [attempt.delivery for attempt in self._running]
                await self._broker.disown(self.id, self._size, held)
                await self._broker.leave(self.id, self._size)
        except (TimeoutError, NonetError) as error:
            reason = str(error) or "no answer"
            logger.warning("not signed off, the registration ends by itself: %s", reason)
        return code

    async def _wait_for_running(
        self, seconds: float, forced: asyncio.Task[Any] | None = None
    ) -> None:
        deadline = time.monotonic() + seconds
        while self._running and not (forced and forced.done()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            watched = {*self._running.values(), *([forced] if forced else [])}
            await asyncio.wait(watched, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _relock(self, attempt: Attempt, since: float) -> None:
        """Renew an attempt as often as the locks ask that were admitted instead of others."""
        if attempt.lost is None:
            attempt.lease = self._lease(attempt)
            self._watchdog.hold(attempt.lease, since, attempt.lose)

    @property
    def _overdue(self) -> int:
        """Slots that are taken by what goes on beyond its hard timeout.

        It frees as many as there are; without a bound its threads would fill the memory.
        """
        return max(0, len(self._given_up) - self._concurrency)

    def _abandon(self, thread: Future[Any]) -> None:
        """Count a thread that cannot be stopped as a slot in use, until it ends."""
        self._keep_until_end(thread, self._abandoned)

    def _give_up(self, left: Future[Any] | asyncio.Task[Any]) -> None:
        """Let others have the slot of what goes on beyond its hard timeout."""
        self._keep_until_end(left, self._given_up)
        if self._overdue:
            logger.error(
                "%d attempts go on beyond their hard timeouts; of %d slots they take %d: restart "
                "this worker",
                *(len(self._given_up), self._concurrency, self._overdue),
            )

    def _keep_until_end(self, left: Any, kept: set[Any]) -> None:
        """`left` is a future of a thread or an asyncio task, which call back in the same way."""
        loop = asyncio.get_running_loop()

        def ended(done: object) -> None:
            kept.discard(done)
            self._slot_freed.set()

        kept.add(left)
        left.add_done_callback(
            lambda done: loop.is_closed() or loop.call_soon_threadsafe(ended, done)
        )

    def _lease(self, attempt: Attempt) -> Lease:
        settings, delivery = self._parts.settings, attempt.delivery
        default_ttl_ms = round(settings.lock_ttl * 1000)
        lock_ttl_ms = leased_ttl_ms(attempt.locks, attempt.held, default_ttl_ms)
        return Lease(
            id=delivery.id,
            gen=delivery.gen,
            fence=delivery.fence,
            ttl=min(settings.lease, lock_ttl_ms / 1000) if lock_ttl_ms else settings.lease,
            stream_key=delivery.stream_key,
            entry=delivery.entry,
        )

    def _info(self) -> str:
        """What this worker says of itself."""
        live = self._parts.client.live_config
        return json.dumps(
            {
                "name": self.name,
                "size": self._size,
                "concurrency": self._concurrency,
                "version": self._parts.version,
                "config": live.version,
                "config_problem": live.problem,
            }
        )

    def _make_leases(self) -> Leases:
        settings = self._parts.settings
        return Leases(
            self._broker.url,
            settings.namespace,
            self.id,
            self._info(),
            worker_ttl=settings.worker_ttl,
            lock_ttl=settings.lock_ttl,
            timeout_seconds=min(5.0, settings.renew_interval),
            epoch=self._broker.epoch,
        )


async def _first(stopping: asyncio.Task[Any], waiting: Coroutine[Any, Any, object]) -> None:
    """Wait for `waiting`, but not beyond a stop; raises what it raised."""
    task = asyncio.create_task(waiting)
    await asyncio.wait({stopping, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.wait({task})


async def _in_own_thread(function: Callable[[], None]) -> None:
    """Not in the loop's executor, whose threads user code may occupy for ever."""
    with ThreadPoolExecutor(1, thread_name_prefix="nonet-own") as thread:
        await asyncio.get_running_loop().run_in_executor(thread, function)

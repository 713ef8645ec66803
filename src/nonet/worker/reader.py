"""Fetch tasks for the free slots of a worker, and sleep while there are none."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from nonet.base.errors import NonetError
from nonet.base.loop import uncancel
from nonet.daemon.contact import Contact
from nonet.daemon.service import Stop
from nonet.daemon.watchdog import Watchdog
from nonet.rules.fetch_batch import Batch
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery, takes_slot
from nonet.telemetry.failure_log import FailureLog
from nonet.worker.about import About
from nonet.worker.incarnation import Incarnation
from nonet.worker.runner import Runner
from nonet.worker.veto import Fitness, Veto, naming

logger = logging.getLogger(__name__)

# Pause between two checks whether this worker may take tasks again.
_DECLINE_SECONDS = 0.5
# How often a worker without a free slot fetches suspects and dying tasks, which need no slot.
_BESIDE_SECONDS = 1.0
# How long a task whose fetch replies are lost waits, so that the tasks behind it run.
_ASIDE = timedelta(seconds=30)
_UNREGISTERED = "its registration could not be renewed"


class Reader:
    """Fetches tasks for one worker and starts them.

    Args:
        me: the worker.
        runner: runs the deliveries.
        redis: records each answer of Redis.
        about: publishes why the worker takes no tasks.
        look: called when something other than a task has woken the worker.

    Attributes:
        has_fetched: whether a fetch has succeeded, so that the worker has joined its streams.
        is_unsure: whether a fetch reply was lost, which may have contained tasks.
        batch: limits how many tasks it fetches at once.
        polled_at: when it fetched last (monotonic).
    """

    def __init__(
        self,
        broker: Broker,
        me: Incarnation,
        runner: Runner,
        redis: Contact,
        watchdog: Watchdog,
        about: About,
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._me = me
        self._runner = runner
        self._redis = redis
        self._watchdog = watchdog
        self._veto = Veto(Fitness(broker.settings.memory_floor, broker.settings.load_ceiling))
        self._about = about
        self._look = look
        self.has_fetched = False
        self.is_unsure = False
        self.batch: Batch = Batch()
        self.polled_at: float = time.monotonic()
        self._is_asleep = False
        self._found_some = True
        self._is_relieved = False
        self._stop = Stop()
        self._reader: asyncio.Task[None] | None = None
        # True while a stop may cancel the reader.
        self._is_waiting = False
        # True if the last fetch found too little: the next one waits in Redis for a wake-up.
        self._sleeps = False
        self._waking: asyncio.Task[None] | None = None

    async def run(self, stop: Stop) -> None:
        """Fetch for the free slots until a stop is requested."""
        self._stop = stop
        self._reader = asyncio.current_task()
        interrupting = asyncio.create_task(self._interrupt_reader(stop))
        failures = FailureLog("fetch", logger)
        try:
            while not stop.requested.is_set():
                try:
                    with self._redis.asked():
                        await self._fill_slots()
                    failures.succeeded()
                except Exception as error:  # Redis is unavailable or restarted
                    self.is_unsure, self._sleeps = True, False
                    pause = random.uniform(0.2, 1.0)
                    failures.failed(error, pause)
                    await stop.sleep(pause)
        finally:
            interrupting.cancel()
            if self._waking is not None:
                self._waking.cancel()

    async def _interrupt_reader(self, stop: Stop) -> None:
        await stop.requested.wait()
        if self._is_waiting and self._reader is not None:
            self._reader.cancel()  # never within a fetch: its reply would be lost
        elif self._sleeps:
            with suppress(NonetError):
                await self._broker.rouse(self._me.id)

    async def _wait_for(self, waiting: Awaitable[object]) -> None:
        """Wait for an awaitable, or until a stop is requested."""
        self._is_waiting = True
        try:
            await waiting
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            uncancel()
        finally:
            self._is_waiting = False

    async def _fill_slots(self) -> None:
        runner = self._runner
        free, room = max(0, runner.free_slots), runner.suspects.room
        dying = runner.burials.room
        if runner.suspects.is_exclusive:  # nothing else may run now
            await self._wait_for(_next(runner.suspects.freed))
            return
        beside = room + dying > 0
        if not free and not (beside and time.monotonic() - self.polled_at > _BESIDE_SECONDS):
            await self._wait_for(_next(runner.freed, _BESIDE_SECONDS))
            return
        if self.is_unsure:
            await self._requeue_unknown()
        if why := self._reason_to_decline():
            await self._stand_aside(why)
            return
        self._come_back()
        if self._is_stopping:
            return
        if self._sleeps and (self._waking is not None or not runner.is_quiet):
            # A running task might block the loop. Wait for the wake-up only, and fetch then, so
            # that Redis does not hand tasks to a loop that cannot start them.
            self._sleeps = False
            await self._wait_for(self._woken())
            return
        wanted = self.batch.of(min(free, runner.batch))
        limits = self.batch.of(room), self.batch.of(dying)
        deliveries, since = await self._fetch(wanted, *limits)
        damaged = []
        for delivery in deliveries:
            try:
                runner.start(delivery, since)
            except Exception as error:  # the other deliveries must start nevertheless
                logger.exception("task %s cannot be started", delivery.id)
                damaged.append((delivery, f"it cannot be started: {error}"))
        if self._sleeps or runner.has_plain:
            # Let the last tasks begin first: short ones end in one step, others take a thread.
            await asyncio.sleep(0)
        for delivery, why in damaged:
            await self._broker.end_damaged(delivery, why)

    async def _woken(self) -> None:
        """Wait for a wake-up, or for room beside the slots."""
        if self._waking is None:
            self._waking = asyncio.create_task(self._broker.wait_for_wake(self._me.id))
        events = self._runner.suspects.freed, self._runner.burials.freed
        for event in events:
            event.clear()
        freed = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait({self._waking, *freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in freed:
                waiting.cancel()
        if self._waking.done():
            waking, self._waking = self._waking, None
            waking.result()

    async def _fetch(self, wanted: int, room: int, dying: int) -> tuple[list[Delivery], float]:
        """Return deliveries to start, and a time (monotonic) before Redis handed them over."""
        since = self.polled_at = time.monotonic()
        was_asleep = self._sleeps
        ask = self._me.id, self._me.size, wanted, room, dying
        is_woken = False
        if was_asleep:
            self._is_asleep = True
            try:
                found = await self._broker.fetch_when_woken(*ask)
            finally:
                self._is_asleep = False
            deliveries, more, since = found.deliveries, found.more, found.since
            is_woken, self._is_relieved = found.is_woken, found.is_relieved
        else:
            deliveries, more = await self._broker.fetch(*ask)
            self._is_relieved = False
        self.batch.arrived(len(deliveries), self._redis.heard())
        self.has_fetched, self._found_some = True, bool(deliveries)
        ordinary = [item for item in deliveries if takes_slot(item.stream_key)]
        self._sleeps = len(ordinary) < wanted and not more
        if deliveries and was_asleep and (self._is_stopping or self._reason_to_decline()):
            await self._broker.disown(self._me.id, self._me.size, self._runner.deliveries)
            return [], since
        if is_woken and not deliveries and not self._is_stopping:
            await self._look()
        return deliveries, since

    @property
    def is_idle(self) -> bool:
        """Whether it sleeps in Redis after a fetch that found nothing. Orders wake it."""
        return self._is_asleep and not self._found_some

    @property
    def is_relieved(self) -> bool:
        """Whether it is idle, and another idle worker of its size is on duty."""
        return self.is_idle and self._is_relieved

    async def _requeue_unknown(self) -> None:
        """Requeue tasks that Redis handed to this worker in a reply that was lost."""
        aside = _ASIDE if self.batch.is_stuck else timedelta(0)
        held = self._runner.deliveries
        if lost := await self._broker.disown(self._me.id, self._me.size, held, aside):
            if aside:
                logger.error(
                    "task %s set aside: the replies that deliver it are lost; raise "
                    "client-output-buffer-limit (normal) of Redis, or repair the network",
                    ", ".join(lost),
                )
            else:
                logger.warning("requeued %d tasks: the fetch reply was lost", len(lost))
            self.batch.lost(len(lost), time.monotonic())
        self.is_unsure = False
        self._watchdog.beat_soon()  # Redis may have come back without the leases

    def _reason_to_decline(self) -> str:
        if not self._watchdog.is_registered:
            # Other workers consider it dead, and would reclaim whatever it fetches now.
            return _UNREGISTERED
        veto = self._veto.reason()
        return naming(veto, self._runner.classes) if veto else ""

    async def _stand_aside(self, why: str) -> None:
        """Take no tasks for a moment.

        Leave the stack of idle workers, so that no submit wakes this one.
        """
        if not self._about.off:
            await self._broker.decline(self._me.id, self._me.size)
            self._runner.tally.vetoes[_kind_of_veto(why)] += 1
            # The loss of the registration is a warning already.
            level = logging.INFO if why == _UNREGISTERED else logging.WARNING
            logger.log(level, "this worker takes nothing: %s", why)
            self._watchdog.beat_soon()
        self._about.off = why
        self._sleeps = False  # no wake-up comes while it declines
        await self._wait_for(asyncio.sleep(_DECLINE_SECONDS))

    def _come_back(self) -> None:
        if self._about.off:
            logger.info("this worker takes tasks again")
            self._about.off = ""
            self._watchdog.beat_soon()

    @property
    def _is_stopping(self) -> bool:
        return self._stop.requested.is_set()


async def _next(event: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until the event is set anew, for at most `seconds`."""
    event.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _kind_of_veto(why: str) -> str:
    """Return the metric label for the reason of a veto.

    >>> _kind_of_veto("memory: 512 MiB free, below the floor of 1 GiB")
    'memory'
    """
    return "registration" if why == _UNREGISTERED else why.partition(":")[0]

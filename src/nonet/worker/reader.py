"""Fills the free slots of a worker: fetches when it must, and sleeps when nothing is to be done."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable
from contextlib import suppress

from nonet.base.errors import NonetError
from nonet.base.streams import Size
from nonet.daemon.contact import Contact
from nonet.daemon.service import Stop, log_tick_failure
from nonet.daemon.watchdog import Watchdog
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.worker.about import About
from nonet.worker.attempt.attempt import uncancel
from nonet.worker.runner import Runner
from nonet.worker.tally import Tally
from nonet.worker.veto import Veto

logger = logging.getLogger(__name__)

# Between two looks whether this worker may take something again.
_DECLINE_SECONDS = 0.5
# A worker without a free slot looks so often for suspects and burials, which need none.
_BESIDE_SECONDS = 1.0
_UNREGISTERED = "its registration could not be renewed"


class Reader:
    """Fetches for one worker, and starts what it is given.

    Args:
        worker: its incarnation.
        slots: of the worker.
        runner: runs what is fetched.
        redis: is told of each answer.
        about: is told when the worker takes nothing.
        tally: counts the vetoes; None: nobody does.

    Attributes:
        has_fetched: whether it has joined its streams.
        is_unsure: a fetch may have handed over tasks of which we know nothing.
        polled_at: when it asked last (monotonic).
    """

    def __init__(
        self,
        broker: Broker,
        worker: str,
        size: Size,
        slots: int,
        runner: Runner,
        redis: Contact,
        watchdog: Watchdog,
        veto: Veto,
        about: About,
        tally: Tally | None,
    ) -> None:
        self._broker = broker
        self._worker = worker
        self._size = size
        self._slots = slots
        self._runner = runner
        self._redis = redis
        self._watchdog = watchdog
        self._veto = veto
        self._about = about
        self._tally = tally
        self.has_fetched = False
        self.is_unsure = False
        self.polled_at: float = time.monotonic()
        self._stop = Stop()
        self._reader: asyncio.Task[None] | None = None
        # Whether a stop may interrupt the reader.
        self._is_waiting = False
        # Whether it fetches only when something wakes it, and what waits for that.
        self._sleeps = False
        self._waking: asyncio.Task[None] | None = None

    async def run(self, stop: Stop) -> None:
        """Fetch for the free slots; wait for a free slot, a wake-up or the stop."""
        self._stop = stop
        self._reader = asyncio.current_task()
        interrupting = asyncio.create_task(self._interrupt_reader(stop))
        try:
            while not stop.requested.is_set():
                try:
                    with self._redis.asked():
                        await self._fill_slots()
                except Exception as error:  # Redis away or restarted: wait and read on
                    self.is_unsure, self._sleeps = True, False
                    pause = random.uniform(0.2, 1.0)
                    log_tick_failure("fetch", error, pause)
                    await stop.sleep(pause)
        finally:
            interrupting.cancel()
            if self._waking is not None:
                self._waking.cancel()

    async def _interrupt_reader(self, stop: Stop) -> None:
        await stop.requested.wait()
        if self._is_waiting and self._reader is not None:
            self._reader.cancel()  # not within a fetch: what that is given would be lost
        elif self._sleeps:
            with suppress(NonetError):
                await self._broker.rouse(self._worker)

    async def _wait_for(self, waiting: Awaitable[object]) -> None:
        """Wait, but not beyond a stop."""
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
        graves = runner.burials.room
        if runner.suspects.is_exclusive:  # nothing else may run beside it
            await self._wait_for(_next(runner.suspects.freed))
            return
        beside = room + graves > 0
        if not free and not (beside and time.monotonic() - self.polled_at > _BESIDE_SECONDS):
            await self._wait_for(_next(runner.freed, _BESIDE_SECONDS))
            return
        if self.is_unsure:
            await self._give_unknown_back()
        if why := self._reason_to_decline():
            await self._stand_aside(why)
            return
        self._come_back()
        if self._sleeps:
            await asyncio.sleep(0)  # what was started may be over in one step
        if self._is_stopping:
            return
        if self._sleeps and (self._waking is not None or not runner.is_quiet):
            # A task might block the loop: nothing is to be handed over before we ask for it.
            self._sleeps = False
            await self._wait_for(self._woken())
            return
        # Half of the slots at a time: while one half is executed, Redis finds the next.
        wanted = min(free, -(-self._slots // 2))
        deliveries, since = await self._fetch(wanted, room, graves)
        damaged = []
        for delivery in deliveries:
            try:
                runner.start(delivery, since)
            except Exception as error:  # else those behind it would wait for their leases
                logger.exception("task %s cannot be started", delivery.id)
                damaged.append((delivery, f"it cannot be started: {error}"))
        for delivery, why in damaged:
            await self._broker.end_damaged(delivery, why)

    async def _woken(self) -> None:
        """Wait until something wakes this worker, or there is room again beside its slots."""
        if self._waking is None:
            self._waking = asyncio.create_task(self._broker.wait_for_wake(self._worker))
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

    async def _fetch(self, wanted: int, room: int, graves: int) -> tuple[list[Delivery], float]:
        """Deliveries to start, and a time (monotonic) that is not after their hand-over."""
        since = self.polled_at = time.monotonic()
        was_asleep = self._sleeps
        if was_asleep:  # nothing was left at the last look
            woken = self._broker.fetch_when_woken(self._worker, self._size, wanted, room, graves)
            deliveries, more, since = await woken
        else:
            deliveries, more = await self._broker.fetch(
                self._worker, self._size, wanted, room, graves
            )
        self._redis.heard()
        self.has_fetched = True
        ordinary = [item for item in deliveries if item.takes_slot]
        self._sleeps = len(ordinary) < wanted and not more
        if deliveries and was_asleep and (self._is_stopping or self._reason_to_decline()):
            await self._broker.disown(self._worker, self._size, self._runner.deliveries)
            return [], since
        return deliveries, since

    async def _give_unknown_back(self) -> None:
        """Redis may have handed something over of which we have not heard."""
        held = self._runner.deliveries
        if given := await self._broker.disown(self._worker, self._size, held):
            logger.warning("gave back %d tasks of a lost reply", given)
        self.is_unsure = False
        self._watchdog.beat_soon()  # Redis is back, perhaps without our leases

    def _reason_to_decline(self) -> str:
        if not self._watchdog.is_registered:
            # Others must take it for dead, and what it takes from now on, too.
            return _UNREGISTERED
        return self._veto.reason()

    async def _stand_aside(self, why: str) -> None:
        """Take nothing for a moment, and let nobody wake this worker meanwhile."""
        if not self._about.off:
            await self._broker.decline(self._worker, self._size)
            if self._tally is not None:
                self._tally.vetoes[_kind_of_veto(why)] += 1
            logger.warning("this worker takes nothing: %s", why)
            self._watchdog.beat_soon()
        self._about.off = why
        self._sleeps = False  # nobody would wake it
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
    """Wait until an event is set from now on, not longer than that."""
    event.clear()
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _kind_of_veto(why: str) -> str:
    """What a worker lacks that takes nothing.

    >>> _kind_of_veto("memory: 512 MiB free, below the floor of 1 GiB")
    'memory'
    """
    return "registration" if why == _UNREGISTERED else why.partition(":")[0]

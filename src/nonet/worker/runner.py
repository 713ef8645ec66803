"""One delivery to its end: identify → place → execute → conclude → settle → forget.

`nonet.worker.reader` fetches it; each runs in an asyncio task of its own, see `Runner._run`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nonet.base.loop import in_own_thread
from nonet.base.streams import Size
from nonet.daemon.service import ExitCode, end_without_loop
from nonet.daemon.watchdog import Watchdog
from nonet.messages.message import Usage
from nonet.rules.outcomes import Cancelled, End, Failed, Lost, Outcome
from nonet.stores.queue.broker import Order
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Lease
from nonet.tasks.locks import leased_ttl_ms
from nonet.tasks.task import Isolation
from nonet.telemetry.tracing import AttemptSpan, are_spans_collected, start_attempt
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.crashes import WITH_WORKER
from nonet.worker.attempt.execute import Tools, execute, identify, readmit
from nonet.worker.attempt.place import Place, place_of
from nonet.worker.children.children import Children
from nonet.worker.children.isolated import Isolated
from nonet.worker.lag import Culprit
from nonet.worker.leftovers import Leftovers
from nonet.worker.parts import WorkerParts
from nonet.worker.suspects import Suspects
from nonet.worker.tally import Tally

logger = logging.getLogger(__name__)

# After a hard timeout; what obeys has rolled back by then.
_STUCK_SECONDS = 1.5


class Runner:
    """Runs what a worker was given.

    Args:
        worker: its incarnation.
        size: of the worker.
        watchdog: keeps the leases alive.
        children: of this worker.
        slots: how many attempts run at a time.
        isolation: where all of them run; None: as their classes say.
        sign_off: takes this worker off the lists of Redis, called by a thread right before the
            process ends; must not raise, nor take long.
        tally: counts the attempts; None: nobody does.

    Attributes:
        freed: set when a slot has become free.
        burials: the lane of dying tasks, beside the slots.
        busy_at: when something ran last (monotonic).
    """

    def __init__(
        self,
        parts: WorkerParts,
        worker: str,
        size: Size,
        watchdog: Watchdog,
        children: Children,
        slots: int,
        isolation: Isolation | None,
        sign_off: Callable[[], None],
        tally: Tally | None = None,
    ) -> None:
        self._parts = parts
        self._tally = tally
        self._sign_off = sign_off
        self._watchdog = watchdog
        self._slots = slots
        self._isolation = isolation
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._settling = 0
        self.freed = asyncio.Event()
        self.burials: Burials = parts.burials
        self.busy_at = time.monotonic()
        self._leftovers = Leftovers(slots, self.freed.set, watchdog, parts.broker)
        self._is_traced = are_spans_collected()
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(2 * slots, thread_name_prefix="nonet-task")
        self._tools = Tools(
            parts.client,
            parts.registry,
            parts.injector,
            self._threads,
            parts.settings.message_limit,
            self._admit,
            self._leftovers.add,
        )
        in_children = partial(
            Isolated,
            settings=parts.settings,
            concluder=parts.concluder,
            admit=self._admit,
            accuse=partial(parts.broker.accuse, worker),
        )
        self._isolated = in_children(children)
        self._suspects = Suspects(
            size,
            lambda: in_children(Children(parts.settings, parts.broker.url)),
            parts.concluder,
            lambda: len(self._running) - len(self._suspects.in_hand) - len(self.burials.in_hand),
        )
        self._lock_ttl_ms = round(parts.settings.lock_ttl * 1000)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free_slots(self) -> int:
        """How many more may run; not more than 0 if there are none.

        Who is only settled needs no slot any more; but while Redis is slow, or away, not more than
        twice as many pile up as there are slots.
        """
        beside = len(self._suspects.in_hand) + len(self.burials.in_hand)
        executing = len(self._running) - beside - self._settling
        return (
            self._slots - max(executing, self._settling - self._slots) - self._leftovers.slots_taken
        )

    @property
    def suspects(self) -> Suspects:
        """The lane of those with which a process died, beside the slots."""
        return self._suspects

    @property
    def is_quiet(self) -> bool:
        """Whether no code of a task runs, or goes on."""
        return len(self._running) == self._settling and not self._leftovers

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nor goes on."""
        return not (self._running or self._leftovers)

    @property
    def left(self) -> int:
        """How many attempts have ended although their code runs on."""
        return len(self._leftovers)

    @property
    def deliveries(self) -> Iterable[Delivery]:
        """Those that run."""
        return [attempt.delivery for attempt in self._running]

    def close(self) -> None:
        """No thread takes anything any more; those that are busy are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(self, delivery: Delivery, since: float) -> None:
        """Run a delivery.

        Args:
            since: monotonic time before it was asked for.
        """
        attempt = Attempt(delivery, since)
        attempt.lease = self._lease(attempt)
        attempt.context.check_lease_with(partial(self._check, attempt))
        attempt.on_left = partial(self._leftovers.keep_locks, attempt)
        if delivery.state == "dying":
            self.burials.in_hand.add(attempt)
        elif delivery.suspect and not delivery.takes_slot:
            self._suspects.in_hand.add(attempt)
        self._watchdog.hold(attempt.lease, since, attempt.lose, attempt.renewed)
        # A context of its own, so that one attempt never sees another one's variables.
        task = self._loop.create_task(
            self._run(attempt), name=delivery.id, context=contextvars.Context()
        )
        self._running[attempt] = task

    def obey(self, order: Order) -> None:
        """Cancel an attempt that somebody wants to end; an order may come more than once."""
        for attempt in list(self._running):
            delivery = attempt.delivery
            is_meant = (delivery.id, delivery.gen) == (order.id, order.gen)
            if is_meant and attempt.ending.cancelled is None:
                logger.info("task %s is to be cancelled %s", order.id, order.why)
                attempt.cancel(order.why)
                grace = self._parts.settings.cancel_grace
                self._loop.call_later(grace, self._leave_alone, attempt)

    def cut_all(self, reason: str) -> None:
        """Cancel what runs, for its hand-back."""
        for attempt in list(self._running):
            attempt.cut(reason)

    def cut_waiting(self, reason: str) -> None:
        """Hand back what has not begun: it waits for a child process."""
        for attempt in list(self._running):
            if attempt.stage is Stage.WAITING:
                attempt.cut(reason)

    def cut_all_soon(self, reason: str) -> None:
        """The same, called by any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cut_all, reason)

    async def wait(self, seconds: float, forced: asyncio.Task[bool] | None = None) -> None:
        """Wait until nothing runs any more, not longer than `seconds` nor beyond `forced`."""
        deadline = time.monotonic() + seconds
        while self._running and not (forced and forced.done()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            watched = {*self._running.values(), *([forced] if forced else [])}
            await asyncio.wait(watched, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    # ---- one delivery: identify → place → execute → conclude → settle → forget ------------------

    async def _run(self, attempt: Attempt) -> None:
        """See a delivery through, from its hand-over to the end of its lease."""
        try:
            await self._see_through(attempt)
        except GeneratorExit as error:
            # Of a future that a task awaited: it closes each coroutine between that and this one,
            # whatever they would have returned.
            if not self._is_over(attempt):
                await self._settle(attempt, self._conclude(attempt, Failed(error)))
        except Exception:
            # The delivery stays pending and is reclaimed when its lease ends: nothing is lost.
            logger.exception("task %s: its settlement failed", attempt.delivery.id)
        finally:
            if not self._is_over(attempt):
                self._forget(attempt)

    async def _see_through(self, attempt: Attempt) -> None:
        if attempt.ending.lost is not None:
            # The loop was blocked while the reply waited, and others may hold its locks.
            await self._settle(attempt, self._conclude(attempt, Lost(attempt.ending.lost)))
            return
        if attempt.delivery.state == "dying":
            await self.burials.bury(attempt)
            return
        outcome = identify(attempt, self._tools)
        if self._tally is not None:
            self._tally.started(attempt)
        if outcome is not None:
            await self._settle(attempt, self._conclude(attempt, outcome))
            return
        if self._is_traced:
            attempt.span = _span_of(attempt)
        place = place_of(attempt.delivery, attempt.effective.isolation, self._isolation)
        conclusion = await self._execute(attempt, place)
        if conclusion is not None:
            await self._settle(attempt, conclusion)

    async def _execute(self, attempt: Attempt, place: Place) -> Conclusion | None:
        """What an attempt concluded, wherever it was made; None: it is over already."""
        match place:
            case Place.LOOP:
                return await self._execute_here(attempt)
            case Place.CHILD:
                return await self._isolated.run(attempt, fresh=False)
            case Place.FRESH_CHILD:
                return await self._isolated.run(attempt, fresh=True)
            case Place.SUSPECTS:
                return await self._suspects.run(attempt)
            case Place.NONE:
                return self._conclude(attempt, Failed(WITH_WORKER.error()))
            case Place.NONE_BUT_CHILD:
                return await self._isolated.judge(attempt, WITH_WORKER, is_counted=True)

    async def _execute_here(self, attempt: Attempt) -> Conclusion | None:
        began = time.monotonic()
        outcome = await execute(attempt, self._tools)
        usage = Usage(wall=time.monotonic() - began)
        if attempt.context.has_workdir:
            await in_own_thread(attempt.context.remove_workdir)
        return None if self._is_over(attempt) else self._conclude(attempt, outcome, usage)

    def _conclude(
        self, attempt: Attempt, outcome: Outcome, usage: Usage | None = None
    ) -> Conclusion:
        if attempt.hard_at is not None:  # the policy of one that used it up gets a moment, too
            attempt.hard_at = max(attempt.hard_at, time.monotonic())
        return self._parts.concluder.conclude(attempt, outcome, usage)

    async def _settle(self, attempt: Attempt, conclusion: Conclusion) -> None:
        self._free_slot_of(attempt)
        if attempt.span is not None:
            span, attempt.span = attempt.span, None  # one that was left alone may end once more
            _end_span(span, attempt, conclusion)
        end = await self._parts.settler.settle(attempt, conclusion)
        settlement = conclusion.settlement
        if self._tally is not None:
            crashed = settlement.crashed or settlement.end is End.CRASH
            self._tally.finished(attempt, end, conclusion.usage, crashed=crashed)
        if end is End.DEAD and settlement.keep:
            await self._bury(attempt, conclusion)

    async def _bury(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """Let an attempt that has been marked as dying go on beside the slots."""
        if not self.burials.room:
            await self.burials.queue(attempt)
            return
        self._suspects.drop(attempt)
        self._settling -= attempt.delivery.takes_slot
        attempt.stage = Stage.BURYING
        self.burials.in_hand.add(attempt)
        self.freed.set()
        await self.burials.bury_at_once(attempt, conclusion)

    def _free_slot_of(self, attempt: Attempt) -> None:
        """Only its settlement is left: the next one may be fetched meanwhile."""
        if attempt.stage is not Stage.SETTLING:
            attempt.stage = Stage.SETTLING
            self._settling += attempt.delivery.takes_slot
            self.freed.set()

    def _is_over(self, attempt: Attempt) -> bool:
        """Whether another asyncio task than the current one ends it, as its code went on."""
        return bool(attempt.left) and self._running.get(attempt) is not asyncio.current_task()

    def _forget(self, attempt: Attempt) -> None:
        """It is over."""
        if self._running.pop(attempt, None) is not None:
            if attempt.stage is Stage.SETTLING:
                self._settling -= attempt.delivery.takes_slot
            if self._tally is not None:  # its settlement failed, if that has not counted it
                self._tally.finished(attempt, End.LOST)
            self._watchdog.drop(attempt.lease)
            if self._suspects.in_hand:
                self._suspects.drop(attempt)
            if self.burials.in_hand:
                self.burials.drop(attempt)
            self.busy_at = time.monotonic()
            self.freed.set()

    def _leave_alone(self, attempt: Attempt) -> None:
        """End a task that was cancelled, although its code goes on in our event loop."""
        if attempt not in self._running or attempt.code is None:
            return
        logger.error(
            "task %s (%s) goes on although it was cancelled",
            *(attempt.delivery.id, attempt.context.name),
        )
        attempt.context.lose_lease("it was cancelled, and has ended")
        self._leftovers.add(attempt, attempt.code)
        self._running[attempt] = asyncio.create_task(self._end(attempt), name=attempt.delivery.id)

    async def _end(self, attempt: Attempt) -> None:
        try:
            cancelled = Cancelled(attempt.ending.cancelled or "")
            await self._settle(attempt, self._conclude(attempt, cancelled))
        finally:
            self._forget(attempt)

    # ---- leases and locks -----------------------------------------------------------------------

    async def _admit(self, attempt: Attempt, lines: str) -> str | None:
        """Give an attempt other locks, and renew it as often as they ask; what refuses them."""
        refused = await readmit(self._parts.broker, attempt, lines)
        if refused is None and attempt.ending.lost is None:
            attempt.lease = self._lease(attempt)
            self._watchdog.hold(attempt.lease, attempt.since, attempt.lose, attempt.renewed)
        return refused

    def _lease(self, attempt: Attempt) -> Lease:
        delivery, ttl = attempt.delivery, self._parts.settings.lease
        if attempt.locks or attempt.held:
            lock_ttl_ms = leased_ttl_ms(attempt.locks, attempt.held, self._lock_ttl_ms)
            ttl = min(ttl, lock_ttl_ms / 1000) if lock_ttl_ms else ttl
        return Lease(
            delivery.id, delivery.gen, delivery.fence, ttl, delivery.stream_key, delivery.entry
        )

    def _check(self, attempt: Attempt) -> None:
        """Declare its lease lost if that has ended unnoticed."""
        if time.monotonic() >= attempt.deadline:
            self._watchdog.check(attempt.lease)

    # ---- the event loop -------------------------------------------------------------------------

    def seen_in_loop(self, task: asyncio.Task[object]) -> Culprit | None:
        """Which attempt an asyncio task is of; called by any thread."""
        attempt = self._executed_here(task.get_name().removesuffix(" limited"))
        return Culprit(attempt.delivery.id, attempt.context.name) if attempt else None

    def end_if_stuck(self, culprit: Culprit, place: str) -> None:
        """End this process if a task blocks its loop beyond its hard timeout: nothing else ends it.

        Called by a thread.
        """
        attempt = self._executed_here(culprit.id)
        if attempt is None or attempt.hard_at is None:
            return
        if time.monotonic() > attempt.hard_at + _STUCK_SECONDS:
            logger.critical(
                "%s has blocked the event loop beyond its hard timeout, at %s: this worker ends, "
                "so that others run what it holds; isolate that class",
                *(culprit, place),
            )
            self._sign_off()
            end_without_loop(ExitCode.FAILED)

    def _executed_here(self, id: str) -> Attempt | None:
        """The attempt whose task's own code may be in the event loop."""
        here = (item for item in list(self._running) if item.stage is Stage.IN_LOOP)
        return next((item for item in here if item.delivery.id == id), None)


def _span_of(attempt: Attempt) -> AttemptSpan | None:
    delivery = attempt.delivery
    stream = ":".join(delivery.stream_key.rsplit(":", 2)[1:])
    of = attempt.context.name, delivery.id, stream, attempt.context.attempt
    return start_attempt(*of, attempt.trace)


def _end_span(span: AttemptSpan, attempt: Attempt, conclusion: Conclusion) -> None:
    settlement = conclusion.settlement
    error = settlement.error
    span.end(
        End.LOST if conclusion.lost else settlement.end,
        *(error.type, error.text, error.traceback),
        secrets=attempt.context.secrets,
    )

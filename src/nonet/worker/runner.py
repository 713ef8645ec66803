"""The deliveries that a worker runs: each from its hand-over to its settlement, in its own task."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nonet.base.errors import NonetError
from nonet.base.loop import in_own_thread
from nonet.base.streams import Size
from nonet.client.client import Client
from nonet.config.overrides import Effective
from nonet.config.settings import Settings
from nonet.daemon.contact import Reached
from nonet.daemon.service import ExitCode, end_without_loop
from nonet.daemon.watchdog import Watchdog
from nonet.messages.message import Usage
from nonet.rules.outcomes import Cancelled, Failed, Lost, Outcome
from nonet.stores.queue.broker import Broker, Order, hold_of_code
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Lease
from nonet.tasks.injection import Injector
from nonet.tasks.locks import has_structural, leased_ttl_ms
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import Isolation
from nonet.telemetry.tracing import AttemptSpan, are_spans_collected, start_attempt
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.crashes import WITH_WORKER
from nonet.worker.attempt.execute import Known, Tools, execute_known, identify, readmit
from nonet.worker.attempt.settle import Settler
from nonet.worker.children.children import Children
from nonet.worker.children.isolated import Isolated, Work
from nonet.worker.lag import Culprit
from nonet.worker.leftovers import Leftovers
from nonet.worker.suspects import Suspects
from nonet.worker.tally import Tally

logger = logging.getLogger(__name__)

# After a hard timeout; what obeys has rolled back by then.
_STUCK_SECONDS = 1.5


@dataclass(frozen=True)
class WorkerParts:
    """What an open application gives a worker.

    Attributes:
        sql: whether the database answers; None: none is needed, or nobody asks.
    """

    settings: Settings
    broker: Broker
    client: Client
    registry: Registry
    injector: Injector
    settler: Settler
    burials: Burials
    version: str
    sql: Reached | None = None


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
        self._leftovers = Leftovers(slots, self.freed.set)
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
            self._leave,
        )
        self._live_config = parts.client.live_config
        self._worker = worker
        self._isolated = self._made_isolated(children)
        self._suspects = Suspects(
            size,
            lambda: self._made_isolated(Children(parts.settings, parts.broker.url)),
            lambda: len(self._running) - len(self._suspects.in_hand) - len(self.burials.in_hand),
        )
        self._lock_ttl_ms = round(parts.settings.lock_ttl * 1000)
        self._keepers: set[asyncio.Task[None]] = set()

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
        attempt.on_left = partial(self._keep_locks, attempt)
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
            if (delivery.id, delivery.gen) == (order.id, order.gen) and not attempt.cancelled:
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
            if attempt.is_waiting:
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

    # ---- one delivery ---------------------------------------------------------------------------

    async def _run(self, attempt: Attempt) -> None:
        try:
            if attempt.lost is not None:
                # The loop was blocked while the reply waited, and others may hold its locks.
                await self._settle(attempt, None, Lost(attempt.lost))
            elif attempt.delivery.state == "dying":
                await self.burials.bury(attempt)
            else:
                await self._execute(attempt)
        except GeneratorExit as error:
            # Of a future that a task awaited: it closes each coroutine between that and this one,
            # whatever they would have returned.
            task_class = self._parts.registry.find(attempt.context.name)
            await self._settle(attempt, task_class, Failed(error))
        except Exception:
            # The delivery stays pending and is reclaimed when its lease ends: nothing is lost.
            logger.exception("task %s: its settlement failed", attempt.delivery.id)
        finally:
            if not attempt.left or self._ends(attempt):
                self._forget(attempt)

    async def _execute(self, attempt: Attempt) -> None:
        known = identify(attempt, self._tools)
        if self._tally is not None:
            self._tally.started(attempt)
        if not isinstance(known, Known):
            await self._settle(attempt, *known)
            return
        if self._is_traced:
            attempt.span = _span_of(attempt)
        if not self._runs_here(attempt.delivery, known.effective):
            work = Work(attempt, known.task_class, known.effective)
            conclusion = await self._isolate(work)
            self._free_slot_of(attempt)
            await self._end_as(attempt, conclusion)
            return
        if attempt.delivery.judge:
            await self._settle(attempt, known.task_class, Failed(WITH_WORKER.error()))
            return
        began = time.monotonic()
        outcome = await execute_known(attempt, known, self._tools)
        usage = Usage(wall=time.monotonic() - began)
        if attempt.context.has_workdir:
            await in_own_thread(attempt.context.remove_workdir)
        await self._settle(attempt, known.task_class, outcome, usage)

    def _runs_here(self, delivery: Delivery, effective: Effective) -> bool:
        """Whether an attempt is made in this process: no process has died with it."""
        if self._isolation is not None:
            return self._isolation is Isolation.LOOP
        return effective.isolation is Isolation.LOOP and not (delivery.suspect or delivery.crashes)

    async def _isolate(self, work: Work) -> Conclusion:
        """What an attempt concluded in a child process."""
        delivery = work.attempt.delivery
        if delivery.judge:
            return await self._isolated.judge(work, WITH_WORKER, is_counted=True)
        if not delivery.takes_slot:
            return await self._suspects.run(work)
        has_died = delivery.suspect or delivery.crashes
        place = Isolation.FRESH if has_died else self._isolation or work.effective.isolation
        return await self._isolated.run(work, fresh=place is Isolation.FRESH)

    def _made_isolated(self, children: Children) -> Isolated:
        parts = self._parts
        accuse = partial(parts.broker.accuse, self._worker)
        return Isolated(children, parts.settings, self._live_config, self._admit, accuse)

    async def _settle(
        self,
        attempt: Attempt,
        task_class: TaskClass | None,
        outcome: Outcome,
        usage: Usage | None = None,
    ) -> None:
        if attempt.left and not self._ends(attempt):
            return
        settler = self._parts.settler
        if attempt.hard_at is not None:  # the policy of one that used it up gets a moment, too
            attempt.hard_at = max(attempt.hard_at, time.monotonic())
        conclusion = settler.conclude(attempt, task_class, outcome, usage)
        attempt.runs_code = False
        self._free_slot_of(attempt)
        await self._end_as(attempt, conclusion)

    async def _end_as(self, attempt: Attempt, conclusion: Conclusion) -> None:
        if attempt.span is not None:
            span, attempt.span = attempt.span, None  # one that was left alone may end once more
            _end_span(span, attempt, conclusion)
        outcome = await self._parts.settler.settle(attempt, conclusion)
        if self._tally is not None:
            settlement = conclusion.settlement
            crashed = settlement.crashed or settlement.outcome == "crash"
            self._tally.finished(attempt, outcome, conclusion.usage, crashed=crashed)
        if outcome == "dead" and conclusion.settlement.keep:
            await self._bury(attempt, conclusion)

    async def _bury(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """Let an attempt that has been marked as dying go on beside the slots."""
        if not self.burials.room:
            await self.burials.queue(attempt)
            return
        self._suspects.drop(attempt)
        self._settling -= attempt.is_settling
        attempt.is_settling = False
        self.burials.in_hand.add(attempt)
        self.freed.set()
        await self.burials.bury_at_once(attempt, conclusion)

    def _free_slot_of(self, attempt: Attempt) -> None:
        """Only its settlement is left: the next one may be fetched meanwhile."""
        if attempt.delivery.takes_slot and not attempt.is_settling:
            attempt.is_settling = True
            self._settling += 1
            self.freed.set()

    def _ends(self, attempt: Attempt) -> bool:
        """Whether the current asyncio task ends an attempt; one that was left alone does not."""
        return self._running.get(attempt) is asyncio.current_task()

    def _forget(self, attempt: Attempt) -> None:
        """It is over."""
        if self._running.pop(attempt, None) is not None:
            self._settling -= attempt.is_settling
            if self._tally is not None:  # its settlement failed, if that has not counted it
                self._tally.finished(attempt, "lost")
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
        self._leave(attempt, attempt.code)
        self._running[attempt] = asyncio.create_task(self._end(attempt), name=attempt.delivery.id)

    async def _end(self, attempt: Attempt) -> None:
        try:
            await self._settle(attempt, None, Cancelled(attempt.cancelled or ""))
        finally:
            self._forget(attempt)

    # ---- code that goes on although it was cancelled --------------------------------------------

    def _leave(self, attempt: Attempt, left: Future[Any] | asyncio.Task[Any]) -> None:
        """Let an attempt end without a thread, or asyncio task, that runs its code."""
        attempt.left = (*attempt.left, left)
        is_overdue = attempt.timed_out is not None or isinstance(left, asyncio.Task)
        self._leftovers.add(left, is_overdue=is_overdue)

    def _keep_locks(self, attempt: Attempt, since: float) -> None:
        """Renew the locks that the settle script has kept for such code, until that has ended."""
        if has_structural(attempt.locks):
            keeper = self._loop.create_task(
                self._keep_until_end(attempt, since), context=contextvars.Context()
            )
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)

    async def _keep_until_end(self, attempt: Attempt, since: float) -> None:
        hold = hold_of_code(attempt.delivery)
        lease = Lease(hold, "0", attempt.delivery.fence, attempt.lease.ttl)
        self._watchdog.hold(lease, since, lambda reason: None)
        await asyncio.wait([_awaitable(left) for left in attempt.left])
        self._watchdog.drop(lease)
        with suppress(NonetError):  # else they end by themselves
            await self._parts.broker.unhold(hold)

    # ---- leases and locks -----------------------------------------------------------------------

    async def _admit(self, attempt: Attempt, lines: str) -> str | None:
        """Give an attempt other locks, and renew it as often as they ask; what refuses them."""
        refused = await readmit(self._parts.broker, attempt, lines)
        if refused is None and attempt.lost is None:
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
        found = (item for item in list(self._running) if item.delivery.id == id and item.runs_code)
        return next(found, None)


def _awaitable(left: Future[Any] | asyncio.Task[Any]) -> asyncio.Future[Any]:
    return left if isinstance(left, asyncio.Task) else asyncio.wrap_future(left)


def _span_of(attempt: Attempt) -> AttemptSpan | None:
    delivery = attempt.delivery
    stream = ":".join(delivery.stream_key.rsplit(":", 2)[1:])
    of = attempt.context.name, delivery.id, stream, attempt.context.attempt
    return start_attempt(*of, attempt.trace)


def _end_span(span: AttemptSpan, attempt: Attempt, conclusion: Conclusion) -> None:
    settlement = conclusion.settlement
    error = settlement.error
    span.end(
        "lost" if conclusion.lost else settlement.outcome,
        *(error.type, error.text, error.traceback),
        secrets=attempt.context.secrets,
    )

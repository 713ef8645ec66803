"""One delivery from start to end: identify → place → execute → conclude → settle → forget.

`nonet.worker.reader` fetches the deliveries. Each runs in its own asyncio task: `Runner._run`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from nonet.base.loop import in_own_thread
from nonet.base.messages.message import Usage
from nonet.client.client import Client
from nonet.daemon.service import ExitCode
from nonet.daemon.watchdog import Watchdog
from nonet.rules.outcomes import Cancelled, End, Failed, HandedBack, Lost, Outcome
from nonet.stores.namespace.events import Events
from nonet.stores.queue.broker import Order
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.execution import enter_subject
from nonet.tasks.injection import Injector
from nonet.telemetry.running_middleware import add_failures
from nonet.telemetry.tracing import are_spans_collected, start_attempt
from nonet.worker.attempt.around import error_of, report_crash
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Concluder, Conclusion, Ended
from nonet.worker.attempt.crashes import WITH_WORKER
from nonet.worker.attempt.execute import Tools, execute, identify
from nonet.worker.attempt.log_keeping import INTERVAL_SECONDS, keep_log, with_new_lines
from nonet.worker.attempt.place import Place, place_of
from nonet.worker.attempt.settle import Settler, is_plain_success
from nonet.worker.attempt.watched_leases import WatchedLeases
from nonet.worker.children.children import Children
from nonet.worker.children.deaths import ChildDeaths
from nonet.worker.children.isolated import Isolated
from nonet.worker.incarnation import Incarnation
from nonet.worker.lag import Culprit
from nonet.worker.leftovers import Leftovers
from nonet.worker.suspects import Suspects
from nonet.worker.tally import EXPECTED, Tally
from nonet.worker.threads import FunctionThreads

if TYPE_CHECKING:
    from nonet.telemetry.spans import AttemptSpan

logger = logging.getLogger(__name__)

# How long after the hard timeout of a task that blocks the loop this process ends. Code that obeys
# its cancellation has rolled back by then.
_STUCK_SECONDS = 1.5
_ENDED = (End.DEAD, End.CANCELLED, End.EXPIRED)
# How many of the classes that this worker leaves to others it reports.
_MOST_FOREIGN = 1000
_UNKNOWN = "; name its module in NONET_TASKS here, or install its package"


class Runner:
    """Runs the deliveries of one worker.

    Args:
        me: the worker.
        children: its pool of child processes.
        tally: counts the attempts.
        sign_off: removes this worker's registration. A thread calls it right before the process
            ends, so it must return soon and raise nothing.

    Attributes:
        settler: settles the attempts.
        tally: counts them.
        freed: set when a slot has become free.
        threads: run plain ``execute`` functions.
        has_plain: whether plain functions run in this process.
        suspects: runs tasks whose process died, without using a slot.
        burials: writes dying tasks to SQL, without using a slot.
        busy_at: when an attempt ended last (monotonic).
    """

    def __init__(
        self,
        client: Client,
        injector: Injector,
        me: Incarnation,
        watchdog: Watchdog,
        children: Children,
        tally: Tally,
        sign_off: Callable[[], None],
    ) -> None:
        settings, stores, broker = client.settings, client.stores, client.stores.broker
        self._client = client
        self._me = me
        self._cancel_grace = settings.cancel_grace
        self._concluder = Concluder(client)
        self.settler = Settler(broker, stores.rows, stores.cipher)
        self._foreign: set[str] = set()
        self._watchdog = watchdog
        self._sign_off = sign_off
        self.tally: Tally = tally
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._settling = 0
        self.freed = asyncio.Event()
        self.has_plain = me.runs_tasks_itself and any(
            item.is_plain for item in client.registry if item.cls.size == me.size
        )
        self.busy_at = time.monotonic()
        self._is_traced = are_spans_collected()
        self._loop = asyncio.get_running_loop()
        self._leasing = WatchedLeases(broker, watchdog, settings.lease, settings.lock_ttl)
        self._leftovers = Leftovers(me.slots, self.freed.set, watchdog, broker)
        self.threads = FunctionThreads(min(me.slots, settings.threads), self.freed.set)
        self._tools = Tools(
            *(client, injector, self.threads, self._leasing.readmit, self._leftovers.add),
            left=me.left,
        )
        self._deaths = ChildDeaths(Events(broker.client, settings.namespace).log)
        self._isolated = self._in(children)
        self.burials = Burials(client, self.settler, self._concluder)
        self.suspects = Suspects(
            me.size,
            lambda: self._in(Children(settings, broker.url, client.middlewares)),
            self._ordinary,
        )

    def _in(self, children: Children) -> Isolated:
        """Return what runs attempts in these child processes."""
        return Isolated(
            children,
            client=self._client,
            admit=self._leasing.readmit,
            accuse=partial(self._client.stores.broker.accuse, self._me.id),
            deaths=self._deaths,
        )

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free_slots(self) -> int:
        """How many more attempts may run; 0 or less: none.

        An attempt that is being settled uses no slot. While Redis is slow or unavailable, at most
        twice as many attempts as slots can accumulate. None may run while one waits for a thread.
        """
        if self.threads.waiting:
            return 0
        executing = self._ordinary() - self._settling
        return (
            self._me.slots
            - max(executing, self._settling - self._me.slots)
            - self._leftovers.slots_taken
        )

    @property
    def batch(self) -> int:
        """How many tasks to fetch at a time, at most.

        Half of the slots, so that Redis finds the next tasks while these are executed. With plain
        functions at most the free threads: others would wait here while another worker is idle.
        """
        half = -(-self._me.slots // 2)
        return min(half, max(1, self.threads.free)) if self.has_plain else half

    @property
    def is_quiet(self) -> bool:
        """Whether no code of any task runs, including code that ignored its cancellation."""
        return len(self._running) == self._settling and not self._leftovers

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is in progress and no code of an earlier one still runs."""
        return not (self._running or self._leftovers)

    @property
    def left(self) -> int:
        """How many pieces of code still run although their attempt has ended."""
        return len(self._leftovers)

    @property
    def deliveries(self) -> Iterable[Delivery]:
        """The deliveries that this worker holds."""
        return [attempt.delivery for attempt in self._running]

    @property
    def classes(self) -> Iterable[str]:
        """The class of each attempt, the oldest attempt first."""
        return (attempt.context.name for attempt in self._running)

    def close(self) -> None:
        """End the threads without waiting for busy ones."""
        self.threads.close()

    def start(self, delivery: Delivery, since: float) -> None:
        """Run a delivery.

        Args:
            since: monotonic time before the fetch that returned it.
        """
        attempt = Attempt(delivery, since)
        work = self._run
        if delivery.state == "dying":
            self.burials.attempts.add(attempt)
            work = self._bury_fetched
        elif delivery.suspect and not attempt.takes_slot:
            self.suspects.attempts.add(attempt)
        self._leasing.hold(attempt)
        # A new context, so that no attempt sees the context variables of another one.
        attempt.task = self._loop.create_task(
            work(attempt), name=delivery.id, context=contextvars.Context()
        )
        self._running[attempt] = attempt.task

    def obey(self, order: Order) -> None:
        """Cancel the attempt that an order names; a repeated order changes nothing."""
        for attempt in list(self._running):
            delivery = attempt.delivery
            is_meant = (delivery.id, delivery.gen) == (order.id, order.gen)
            if is_meant and attempt.cancelled is None:
                logger.info("cancelling task %s %s", order.id, order.why)
                attempt.cancel(order.why)
                self._loop.call_later(self._cancel_grace, self._abandon, attempt)

    def cut_all(self, reason: str) -> None:
        """Cancel all attempts and hand their tasks back."""
        for attempt in list(self._running):
            attempt.cut(reason)

    def cut_waiting(self, reason: str) -> None:
        """Hand back the tasks that still wait for a child process or a thread."""
        for attempt in list(self._running):
            if attempt.stage is Stage.WAITING:
                attempt.cut(reason)

    def cut_all_soon(self, reason: str) -> None:
        """Call `cut_all` in the event loop; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cut_all, reason)

    async def wait(self, seconds: float, forced: asyncio.Task[bool] | None = None) -> None:
        """Wait until all attempts have ended, until `forced` is done, or for `seconds`."""
        emptied = asyncio.create_task(self._emptied())
        watched = {emptied, *([forced] if forced else [])}
        await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        emptied.cancel()

    async def _emptied(self) -> None:
        while self._running:
            self.freed.clear()
            await self.freed.wait()

    async def keep_logs(self) -> float:
        """Store what running attempts have logged; return the seconds until the next call."""
        await asyncio.gather(
            *(keep_log(attempt, self._client) for attempt in with_new_lines(self._running))
        )
        return INTERVAL_SECONDS

    # ---- one delivery: identify → place → execute → conclude → settle → forget ------------------

    async def _run(self, attempt: Attempt) -> None:
        """Carry one delivery from its fetch to its settle."""
        conclusion = None
        try:
            try:
                ended = await self._ended(attempt)
            except GeneratorExit as error:
                # A task awaited a future that raised this. The exception has closed each coroutine
                # up to this one, so none of them could return an outcome.
                ended = Failed(error)
            conclusion = self._concluder.conclude(attempt, ended)
            if attempt.around is not None or attempt.crash is not None:
                await self._end_middleware(attempt, ended, conclusion)
        except Exception:
            # The delivery stays pending and is reclaimed when its lease ends: nothing is lost.
            logger.exception("task %s: it cannot be concluded", attempt.delivery.id)
        finally:
            is_abandoned = bool(attempt.left) and self._is_abandoned(attempt)
            if conclusion is None and not is_abandoned:
                self._forget(attempt)
        if conclusion is None or is_abandoned:  # `_end` settles the abandoned ones
            return
        self._leave_slot(attempt, conclusion)
        if attempt.context.log is not None:
            await keep_log(attempt, self._client, conclusion)
        if is_plain_success(attempt, conclusion):
            answered = partial(self._answered, attempt, conclusion)
            self.settler.broker.settle_done(attempt.delivery, conclusion.document, answered)
        else:
            await self._settle(attempt, conclusion)

    async def _ended(self, attempt: Attempt) -> Ended:
        """Execute the task where it belongs, unless its state forbids it."""
        if attempt.lost is not None:
            # The loop was blocked while the fetch reply waited. Other tasks may hold its locks now.
            return Lost(attempt.lost)
        outcome = identify(attempt, self._tools)
        self.tally.started(attempt)
        if outcome is not None:
            self._report_foreign(attempt, outcome)
            return outcome
        if self._is_traced:
            attempt.span = _span_of(attempt)
        match place_of(attempt.delivery, attempt.effective.isolation, self._me.isolation):
            case Place.LOOP:
                return await self._execute_here(attempt)
            case Place.CHILD:
                return await self._isolated.run(attempt, fresh=False)
            case Place.FRESH_CHILD:
                return await self._isolated.run(attempt, fresh=True)
            case Place.SUSPECTS:
                return await self.suspects.run(attempt)
            case Place.NONE:
                attempt.crash = WITH_WORKER.error()
                return Failed(attempt.crash)
            case _:  # NONE_BUT_CHILD
                return await self._isolated.judge(attempt, WITH_WORKER, is_counted=True)

    def _report_foreign(self, attempt: Attempt, outcome: Outcome) -> None:
        """Log, once for each class, that this worker leaves its tasks to others."""
        name = attempt.context.name
        if not (isinstance(outcome, HandedBack) and outcome.is_foreign) or name in self._foreign:
            return
        if name in self._me.left:  # as its admin wants
            return
        if len(self._foreign) < _MOST_FOREIGN:  # the names come from messages
            self._foreign.add(name)
            logger.warning(
                "tasks of %s are left to other workers: %s%s",
                name,
                outcome.reason,
                "" if attempt.task_class else _UNKNOWN,
            )

    async def _execute_here(self, attempt: Attempt) -> Outcome:
        """Execute the task in the event loop, or in a thread once there is a place."""
        is_plain = attempt.task_class is not None and attempt.task_class.is_plain
        if is_plain and not await self._take_place(attempt):
            return attempt.stopped()
        began = time.monotonic()
        try:
            outcome = await execute(attempt, self._tools)
        finally:
            if is_plain:
                self.threads.give_back_place(attempt)
        attempt.usage = Usage(wall=time.monotonic() - began)
        if attempt.context.has_workdir:
            await in_own_thread(attempt.context.remove_workdir)
        if attempt.left and self._is_abandoned(attempt):
            return Cancelled(attempt.cancelled or "")
        return outcome

    async def _take_place(self, attempt: Attempt) -> bool:
        """Wait for a place in a thread; return False if the attempt was stopped meanwhile."""
        with attempt.waiting():
            await self.threads.take_place()
            return True
        return False

    async def _end_middleware(self, attempt: Attempt, ended: Ended, conclusion: Conclusion) -> None:
        settlement, error = conclusion.settlement, error_of(ended)
        if attempt.around is not None:
            await attempt.around.close(settlement, error, is_lost=bool(conclusion.lost))
        if attempt.crash is not None:
            task, middlewares = attempt.running_task(), self._client.middlewares
            await report_crash(task, middlewares, attempt.crash, settlement)

    def _answered(
        self, attempt: Attempt, conclusion: Conclusion, answer: str | BaseException
    ) -> None:
        """End an attempt whose plain success was settled, or settle it again in the general way."""
        if answer == "OK":
            self.tally.finished(attempt, End.DONE, conclusion.usage)
            self._forget(attempt)
        elif attempt in self._running and not isinstance(answer, asyncio.CancelledError):
            self._running[attempt] = self._loop.create_task(
                self._settle(attempt, conclusion, answer),
                name=attempt.delivery.id,
                context=contextvars.Context(),
            )

    async def _settle(
        self, attempt: Attempt, conclusion: Conclusion, answer: str | BaseException | None = None
    ) -> None:
        """Settle an attempt in the general way, and forget it.

        Args:
            answer: what Redis answered to its settle as a plain success, if it was sent.
        """
        enter_subject(attempt.context)
        sent = None if answer is None else _answer_of(answer)
        try:
            end = await self.settler.settle(attempt, conclusion, sent)
            settlement = conclusion.settlement
            if attempt.locks_kept_at is not None:
                self._leftovers.keep_locks(attempt, attempt.locks_kept_at)
            crashed = settlement.crashed or settlement.end is End.CRASH
            counted = EXPECTED if end is End.DEAD and settlement.is_expected else end
            reason = settlement.reason if end in _ENDED else ""
            usage = conclusion.usage
            self.tally.finished(attempt, counted, usage, reason=reason, crashed=crashed)
            if end is End.DEAD and settlement.keep:
                await self._bury(attempt, conclusion)
        except Exception:
            # The delivery stays pending and is reclaimed when its lease ends: nothing is lost.
            logger.exception("task %s: its settlement failed", attempt.delivery.id)
        finally:
            self._forget(attempt)

    async def _bury_fetched(self, attempt: Attempt) -> None:
        """End a task that was fetched as dying."""
        if attempt.lost is not None:
            await self._settle(attempt, self._concluder.conclude(attempt, Lost(attempt.lost)))
            return
        try:
            await self.burials.bury(attempt)
        except Exception:
            logger.exception("task %s: its settlement failed", attempt.delivery.id)
        finally:
            self._forget(attempt)

    async def _bury(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """Write a task that was just marked as dying to SQL, beside the slots."""
        if not self.burials.room:
            await self.burials.queue(attempt)
            return
        self.suspects.drop(attempt)
        self._settling -= attempt.takes_slot
        attempt.stage = Stage.BURYING
        self.burials.attempts.add(attempt)
        self.freed.set()
        await self.burials.bury_at_once(attempt, conclusion)

    def _leave_slot(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """Let the reader fetch the next task while this one is settled."""
        attempt.stage = Stage.SETTLING
        self._settling += attempt.takes_slot
        self.freed.set()
        if attempt.span is not None:
            _end_span(attempt.span, attempt, conclusion)
            attempt.span = None
        if conclusion.middleware_failures:
            add_failures(conclusion.middleware_failures)

    def _forget(self, attempt: Attempt) -> None:
        """Drop the lease and all bookkeeping of an attempt."""
        if self._running.pop(attempt, None) is not None:
            if attempt.stage is Stage.SETTLING:
                self._settling -= attempt.takes_slot
            if attempt.tallied is not None:  # its settlement failed
                self.tally.finished(attempt, End.LOST)
            self._watchdog.drop(attempt.lease)
            if self.suspects.attempts:
                self.suspects.drop(attempt)
            if self.burials.attempts:
                self.burials.drop(attempt)
            self.busy_at = time.monotonic()
            self.freed.set()

    def _ordinary(self) -> int:
        """How many attempts are in progress, without suspects and burials."""
        return len(self._running) - len(self.suspects.attempts) - len(self.burials.attempts)

    # ---- code that ignores its cancellation -----------------------------------------------------

    def _abandon(self, attempt: Attempt) -> None:
        """End a cancelled attempt although its code still runs in the event loop."""
        if attempt not in self._running or attempt.code is None:
            return
        logger.error(
            "task %s (%s) still runs although it was cancelled",
            attempt.delivery.id,
            attempt.context.name,
        )
        attempt.context.lose_lease("it was cancelled, and has ended")
        self._leftovers.add(attempt, attempt.code)
        self._running[attempt] = asyncio.create_task(self._end(attempt), name=attempt.delivery.id)

    async def _end(self, attempt: Attempt) -> None:
        conclusion = self._concluder.conclude(attempt, Cancelled(attempt.cancelled or ""))
        self._leave_slot(attempt, conclusion)
        await self._settle(attempt, conclusion)

    def _is_abandoned(self, attempt: Attempt) -> bool:
        """Whether `_end` settles this attempt instead of the current asyncio task."""
        return bool(attempt.left) and self._running.get(attempt) is not asyncio.current_task()

    # ---- the event loop -------------------------------------------------------------------------

    def seen_in_loop(self, task: asyncio.Task[object]) -> Culprit | None:
        """Return the attempt that an asyncio task executes; from any thread."""
        attempt = self._executed_here(task.get_name().removesuffix(" limited"))
        return Culprit(attempt.delivery.id, attempt.context.name) if attempt else None

    def in_threads(self) -> list[Culprit]:
        """Return the attempts whose code runs in threads; from any thread."""
        return [
            Culprit(item.delivery.id, item.context.name)
            for item in list(self._running)
            if item.in_thread
        ]

    def end_if_stuck(self, culprit: Culprit, place: str) -> None:
        """End this process if a task blocks the loop beyond its hard timeout; from any thread.

        Nothing else can end such a task.
        """
        attempt = self._executed_here(culprit.id)
        if attempt is None or attempt.hard_at is None:
            return
        if time.monotonic() > attempt.hard_at + _STUCK_SECONDS:
            logger.critical(
                "%s has blocked the event loop beyond its hard timeout, at %s: this worker ends, "
                "so that other workers run its tasks; isolate that class",
                culprit,
                place,
            )
            self._sign_off()
            os._exit(ExitCode.FAILED)

    def _executed_here(self, id: str) -> Attempt | None:
        here = (item for item in list(self._running) if item.stage is Stage.IN_LOOP)
        return next((item for item in here if item.delivery.id == id), None)


async def _answer_of(answer: str | BaseException) -> str:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _span_of(attempt: Attempt) -> AttemptSpan | None:
    delivery = attempt.delivery
    stream = ":".join(delivery.stream_key.rsplit(":", 2)[1:])
    of = attempt.context.name, delivery.id, stream, attempt.context.attempt
    return start_attempt(*of, attempt.envelope.trace)


def _end_span(span: AttemptSpan, attempt: Attempt, conclusion: Conclusion) -> None:
    settlement = conclusion.settlement
    error = settlement.error
    span.end(
        End.LOST if conclusion.lost else settlement.end,
        "" if settlement.is_expected else error.type,
        error.text,
        error.traceback,
        secrets=attempt.context.logged_secrets,
    )

"""One attempt in a child process: begun, told to stop, and what follows when its process dies.

The worker keeps lease, locks and settlement; a child has the task, its dependencies and its policy.
Whatever a child does, it ends at the latest when the guardian kills it: at the deadline of its
lease, at its limits of time, memory and CPU, or when it is asked to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from nonet.live import LiveConfig
from nonet.message import Usage
from nonet.outcomes import CRASH_LIMIT, Cancelled, Failed, HandedBack, Lost, Outcome, Reason
from nonet.overrides import Effective
from nonet.registry import TaskClass
from nonet.retry import ExponentialBackoff, NoRetry
from nonet.settings import Settings
from nonet.telemetry.tracing import current_trace
from nonet.worker.attempt import Attempt, uncancel
from nonet.worker.children import Children
from nonet.worker.conclusion import Conclusion, conclude
from nonet.worker.crashes import Crash
from nonet.worker.forking import Child, ForkServer, ForkServerError
from nonet.worker.timeouts import OBEY_SECONDS
from nonet.worker.wire import Admit, Admitted, Begun, Cut, Ended, Exited, Guard, Judge, Run

logger = logging.getLogger(__name__)

# So many suspects run at a time: each costs a process of its own, whatever its size.
_SUSPECTS = 16
# And so many of those that need a fork server each.
_STRONG_SUSPECTS = 4
# The child cancels at its hard limit, and is killed if it does not obey.
_KILL_AFTER_SECONDS = OBEY_SECONDS + 0.2
_JUDGE_SECONDS = 10.0
_KILL_GROUP_SECONDS = 3.0
_NO_CHILD = timedelta(seconds=5)
# These two are ours: no need of a process to ask them in.
_SAFE_POLICIES = (NoRetry, ExponentialBackoff)


@dataclass(frozen=True, slots=True)
class _Work:
    """An attempt, what it is of, and what it may take."""

    attempt: Attempt
    task_class: TaskClass
    effective: Effective

    def guard(self, number: int) -> Guard:
        """What its guardian has to see to."""
        said, fence = self.effective, self.attempt.delivery.fence
        hard = said.time.hard
        kill_at = time.monotonic() + hard + _KILL_AFTER_SECONDS if hard else 0.0
        return Guard(number, fence, kill_at, said.memory_limit or 0, said.cpu_limit or 0.0)

    def crash(self, exited: Exited) -> Crash:
        """How its process ended."""
        limits = {"memory": self.effective.memory_limit, "cpu": self.effective.cpu_limit}
        code = exited.status
        return Crash(
            exited.why if exited.why == "time" or exited.why in limits else "",
            self.effective.time.hard_text if exited.why == "time" else "",
            signal=-code if code < 0 else None,
            exit_code=code if code >= 0 else None,
            allowed=limits.get(exited.why),
        )


class Isolated:
    """Makes attempts in child processes.

    Args:
        children: the child processes of this worker.
        settings: of the worker.
        live_config: what holds for the classes.
        admit: gives an attempt other locks, all or none; what refuses them, or None.
    """

    def __init__(
        self,
        children: Children,
        settings: Settings,
        live_config: LiveConfig,
        admit: Callable[[Attempt, str], Awaitable[str | None]],
    ) -> None:
        self._children = children
        self._settings = settings
        self._live_config = live_config
        self._admit = admit
        self._suspects = asyncio.Semaphore(_SUSPECTS)
        self._strong_suspects = asyncio.Semaphore(_STRONG_SUSPECTS)

    async def run(
        self, attempt: Attempt, task_class: TaskClass, effective: Effective, *, fresh: bool
    ) -> Conclusion:
        """Make an attempt; what it concluded, to be settled.

        Its process has ended then, or has nothing of it any more: its locks may be released.

        Args:
            fresh: in a process of its own.
        """
        work = _Work(attempt, task_class, effective)
        conclusion = None
        attempt.is_waiting = True
        attempt.enter()
        try:
            async with AsyncExitStack() as stack:
                children = await stack.enter_async_context(self._pool(attempt))
                child = await stack.enter_async_context(children.lent(fresh=fresh))
                conclusion = await self._attempt(children, child, work)
        except ForkServerError as error:
            logger.error("task %s: %s", attempt.delivery.id, error)
            back = HandedBack(f"no child process: {error}", _NO_CHILD)
            conclusion = self._conclude(work, back)
        except asyncio.CancelledError:
            if not attempt.is_stopped:  # not by us: the loop ends
                raise
            uncancel()
        finally:
            attempt.leave()
            attempt.is_waiting = False
            attempt.share_deadline(None)
        return conclusion or self._conclude(work, _stopped(attempt))

    @asynccontextmanager
    async def _pool(self, attempt: Attempt) -> AsyncIterator[Children]:
        """Where its child comes from. Suspects wait for each other.

        One with which more than one worker, or fork server, has died has a fork server of its own:
        it may be the one that kills them.
        """
        if not attempt.is_suspect:
            yield self._children
        elif attempt.delivery.deaths == 1:
            async with self._suspects:
                yield self._children
        else:
            async with self._strong_suspects:
                alone = Children(self._settings, self._children.redis_url)
                try:
                    yield alone
                finally:
                    await alone.close()

    async def _attempt(self, children: Children, child: Child, work: _Work) -> Conclusion:
        attempt, began = work.attempt, time.monotonic()
        attempt.is_waiting = False
        version, workdir = self._live_config.version, child.server.workdir(child)
        trace = current_trace() if attempt.span is not None else ""
        run = Run(attempt.delivery, attempt.since, version, workdir, trace)
        board = child.server.board
        board.open(child.number, attempt.deadline)  # it is cleared when the child is given back
        attempt.share_deadline(partial(board.extend, child.number))
        try:
            children.begin(child, run, work.guard(child.number))
            ended = await self._hear(children, child, attempt)
        finally:
            children.end(child)
        if isinstance(ended, Conclusion):
            child.is_busy = ended.is_left_over
            child.cpu += (ended.usage.cpu if ended.usage else None) or 0.0
            return ended
        child.is_busy = False  # it has ended
        usage = Usage(wall=time.monotonic() - began)
        if ended is not None:
            usage = Usage(usage.wall, max(0.0, ended.cpu - child.cpu), ended.rss)
        return await self._without_child(work, ended, usage)

    async def _hear(
        self, children: Children, child: Child, attempt: Attempt
    ) -> Conclusion | Exited | None:
        """What the child concludes, or how it ended; it is told meanwhile if it is to stop."""
        kill: asyncio.TimerHandle | None = None
        try:
            while True:
                try:
                    message = await child.inbox.get()
                    if isinstance(message, Admit):
                        refused = await self._admit(attempt, message.lines)
                        child.channel.send(Admitted(attempt.locks, attempt.held, refused))
                        continue
                except asyncio.CancelledError:
                    if not attempt.is_stopped:
                        raise
                    uncancel()
                    kill = self._stop(children, child, attempt, kill)
                    continue
                is_own = getattr(message, "fence", "") == attempt.delivery.fence
                if isinstance(message, Begun):
                    attempt.started = attempt.started or is_own
                elif message is None:
                    return await asyncio.shield(children.exit_of(child))
                elif isinstance(message, Ended) and is_own:
                    return message.conclusion
        finally:
            if kill is not None:
                kill.cancel()

    def _stop(
        self,
        children: Children,
        child: Child,
        attempt: Attempt,
        kill: asyncio.TimerHandle | None,
    ) -> asyncio.TimerHandle:
        """Tell the child to stop; it is killed when it does not."""
        patience = 0.0
        if attempt.lost is None:
            reason = attempt.cancelled or attempt.cut_off or ""
            child.channel.send(Cut(reason, attempt.cancelled is not None))
            is_cut = attempt.cut_off is not None
            patience = OBEY_SECONDS if is_cut else self._settings.cancel_grace
        when = asyncio.get_running_loop().time() + patience
        if kill is not None:
            when = min(when, kill.when())
            kill.cancel()
        return asyncio.get_running_loop().call_at(when, _kill, children, child, attempt)

    # ---- without a child ------------------------------------------------------------------------

    async def _without_child(self, work: _Work, exited: Exited | None, usage: Usage) -> Conclusion:
        """What follows from an attempt whose process is gone."""
        attempt = work.attempt
        if exited is not None and exited.why == "lease" and attempt.lost is None:
            outcome: Outcome = Lost("the lease could not be renewed in time")
        elif attempt.is_stopped:
            outcome = _stopped(attempt)
        elif not attempt.started or (exited and exited.why and exited.fence != _fence(attempt)):
            outcome = HandedBack("its child process was about to end")  # for another task's sake
        elif exited is None:
            text = "its fork server ended while it ran"
            outcome = HandedBack(text, started=True, is_suspect=True)
        else:
            return await self._judge(work, work.crash(exited), usage)
        return self._conclude(work, outcome, usage)

    async def _judge(self, work: _Work, crash: Crash, usage: Usage) -> Conclusion:
        """Ask the policy, in another child unless it is one of ours."""
        delivery = work.attempt.delivery
        failed = Failed(crash.error(), crashed=True)
        is_last = delivery.crashes + 1 >= CRASH_LIMIT
        if is_last or type(work.effective.retry_policy) in _SAFE_POLICIES:
            return self._conclude(work, failed, usage)
        message: object = None
        try:
            async with self._children.lent(fresh=True) as child:
                child.is_busy = True
                child.channel.send(Judge(delivery, self._live_config.version, crash))
                async with asyncio.timeout(_JUDGE_SECONDS):
                    message = await child.inbox.get()
                child.is_busy = message is None
        except TimeoutError:
            message = None
        except ForkServerError as error:  # that is no fault of the task's
            back = HandedBack(f"no process to ask its policy in: {error}", _NO_CHILD)
            return self._conclude(work, replace(back, started=True, is_suspect=True), usage)
        if isinstance(message, Ended):
            return replace(message.conclusion, usage=usage)
        logger.error("task %s: its retry policy did not answer: no retry", delivery.id)
        return self._conclude(work, replace(failed, reason=Reason.CRASH), usage)

    def _conclude(self, work: _Work, outcome: Outcome, usage: Usage | None = None) -> Conclusion:
        limit = self._settings.message_limit
        of = (work.attempt, work.task_class, outcome, self._live_config)
        return conclude(*of, message_limit=limit, usage=usage)


def _fence(attempt: Attempt) -> str:
    return attempt.delivery.fence


def _stopped(attempt: Attempt) -> Outcome:
    """How an attempt ends that was asked to."""
    if attempt.lost is not None:
        return Lost(attempt.lost)
    if attempt.cancelled is not None:
        return Cancelled(attempt.cancelled)
    return HandedBack(attempt.cut_off or "", started=attempt.started)


def _kill(children: Children, child: Child, attempt: Attempt) -> None:
    logger.warning(
        "task %s (%s): its process %d has not stopped and is killed",
        *(attempt.delivery.id, attempt.context.name, child.pid),
    )
    children.ask_to_kill(child)
    # If its fork server does nothing, which is asked first.
    asyncio.get_running_loop().call_later(_KILL_GROUP_SECONDS, ForkServer.kill_group, child)

"""One attempt in a child process: begun, told to stop, and what follows when its process dies.

The worker keeps lease, locks and settlement; a child has the task, its dependencies and its policy.
Whatever a child does, it ends at the latest when the guardian kills it: at the deadline of its
lease, at its limits of time, memory and CPU, or when it is asked to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from nonet.base.errors import NonetError
from nonet.client.live import LiveConfig
from nonet.config.overrides import Effective
from nonet.config.settings import Settings
from nonet.messages.message import Usage
from nonet.rules.outcomes import Cancelled, Failed, HandedBack, Lost, Outcome, Reason
from nonet.tasks.registry import TaskClass
from nonet.tasks.retry import ExponentialBackoff, NoRetry
from nonet.telemetry.tracing import current_trace
from nonet.worker.attempt.attempt import Attempt, uncancel
from nonet.worker.attempt.conclusion import Conclusion, conclude
from nonet.worker.attempt.crashes import Crash
from nonet.worker.attempt.timeouts import OBEY_SECONDS
from nonet.worker.children.children import Children
from nonet.worker.children.forking import Child, ForkServer, ForkServerError
from nonet.worker.children.wire import (
    Admit,
    Admitted,
    Begun,
    Cut,
    Ended,
    Exited,
    Guard,
    Judge,
    Run,
    Unguard,
)

logger = logging.getLogger(__name__)

# The child cancels at its hard limit, and is killed if it does not obey.
_KILL_AFTER_SECONDS = OBEY_SECONDS + 0.2
_JUDGE_SECONDS = 10.0
_KILL_GROUP_SECONDS = 3.0
_NO_CHILD = timedelta(seconds=5)
# These two are ours: no need of a process to ask them in.
_SAFE_POLICIES = (NoRetry, ExponentialBackoff)


@dataclass(frozen=True, slots=True)
class Work:
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

    def crash(self, exited: Exited | None) -> Crash:
        """How its process ended; None: with its fork server."""
        if exited is None:
            return Crash("", "its fork server ended, and nothing else ran there")
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
        children: in which they are made.
        settings: of the worker.
        live_config: what holds for the classes.
        admit: gives an attempt other locks, all or none; what refuses them, or None.
        accuse: says which suspects begin to run.
    """

    def __init__(
        self,
        children: Children,
        settings: Settings,
        live_config: LiveConfig,
        admit: Callable[[Attempt, str], Awaitable[str | None]],
        accuse: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._children = children
        self._settings = settings
        self._live_config = live_config
        self._admit = admit
        self.accuse = accuse
        self.exit_of = children.exit_of

    @property
    def pids(self) -> list[int]:
        """Of the child processes that live; from any thread."""
        return self._children.pids

    async def close(self) -> None:
        """End all child processes."""
        await self._children.close()

    def lent(self) -> AbstractAsyncContextManager[Child]:
        """A fresh child for several attempts; see `Children.lent`."""
        return self._children.lent(fresh=True)

    async def run(self, work: Work, *, fresh: bool) -> Conclusion:
        """Make an attempt; what it concluded, to be settled.

        Its process has ended then, or has nothing of it any more: its locks may be released.

        Args:
            fresh: in a process of its own.
        """
        attempt, conclusion = work.attempt, None
        attempt.is_waiting = True
        attempt.enter()
        try:
            async with self._children.lent(fresh=fresh) as child:
                conclusion = await self._attempt(child, work)
        except (ForkServerError, NonetError) as error:
            conclusion = self.not_begun(work, error)
        except asyncio.CancelledError:
            if not attempt.is_stopped:  # not by us: the loop ends
                raise
            uncancel()
        finally:
            attempt.leave()
            attempt.is_waiting = False
            attempt.share_deadline(None)
        return conclusion or self.conclude(work, stopped(attempt))

    def not_begun(self, work: Work, error: Exception) -> Conclusion:
        """What follows when there is no child process to be had, or Redis does not answer."""
        logger.error("task %s cannot begin: %s", work.attempt.delivery.id, error)
        return self.conclude(work, HandedBack(f"no child process: {error}", _NO_CHILD))

    def run_message(
        self, child: Child, attempt: Attempt, trace: str, *, is_shared: bool = False
    ) -> Run:
        """What lets a child make an attempt."""
        version, workdir = self._live_config.version, child.server.workdir(child)
        return Run(attempt.delivery, attempt.since, version, workdir, trace, is_shared)

    async def _attempt(self, child: Child, work: Work) -> Conclusion:
        attempt, began = work.attempt, time.monotonic()
        attempt.is_waiting = False
        if attempt.delivery.suspect:
            await self.accuse([attempt.delivery.id])
        trace = current_trace() if attempt.span is not None else ""
        board = child.server.board
        board.open(child.number, attempt.deadline)  # it is cleared when the child is given back
        attempt.share_deadline(partial(board.extend, child.number))
        try:
            child.server.ask(work.guard(child.number))
            Children.begin(child, self.run_message(child, attempt, trace))
            ended = await self._hear(child, attempt)
        finally:
            child.server.ask(Unguard(child.number))
            Children.end(child)
        if isinstance(ended, Conclusion):
            child.is_busy = ended.is_left_over
            child.cpu += (ended.usage.cpu if ended.usage else None) or 0.0
            return ended
        child.is_busy = False  # it has ended
        usage = Usage(wall=time.monotonic() - began)
        if ended is not None:
            usage = Usage(usage.wall, max(0.0, ended.cpu - child.cpu), ended.rss)
        return await self._after_exit(work, child, ended, usage)

    async def _hear(self, child: Child, attempt: Attempt) -> Conclusion | Exited | None:
        """What the child concludes, or how it ended; it is told meanwhile if it is to stop."""
        kill: asyncio.TimerHandle | None = None
        try:
            while True:
                try:
                    message = await child.inbox.get()
                    if isinstance(message, Admit):
                        child.channel.send(await self.admitted(attempt, message))
                        continue
                except asyncio.CancelledError:
                    if not attempt.is_stopped:
                        raise
                    uncancel()
                    kill = self.stop(child, attempt, kill)
                    continue
                is_own = getattr(message, "fence", "") == attempt.delivery.fence
                if isinstance(message, Begun):
                    attempt.started = attempt.started or is_own
                elif message is None:
                    return await asyncio.shield(self._children.exit_of(child))
                elif isinstance(message, Ended) and is_own:
                    return message.conclusion
        finally:
            if kill is not None:
                kill.cancel()

    async def admitted(self, attempt: Attempt, asked: Admit) -> Admitted:
        """The answer to a child that asks for other locks."""
        refused = await self._admit(attempt, asked.lines)
        return Admitted(asked.fence, attempt.locks, attempt.held, refused)

    def stop(
        self, child: Child, attempt: Attempt, kill: asyncio.TimerHandle | None
    ) -> asyncio.TimerHandle:
        """Tell a child to stop an attempt; it is killed when it does not."""
        patience = 0.0
        if attempt.lost is None:
            reason = attempt.cancelled or attempt.cut_off or ""
            child.channel.send(Cut(_fence(attempt), reason, attempt.cancelled is not None))
            is_cut = attempt.cut_off is not None
            patience = OBEY_SECONDS if is_cut else self._settings.cancel_grace
        when = asyncio.get_running_loop().time() + patience
        if kill is not None:
            when = min(when, kill.when())
            kill.cancel()
        return asyncio.get_running_loop().call_at(when, _kill, child, attempt)

    # ---- without a child ------------------------------------------------------------------------

    async def _after_exit(
        self, work: Work, child: Child, exited: Exited | None, usage: Usage
    ) -> Conclusion:
        """What follows from an attempt whose process is gone."""
        attempt = work.attempt
        if exited is not None and exited.why == "lease" and attempt.lost is None:
            outcome: Outcome = Lost("the lease could not be renewed in time")
        elif attempt.is_stopped:
            outcome = stopped(attempt)
        elif not attempt.started or (exited and exited.why and exited.fence != _fence(attempt)):
            outcome = HandedBack("its child process was about to end")  # for another task's sake
        elif exited is None and not (attempt.delivery.suspect and child.server.in_flight == 1):
            text = "its fork server ended while it ran"
            outcome = HandedBack(text, started=True, is_suspect=True)
        else:
            return await self.judge(work, work.crash(exited), usage)
        return self.conclude(work, outcome, usage)

    async def judge(
        self, work: Work, crash: Crash, usage: Usage | None = None, *, is_counted: bool = False
    ) -> Conclusion:
        """Ask the policy of a task that has crashed, in another child unless it is one of ours.

        Args:
            is_counted: the crash is among those of the delivery already.
        """
        delivery = work.attempt.delivery
        failed = Failed(crash.error(), crashed=not is_counted)
        is_last = delivery.crashes + 1 >= self._settings.crash_limit and not is_counted
        if is_last or type(work.effective.retry_policy) in _SAFE_POLICIES:
            return self.conclude(work, failed, usage)
        message: object = None
        try:
            async with self._children.lent(fresh=True) as child:
                child.is_busy = True
                child.channel.send(Judge(delivery, self._live_config.version, crash, is_counted))
                async with asyncio.timeout(_JUDGE_SECONDS):
                    message = await child.inbox.get()
                child.is_busy = message is None
        except TimeoutError:
            message = None
        except ForkServerError as error:  # that is no fault of the task's
            back = HandedBack(f"no process to ask its policy in: {error}", _NO_CHILD)
            return self.conclude(
                work, replace(back, started=True, is_suspect=not is_counted), usage
            )
        if isinstance(message, Ended):
            return replace(message.conclusion, usage=usage)
        logger.error("task %s: its retry policy did not answer: no retry", delivery.id)
        return self.conclude(work, replace(failed, reason=Reason.CRASH), usage)

    def conclude(self, work: Work, outcome: Outcome, usage: Usage | None = None) -> Conclusion:
        """See `nonet.worker.attempt.conclusion.conclude`."""
        return conclude(
            *(work.attempt, work.task_class, outcome, self._live_config),
            message_limit=self._settings.message_limit,
            crash_limit=self._settings.crash_limit,
            usage=usage,
        )


def _fence(attempt: Attempt) -> str:
    return attempt.delivery.fence


def stopped(attempt: Attempt) -> Outcome:
    """How an attempt ends that was asked to."""
    if attempt.lost is not None:
        return Lost(attempt.lost)
    if attempt.cancelled is not None:
        return Cancelled(attempt.cancelled)
    return HandedBack(attempt.cut_off or "", started=attempt.started)


def _kill(child: Child, attempt: Attempt) -> None:
    logger.warning(
        "task %s (%s): its process %d has not stopped and is killed",
        *(attempt.delivery.id, attempt.context.name, child.pid),
    )
    Children.ask_to_kill(child)
    # If its fork server does nothing, which is asked first.
    asyncio.get_running_loop().call_later(_KILL_GROUP_SECONDS, ForkServer.kill_group, child)

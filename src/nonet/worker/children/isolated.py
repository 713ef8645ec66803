"""Run one attempt in a child process, stop it, and conclude when its process dies.

The worker keeps the lease and the locks, and settles. The child opens the dependencies, executes
the task and asks its retry policy. The fork server kills a child at the deadline of its lease, at
its limits of time, memory and CPU, or when the worker requests it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from nonet.base.errors import NonetError
from nonet.base.loop import uncancel
from nonet.base.messages.message import Usage
from nonet.client.client import Client
from nonet.rules.outcomes import Failed, HandedBack, Lost, Outcome
from nonet.rules.reasons import Reason
from nonet.telemetry.running_middleware import MOST_SECONDS
from nonet.telemetry.tracing import current_trace
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.conclusion import Ended
from nonet.worker.attempt.crashes import Crash
from nonet.worker.attempt.timeouts import OBEY_SECONDS
from nonet.worker.children.children import Children
from nonet.worker.children.deaths import ChildDeaths
from nonet.worker.children.forking import Child, ForkServer, ForkServerError
from nonet.worker.children.wire import (
    Admit,
    Admitted,
    Concluded,
    Cut,
    Exited,
    Guard,
    Judge,
    Logged,
    Progressed,
    Run,
    Unguard,
)

logger = logging.getLogger(__name__)

# The child cancels its task at the hard limit and is killed if the task does not obey.
_KILL_AFTER_SECONDS = OBEY_SECONDS + 0.2
_JUDGE_SECONDS = 10.0
_KILL_GROUP_SECONDS = 3.0
_NO_CHILD = timedelta(seconds=5)


class Isolated:
    """Runs attempts in child processes.

    Args:
        children: the pool of child processes.
        client: stores the progress of attempts.
        admit: replaces the locks of an attempt, all or none; returns the lock that refused.
        accuse: records in Redis which suspects begin to run.
        deaths: reports children that died.
    """

    def __init__(
        self,
        children: Children,
        client: Client,
        admit: Callable[[Attempt, str], Awaitable[str | None]],
        accuse: Callable[[Sequence[str]], Awaitable[None]],
        deaths: ChildDeaths,
    ) -> None:
        self._children = children
        self._client = client
        self._settings = client.settings
        self._admit = admit
        self.accuse = accuse
        self._deaths = deaths
        self.exit_of = children.exit_of

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children; from any thread."""
        return self._children.pids

    async def close(self) -> None:
        """End all child processes."""
        await self._children.close()

    def lent(self) -> AbstractAsyncContextManager[Child]:
        """Lend a fresh child for several attempts; see `Children.lent`."""
        return self._children.lent(fresh=True)

    async def run(self, attempt: Attempt, *, fresh: bool) -> Ended:
        """Run an attempt; return the conclusion of its child, or an outcome.

        No code of the attempt runs any more when this returns, so its locks may be released.

        Args:
            fresh: run it in a new process.
        """
        ended = None
        with attempt.waiting():
            try:
                async with self._children.lent(fresh=fresh) as child:
                    # Assigned inside the block: a stop during the child's exit must not lose it.
                    ended = await self._attempt(child, attempt)
            except (ForkServerError, NonetError) as error:
                ended = self.not_begun(attempt, error)
        return ended or attempt.stopped()

    def not_begun(self, attempt: Attempt, error: Exception) -> Outcome:
        """Hand back an attempt that could not start, for lack of a process or of Redis."""
        logger.error("task %s cannot begin: %s", attempt.delivery.id, error)
        return HandedBack(f"no child process: {error}", _NO_CHILD)

    def run_message(
        self, child: Child, attempt: Attempt, trace: str, *, is_shared: bool = False
    ) -> Run:
        """Return the message that starts an attempt in a child."""
        version, workdir = self._client.live_config.version, child.server.workdir(child)
        return Run(attempt.delivery, attempt.since, version, workdir, trace, is_shared)

    async def _attempt(self, child: Child, attempt: Attempt) -> Ended:
        began = time.monotonic()
        attempt.stage = Stage.IN_CHILD
        if attempt.delivery.suspect:
            await self.accuse([attempt.delivery.id])
        trace = current_trace() if attempt.span is not None else ""
        board = child.server.board
        # The lease is cleared when the child is given back.
        board.open(child.number, attempt.deadline, child.attempts + 1, self._kill_at(attempt))
        attempt.share_deadline(partial(board.extend, child.number))
        effective = attempt.effective
        is_measured = bool(effective.memory_limit or effective.cpu_limit)
        try:
            if is_measured:
                limits = effective.memory_limit or 0, effective.cpu_limit or 0.0
                child.server.ask(Guard(child.number, child.attempts + 1, *limits))
            Children.begin(child, self.run_message(child, attempt, trace))
            ended = await self._ended(child, attempt)
        finally:
            attempt.started = attempt.started or child.has_received
            board.end(child.number)
            if is_measured:
                child.server.ask(Unguard(child.number))
            Children.end(child)
        if isinstance(ended, Concluded):
            conclusion, usage = ended.conclusion, ended.conclusion.usage or Usage()
            child.is_busy, child.has_processes = conclusion.is_left_over, ended.has_processes
            child.cpu += usage.cpu or 0.0
            child.peak = math.inf if usage.rss is None else usage.rss
            return conclusion
        child.is_busy = False  # its process is dead
        attempt.usage = Usage(wall=time.monotonic() - began)
        if ended is not None:
            cpu = max(0.0, ended.cpu - child.cpu)
            attempt.usage = Usage(attempt.usage.wall, cpu, ended.rss)
        return await self._after_exit(attempt, child, ended)

    def _kill_at(self, attempt: Attempt) -> float:
        """Return when the fork server kills the child in any case; 0: never."""
        hard = attempt.effective.time.hard
        around = 2 * MOST_SECONDS * len(self._client.middlewares.around_attempt)
        return time.monotonic() + hard + _KILL_AFTER_SECONDS + around if hard else 0.0

    async def _ended(self, child: Child, attempt: Attempt) -> Concluded | Exited | None:
        """Wait for the child's conclusion or its death; meanwhile pass on a request to stop."""
        kill: asyncio.TimerHandle | None = None
        try:
            while True:
                try:
                    message = await child.inbox.get()
                    if isinstance(message, Admit):
                        child.channel.send(await self.admitted(attempt, message))
                        continue
                except asyncio.CancelledError:
                    if not attempt.is_asked:
                        raise
                    uncancel()
                    kill = self.stop(child, attempt, kill)
                    continue
                is_own = getattr(message, "fence", "") == attempt.delivery.fence
                if isinstance(message, Progressed | Logged) and is_own:
                    self.report(attempt, message)
                elif message is None:
                    return await asyncio.shield(self._children.exit_of(child))
                elif isinstance(message, Concluded) and is_own:
                    return message
        finally:
            if kill is not None:
                kill.cancel()

    async def admitted(self, attempt: Attempt, asked: Admit) -> Admitted:
        """Return the answer to a child that requests other locks."""
        refused = await self._admit(attempt, asked.lines)
        return Admitted(asked.fence, attempt.locks, attempt.held, refused)

    def report(self, attempt: Attempt, reported: Progressed | Logged) -> None:
        """Store the progress that a child reports, or take over what it has logged."""
        if isinstance(reported, Logged):
            attempt.context.keep_lines_of_child(reported.lines)
            return
        attempt.context.serve_with(self._client)
        attempt.context.progress(reported.fraction, reported.said)

    def stop(
        self, child: Child, attempt: Attempt, kill: asyncio.TimerHandle | None
    ) -> asyncio.TimerHandle:
        """Tell a child to stop an attempt, and kill it if it does not.

        Args:
            kill: timer that an earlier call returned.

        Returns:
            The timer that kills the child; cancel it when the attempt has ended.
        """
        patience = 0.0
        if attempt.lost is None:
            reason = attempt.cancelled or attempt.cut_off or ""
            child.channel.send(Cut(attempt.delivery.fence, reason, attempt.cancelled is not None))
            is_cut = attempt.cut_off is not None
            patience = OBEY_SECONDS if is_cut else self._settings.cancel_grace
        when = asyncio.get_running_loop().time() + patience
        if kill is not None:
            when = min(when, kill.when())
            kill.cancel()
        return asyncio.get_running_loop().call_at(when, _kill, child, attempt)

    # ---- without a child ------------------------------------------------------------------------

    async def _after_exit(self, attempt: Attempt, child: Child, exited: Exited | None) -> Ended:
        """Return how an attempt ended whose process died."""
        delivery = attempt.delivery
        was_killed_for_another = exited and exited.why and exited.attempt != child.attempts
        if exited is not None and exited.why == "lease" and attempt.lost is None:
            return Lost("the lease could not be renewed in time")
        if attempt.is_asked:
            return attempt.stopped()
        if not attempt.started or was_killed_for_another:
            return HandedBack("its child process was about to end")
        if exited is None and not (delivery.suspect and child.server.in_flight == 1):
            text = "its fork server ended while it ran"
            return HandedBack(text, started=True, is_suspect=True)
        self.report_death(child, [attempt], exited)
        return await self.judge(attempt, crash_of(attempt, exited))

    def report_death(
        self, child: Child, attempts: Sequence[Attempt], exited: Exited | None
    ) -> None:
        """Write an event about a child that died with these attempts."""
        tasks = [f"{item.delivery.id} ({item.context.name})" for item in attempts]
        self._deaths.report(child.pid, tasks, str(crash_of(attempts[0], exited).error()))

    async def judge(self, attempt: Attempt, crash: Crash, *, is_counted: bool = False) -> Ended:
        """Ask the retry policy of a crashed task; an author's policy runs in a new child.

        Middleware in this process sees the crash when it is concluded.

        Args:
            is_counted: whether `Delivery.crashes` includes this crash already.
        """
        from nonet.tasks.retry import BUILT_IN_POLICIES  # imports pydantic

        delivery = attempt.delivery
        attempt.crash = crash.error()
        failed = Failed(attempt.crash, crashed=not is_counted)
        is_last = delivery.crashes + 1 >= self._settings.crash_limit and not is_counted
        if is_last or type(attempt.effective.retry_policy) in BUILT_IN_POLICIES:
            return failed
        message: object = None
        try:
            async with self._children.lent(fresh=True) as child:
                child.is_busy = True
                child.channel.send(
                    Judge(delivery, self._client.live_config.version, crash, is_counted)
                )
                async with asyncio.timeout(_JUDGE_SECONDS):
                    message = await child.inbox.get()
                child.is_busy = message is None
        except TimeoutError:
            message = None
        except ForkServerError as error:  # not the task's fault
            back = HandedBack(f"no process for its retry policy: {error}", _NO_CHILD)
            return replace(back, started=True, is_suspect=not is_counted)
        if isinstance(message, Concluded):
            message.conclusion.usage = attempt.usage
            return message.conclusion
        logger.error("task %s: its retry policy did not answer, so no retry", delivery.id)
        return replace(failed, reason=Reason.CRASH)


def crash_of(attempt: Attempt, exited: Exited | None) -> Crash:
    """Describe the death of an attempt's process; `exited` is None if its fork server died."""
    if exited is None:
        return Crash("", "its fork server ended, and nothing else ran there")
    effective, code = attempt.effective, exited.status
    limits = {"memory": effective.memory_limit, "cpu": effective.cpu_limit}
    return Crash(
        exited.why if exited.why == "time" or exited.why in limits else "",
        effective.time.hard_text if exited.why == "time" else "",
        signal=-code if code < 0 else None,
        exit_code=code if code >= 0 else None,
        allowed=limits.get(exited.why),
    )


def _kill(child: Child, attempt: Attempt) -> None:
    logger.warning(
        "task %s (%s): its process %d has not stopped and is killed",
        attempt.delivery.id,
        attempt.context.name,
        child.pid,
    )
    Children.ask_to_kill(child)
    # In case the fork server hangs.
    asyncio.get_running_loop().call_later(_KILL_GROUP_SECONDS, ForkServer.kill_group, child)

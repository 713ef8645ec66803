"""Run suspects in child processes, beside the slots of a worker, to find the task that crashes.

A suspect is a task that ran in a process when it died; any of them may be the cause. Coroutines
that would share the loop of a SMALL worker rerun in groups, one child process for each group. If
the child dies, its tasks rerun in groups of half the size, until the culprit is alone. All other
suspects run alone in a child. A suspect that was present when two workers died runs, with its
group, while this worker runs nothing else.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby

from nonet.base.errors import NonetError
from nonet.base.loop import uncancel
from nonet.base.machine import cores
from nonet.base.messages.message import Usage
from nonet.base.streams import Size
from nonet.rules.outcomes import HandedBack, Lost, Outcome
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.invoke import is_coroutine_function
from nonet.tasks.task import Isolation
from nonet.telemetry.tracing import current_trace
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.beside_slots import Lane
from nonet.worker.attempt.conclusion import Ended
from nonet.worker.children.children import Children
from nonet.worker.children.forking import Child, ForkServerError
from nonet.worker.children.isolated import Isolated, crash_of
from nonet.worker.children.wire import Admit, Concluded, Exited, Logged, Progressed

# fetch.lua has the same two numbers.
_STRONG = 2
_GROUP = 100
_GROUPS_AT_ONCE = 4
_SINGLES_AT_ONCE = {Size.SMALL: 16, Size.MEDIUM: cores(), Size.LARGE: 1}
# How long a worker fetches nothing so that a suspect can run alone, and after which delay another
# worker may try.
_ALONE_SECONDS = 60.0
_NOT_ALONE = HandedBack(
    "it must run alone, and its worker was busy for 60 s", timedelta(seconds=60)
)
# How long to keep the fork server (60 MB) after the last suspect.
_KEEP_SECONDS = 60.0


def group_size(suspicion: int) -> int:
    """Return how many suspects may share a process, after so many deaths of a shared process.

    >>> [group_size(times) for times in range(1, 9)]
    [100, 50, 25, 12, 6, 3, 1, 1]
    """
    return max(1, _GROUP >> max(0, suspicion - 1))


def in_groups(suspicions: Sequence[int]) -> Iterator[list[int]]:
    """Group tasks that are equally suspect; yields positions of `suspicions`.

    >>> list(in_groups([7, 1, 6, 1, 6, 6, 6]))
    [[1, 3], [2, 4, 5], [6], [0]]
    """
    order = sorted(range(len(suspicions)), key=suspicions.__getitem__)
    for suspicion, places in groupby(order, key=suspicions.__getitem__):
        alike, size = list(places), group_size(suspicion)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def is_strong(delivery: Delivery) -> bool:
    """Whether a suspect must run while nothing else does, because two workers died with it."""
    return delivery.deaths >= _STRONG


class Suspects(Lane):
    """Runs the suspects of one worker.

    Args:
        size: size of the worker.
        isolated: makes an `Isolated` with a fork server of its own, as a suspect may kill it.
        others: how many attempts in slots this worker runs.
    """

    def __init__(
        self, size: Size, isolated: Callable[[], Isolated], others: Callable[[], int]
    ) -> None:
        super().__init__()
        self._size = size
        self._make_isolated = isolated
        self._others = others
        self._most = _GROUP * _GROUPS_AT_ONCE if size is Size.SMALL else _SINGLES_AT_ONCE[size]
        self._pending: list[_Member] = []
        self._groups = asyncio.Semaphore(_GROUPS_AT_ONCE)
        self._singles = asyncio.Semaphore(_SINGLES_AT_ONCE[size])
        self._one_at_a_time = asyncio.Lock()
        self._changed = asyncio.Event()
        self._shared: Isolated | None = None
        self._open: set[Isolated] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many more suspects to fetch; a SMALL worker fetches a whole group or none."""
        left = self._most - len(self.attempts)
        least = _GROUP if self._size is Size.SMALL else 1
        if self.is_exclusive or self._singles.locked() or left < least:
            return 0
        return min(_GROUP, left)

    @property
    def is_exclusive(self) -> bool:
        """Whether a suspect is here that must run while nothing else does."""
        return any(is_strong(attempt.delivery) for attempt in self.attempts)

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children; from any thread."""
        return [pid for isolated in list(self._open) for pid in isolated.pids]

    def drop(self, attempt: Attempt) -> None:
        """Note that an attempt has ended, in this lane or elsewhere in this worker."""
        self._changed.set()
        if attempt in self.attempts:
            super().drop(attempt)
            if not self.attempts and self._shared is not None:
                shared, loop = self._shared, asyncio.get_running_loop()
                loop.call_later(_KEEP_SECONDS, lambda: self._start(self._close_if_idle(shared)))

    async def close(self) -> None:
        """End all child processes."""
        for task in list(self._tasks):
            task.cancel()
        for isolated in list(self._open):
            await self._close(isolated)

    async def run(self, attempt: Attempt) -> Ended:
        """Execute an attempt in a child process and return how it ended."""
        if self._size is Size.SMALL and _shares_a_loop(attempt):
            return await self._in_group(attempt)
        with attempt.waiting():
            return await self._singly(attempt)
        return attempt.stopped()

    async def _singly(self, attempt: Attempt) -> Ended:
        delivery = attempt.delivery
        async with self._turn([delivery], self._singles) as may_run:
            if not may_run:
                return _NOT_ALONE
            if delivery.suspect < _STRONG:
                return await self._lane().run(attempt, fresh=True)
            alone = self._opened()  # it may be the task that kills fork servers
            try:
                return await alone.run(attempt, fresh=True)
            finally:
                await self._close(alone)

    @asynccontextmanager
    async def _turn(
        self, deliveries: Iterable[Delivery], beside: asyncio.Semaphore
    ) -> AsyncIterator[bool]:
        """Wait until these tasks may run; yield False if they cannot run alone within 60 s."""
        if not any(map(is_strong, deliveries)):
            async with beside:
                yield True
            return
        try:
            async with asyncio.timeout(_ALONE_SECONDS):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield await self._is_alone()
        finally:
            self._one_at_a_time.release()

    async def _is_alone(self) -> bool:
        """Wait until all other attempts have ended; False if that takes longer than 60 s.

        The worker fetches nothing meanwhile.
        """
        try:
            async with asyncio.timeout(_ALONE_SECONDS):
                while self._others() + sum(not is_strong(item.delivery) for item in self.attempts):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # ---- groups ---------------------------------------------------------------------------------

    async def _in_group(self, attempt: Attempt) -> Ended:
        member = _Member(attempt)
        if not self._pending:
            # Called after all deliveries of this fetch have been started.
            asyncio.get_running_loop().call_soon(self._form_groups)
        self._pending.append(member)
        with attempt.waiting():
            while not member.ended.done():
                try:
                    await asyncio.shield(member.ended)
                except asyncio.CancelledError:
                    if not attempt.is_asked:  # the event loop ends
                        raise
                    uncancel()
                    member.stop()
        return member.ended.result() or attempt.stopped()

    def _form_groups(self) -> None:
        pending, self._pending = self._pending, []
        for strong in (False, True):
            members = [item for item in pending if is_strong(item.attempt.delivery) is strong]
            for group in in_groups([item.attempt.delivery.suspect for item in members]):
                self._start(self._run_group([members[place] for place in group]))

    async def _run_group(self, members: Sequence[_Member]) -> None:
        deliveries = [item.attempt.delivery for item in members]
        async with self._turn(deliveries, self._groups) as may_run:
            members, isolated = [item for item in members if not item.ended.done()], self._lane()
            if not may_run:
                for item in members:
                    item.end(_NOT_ALONE)
            if not (may_run and members):
                return
            try:
                async with isolated.lent() as child:
                    await _Group(isolated, child, members).run()
            except (ForkServerError, NonetError) as error:
                for item in members:
                    item.end(isolated.not_begun(item.attempt, error))

    # ---- processes ------------------------------------------------------------------------------

    def _lane(self) -> Isolated:
        if self._shared is None:
            self._shared = self._opened()
        return self._shared

    def _opened(self) -> Isolated:
        isolated = self._make_isolated()
        self._open.add(isolated)
        return isolated

    async def _close(self, isolated: Isolated) -> None:
        self._open.discard(isolated)
        await isolated.close()

    async def _close_if_idle(self, isolated: Isolated) -> None:
        if not self.attempts and self._shared is isolated:
            self._shared = None
            await self._close(isolated)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Member:
    """An attempt that shares a child process, or will; created in the attempt's asyncio task.

    Attributes:
        ended: how it ended; None if it was stopped before it began.
        began: when the child received it (monotonic), or 0.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.trace: str = current_trace() if attempt.span is not None else ""
        self.ended: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        self.began = 0.0
        self._isolated: Isolated | None = None
        self._child: Child | None = None
        self._kill: asyncio.TimerHandle | None = None

    def begin(self, isolated: Isolated, child: Child) -> None:
        """Send the attempt to the child."""
        attempt, self.began = self.attempt, time.monotonic()
        # Assume that it has started: the message that says so is lost if the child dies at once.
        attempt.stage, attempt.started = Stage.IN_CHILD, True
        self._isolated, self._child = isolated, child
        Children.begin(child, isolated.run_message(child, attempt, self.trace, is_shared=True))

    def stop(self) -> None:
        """End the attempt now if it has not begun, else tell the child to stop it."""
        if self._isolated is None or self._child is None:
            self.end(None)
        elif not self.ended.done():
            self._kill = self._isolated.stop(self._child, self.attempt, self._kill)

    def end(self, ended: Ended | None) -> None:
        """Tell the attempt's asyncio task how it ended."""
        if self._kill is not None:
            self._kill.cancel()
        if not self.ended.done():
            self.ended.set_result(ended)


class _Group:
    """Attempts that share a child process."""

    def __init__(self, isolated: Isolated, child: Child, members: Sequence[_Member]) -> None:
        self._isolated = isolated
        self._child = child
        self._running = {item.attempt.delivery.fence: item for item in members}
        self._deadlines: dict[str, float] = {}
        self._lock = threading.Lock()

    async def run(self) -> None:
        """Send all attempts to the child and wait until each has ended."""
        await self._isolated.accuse([item.attempt.delivery.id for item in self._running.values()])
        first = min(item.attempt.deadline for item in self._running.values())
        self._child.server.board.open(self._child.number, first, self._child.attempts + 1)
        for fence, item in self._running.items():
            item.attempt.share_deadline(partial(self._extend, fence))
            item.begin(self._isolated, self._child)
        try:
            while self._running:
                message = await self._child.inbox.get()
                if message is None:
                    exited = await asyncio.shield(self._isolated.exit_of(self._child))
                    await self._end_all(exited, self._child.server.in_flight)
                elif isinstance(message, Admit) and message.fence in self._running:
                    attempt = self._running[message.fence].attempt
                    self._child.channel.send(await self._isolated.admitted(attempt, message))
                elif isinstance(message, Progressed | Logged) and message.fence in self._running:
                    self._isolated.report(self._running[message.fence].attempt, message)
                elif isinstance(message, Concluded) and message.fence in self._running:
                    self._leave(message.fence).end(message.conclusion)
            self._child.is_busy = False
        finally:
            for fence in list(self._running):  # none, unless the worker stops
                self._leave(fence)

    def _extend(self, fence: str, deadline: float) -> None:
        """Set the child's deadline to the earliest end of its leases; from any thread."""
        with self._lock:
            self._deadlines[fence] = deadline
            first = min(self._deadlines.values())
        self._child.server.board.extend(self._child.number, first)

    def _leave(self, fence: str) -> _Member:
        item = self._running.pop(fence)
        item.attempt.share_deadline(None)
        with self._lock:
            self._deadlines[fence] = math.inf
        Children.end(self._child)
        return item

    async def _end_all(self, exited: Exited | None, in_flight: int) -> None:
        """End what ran in a dead child: a lone attempt crashed, several are suspects."""
        left = [self._leave(fence) for fence in list(self._running)]
        is_alone = len(left) == 1 and (exited is not None or in_flight == 1)
        if guilty := [item.attempt for item in left if _excuse(item.attempt, exited) is None]:
            self._isolated.report_death(self._child, guilty, exited)
        for item in left:
            item.attempt.usage = Usage(wall=time.monotonic() - item.began)
            if outcome := _excuse(item.attempt, exited):
                item.end(outcome)
            elif is_alone:
                item.end(await self._isolated.judge(item.attempt, crash_of(item.attempt, exited)))
            else:
                text = f"its process ended, with {len(left)} suspects"
                item.end(HandedBack(text, started=True, is_suspect=True))


def _excuse(attempt: Attempt, exited: Exited | None) -> Outcome | None:
    """Return an outcome if this worker stopped the attempt or killed its process, else None."""
    if attempt.is_asked:
        return attempt.stopped()
    if exited is None or not exited.why:
        return None
    if exited.why == "lease" and time.monotonic() >= attempt.deadline:
        return Lost("the lease could not be renewed in time")
    return HandedBack("the process that it shared was ended for another task", started=True)


def _shares_a_loop(attempt: Attempt) -> bool:
    """Whether the task would run in the worker's loop and stop when cancelled there."""
    effective, task_class = attempt.effective, attempt.task_class
    return (
        effective.isolation is Isolation.LOOP
        and effective.time.hard is None
        and task_class is not None
        and is_coroutine_function(task_class.cls.execute)
    )

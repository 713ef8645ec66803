"""Detect which task blocks the event loop, with a thread that pings the loop ten times a second.

A task that computes, or sleeps without ``await``, delays all other tasks of the loop. The thread
records this task and the line that it executes. Each ping wakes the thread once and the loop once.

Code that holds the interpreter lock, such as a long regular expression, also stops this thread and
the watchdog's. When the lock is free again, this thread notices that it was not run for seconds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from nonet.telemetry.metrics import Peak

logger = logging.getLogger(__name__)

# The watchers of this process, oldest first: several workers may share an event loop.
_watchers: list[LoopLag] = []

BLOCKED_SECONDS = 0.25
_ASK_SECONDS = 0.1
# Sample more often while the loop is silent, so that a culprit is seen more than once.
_WATCH_SECONDS = 0.05
# Log a long block while it lasts: it may never end.
_REPORT_SECONDS = 10.0
# A thread that merely waits to be scheduled in a busy process is never this late.
_HELD_SECONDS = 2.0
# A frozen process uses no CPU time; a process on a busy machine uses some.
_HELD_CPU_SECONDS = 2 * _ASK_SECONDS
# How long a hold explains a lost lease: the loss is noticed at once, or at the next beat.
_EXPLAINS_SECONDS = 10.0
_HELD_ADVICE = (
    "no lease and no lock of this process was renewed; give its class isolation = Isolation.CHILD"
)
# Shorter blocks are logged, but are no finding of an overview.
_LONG_BLOCK_SECONDS = 1.0
_ADVICE = "write it as 'def', await, or isolate it"
_NO_TASK = "not a Nonet task: Nonet itself, the program around it, or code that a task has started"


class Culprit(Struct, frozen=True):
    """The code that a sample found executing in the loop.

    Attributes:
        id: id of the task; otherwise the name of the asyncio task, or empty for a callback.
        task: full name of the task class, or empty.
    """

    id: str = ""
    task: str = ""

    def __str__(self) -> str:
        if self.task:
            return f"task {self.id} ({self.task})"
        return f"asyncio task {self.id}" if self.id else "a callback"


class Hold(Struct, frozen=True):
    """A period in which code held the interpreter lock, or blocked the event loop.

    Attributes:
        task: class of the task whose code held it; empty: unknown.
        seconds: how long it lasted.
        ended: when it ended, or was seen last (monotonic).
        place: file and line that the thread of the loop executed; empty: it was another thread.
    """

    task: str
    seconds: float
    ended: float
    place: str = ""

    def __str__(self) -> str:
        who = self.task or "code of a thread or a library"
        at = f" at {self.place}" if self.place else ""
        return f"{who} held the interpreter lock for {self.seconds:.1f} s{at}"


class _Stretch(Struct):
    """A period in which the loop did not respond and all samples found the same asyncio task.

    Attributes:
        began: when the loop was pinged, or when a sample last found another asyncio task
            (monotonic).
        first: when a sample first found this asyncio task.
        culprit: set once the block has lasted long enough.
    """

    task: asyncio.Task[Any] | None
    began: float
    first: float
    culprit: Culprit | None = None
    place: str = ""
    is_reported: bool = False


class LoopLag:
    """Watches the event loop in which it is started.

    Args:
        identify: returns the Nonet task that an asyncio task executes, if any.
        on_blocked: called once for each block.
        while_blocked: called repeatedly during a block, with the culprit and its place in the code.
        in_threads: returns the tasks that run in threads now.

    Attributes:
        hold: the last hold of the interpreter lock for seconds, or None.
        block: the last time that code blocked the loop, which may last, or None.

    All four are called in this thread, or in a thread that calls `why_late`. If several watch one
    loop, the one that knows the task reports a block, or the first one if none knows it.
    """

    def __init__(
        self,
        identify: Callable[[asyncio.Task[Any]], Culprit | None],
        on_blocked: Callable[[Culprit], None],
        while_blocked: Callable[[Culprit, str], None] | None = None,
        in_threads: Callable[[], list[Culprit]] = list,
    ) -> None:
        self._identify = identify
        self._while_blocked = while_blocked
        self._on_blocked = on_blocked
        self._in_threads = in_threads
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread = 0
        # CPU time of the thread of the loop; without Linux, that of the process.
        self._cpu_clock = time.CLOCK_PROCESS_CPUTIME_ID
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nonet-lag", daemon=True)
        # When the loop was pinged, and when it answered (monotonic).
        self._asked = self._answered = 0.0
        self._longest = 0.0
        self._peak = Peak()
        self._stretch: _Stretch | None = None
        self.hold: Hold | None = None
        self.block: Hold | None = None
        self._noticing = threading.Lock()
        # When the thread woke last; the CPU time of the process and of the loop at that time.
        self._woke = self._used = self._of_loop = 0.0

    def start(self) -> None:
        """Watch the running loop, in a thread."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        if sys.platform == "linux":
            self._cpu_clock = time.pthread_getcpuclockid(self._loop_thread)
        self._woke, self._used, self._of_loop = self._times()
        _watchers.append(self)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread without waiting for it."""
        self._stopping.set()
        if self in _watchers:
            _watchers.remove(self)

    @property
    def answered_at(self) -> float:
        """When the loop answered last (monotonic, within 0.1 s); 0 before the first ping."""
        return self._answered

    def longest(self) -> float:
        """Return the longest time (seconds) without an answer since the last call."""
        silence = time.monotonic() - self._asked if self._is_silent else 0.0
        longest, self._longest = max(self._longest, silence), 0.0
        return longest

    def recent(self) -> float:
        """Return the longest time (seconds) without an answer in the last 30 s."""
        silence = time.monotonic() - self._asked if self._is_silent else 0.0
        return max(self._peak.largest(), silence)

    @property
    def _is_silent(self) -> bool:
        return self._asked > self._answered

    def _answer(self) -> None:
        self._answered = time.monotonic()
        lag = self._answered - self._asked
        self._longest = max(self._longest, lag)
        self._peak.note(lag, self._answered)

    def why_late(self) -> str:
        """Return what kept the threads of this process from running just now; empty: unknown.

        For other threads, which may run before the one that watches.
        """
        # In its own thread the loop may already execute another task than the one that held it up.
        if self._thread.is_alive() and threading.get_ident() != self._loop_thread:
            with suppress(OSError):  # the thread of the loop has ended
                self._notice()
        hold = self.hold
        is_recent = hold is not None and time.monotonic() - hold.ended < _EXPLAINS_SECONDS
        return str(hold) if is_recent else ""

    def _run(self) -> None:
        with suppress(RuntimeError, OSError):  # the loop is closed, or its thread has ended
            while not self._stopping.wait(_WATCH_SECONDS if self._is_silent else _ASK_SECONDS):
                now, late, stood_still = self._notice()
                self._look(now, late, stood_still)

    def _notice(self) -> tuple[float, float, bool]:
        """Report if code has held the interpreter lock.

        Returns:
            The time now, by how much it is late, and whether this process stood still meanwhile.
        """
        # First: the task that held the interpreter lock now waits for it, so it is still current.
        task = asyncio.current_task(self._loop) if not self._loop.is_closed() else None
        place = self._place()
        with self._noticing:
            now, cpu, loop_cpu = self._times()
            late, used = now - self._woke - _ASK_SECONDS, cpu - self._used
            is_of_loop = loop_cpu - self._of_loop > used / 2
            self._woke, self._used, self._of_loop = now, cpu, loop_cpu
            if late > _HELD_SECONDS and used > _HELD_CPU_SECONDS:
                if is_of_loop:
                    self._held(late, now, self._name(task), place)
                else:
                    self._held(late, now, self._in_thread())
        # If this process used no CPU time, the machine was suspended or busy: do not blame a task.
        return now, late, late > BLOCKED_SECONDS and used < late / 2

    def _times(self) -> tuple[float, float, float]:
        """The time, and the CPU time of the process and of the thread of the loop."""
        return time.monotonic(), time.process_time(), time.clock_gettime(self._cpu_clock)

    def _in_thread(self) -> Culprit | None:
        """Name the code that held the lock in a thread; None if several classes could have."""
        found = self._in_threads()
        is_one_class = len({each.task for each in found}) == 1
        return found[0] if is_one_class else self._name(None)

    def _held(self, late: float, now: float, culprit: Culprit | None, place: str = "") -> None:
        """Report that no other thread ran for `late` seconds, and which code held the lock."""
        if culprit is None:
            return
        self.hold = Hold(culprit.task, late, now, place)
        self._longest = max(self._longest, late)
        self._peak.note(late, now)
        logger.warning(
            "the interpreter lock was held for %.1f s by %s%s: %s",
            late,
            culprit if culprit.task else "code of a thread or a library",
            f" at {place}" * bool(place),
            _HELD_ADVICE,
        )
        self._on_blocked(culprit)

    def _look(self, now: float, late: float, stood_still: bool) -> None:
        if self._is_silent and not stood_still:
            self._watch(now, late)
            return
        if not stood_still:
            self._end(self._answered)
        self._stretch, self._asked = None, now
        self._loop.call_soon_threadsafe(self._answer)

    def _watch(self, now: float, late: float) -> None:
        """Record which asyncio task the unresponsive loop executes."""
        task = asyncio.current_task(self._loop)
        stretch = self._stretch
        if stretch is None or stretch.task is not task:
            self._end(now)
            # A sequence of short tasks is not one task that blocks.
            began = self._asked if stretch is None else now
            stretch = self._stretch = _Stretch(task, began, now - max(0.0, late))
        has_lasted = now - stretch.began > BLOCKED_SECONDS
        if not has_lasted or now - stretch.first < BLOCKED_SECONDS - _ASK_SECONDS:
            return
        if stretch.culprit is None:
            stretch.culprit, stretch.place = self._name(task), self._place()
        if stretch.culprit is None:
            return
        self._note(stretch, now)
        if self._while_blocked is not None:
            self._while_blocked(stretch.culprit, stretch.place)
        if now - stretch.began > _REPORT_SECONDS:
            self._report(stretch, "is still blocked after", now)

    def _end(self, now: float) -> None:
        """End the current stretch: the loop answered, or now executes another asyncio task."""
        if self._stretch is not None and self._stretch.culprit is not None:
            self._note(self._stretch, now)
            self._report(self._stretch, "was blocked for", now)

    def _note(self, stretch: _Stretch, now: float) -> None:
        """Keep a long block for operators, until the next long one."""
        seconds = now - stretch.began
        if stretch.culprit is not None and seconds >= _LONG_BLOCK_SECONDS:
            self.block = Hold(stretch.culprit.task, seconds, now, stretch.place)

    def _report(self, stretch: _Stretch, how_long: str, now: float) -> None:
        if stretch.is_reported or stretch.culprit is None:
            return
        stretch.is_reported = True
        logger.warning(
            "the event loop %s %.2f s by %s at %s: all tasks beside it waited; %s",
            how_long,
            now - stretch.began,
            stretch.culprit,
            stretch.place,
            _ADVICE if stretch.culprit.task else _NO_TASK,
        )
        self._on_blocked(stretch.culprit)

    def _name(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        """Name the code that blocks; None: another watcher of this loop names it."""
        if task is not None and (own := self._identify(task)) is not None:
            return own
        here = [watcher for watcher in _watchers.copy() if watcher._loop is self._loop]
        if here[:1] != [self] or (task and any(watcher._identify(task) for watcher in here)):
            return None
        return Culprit(task.get_name() if task is not None else "")

    def _place(self) -> str:
        """Return file and line that the thread of the loop executes."""
        frame = sys._current_frames().get(self._loop_thread)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"

"""Who blocks the event loop: a thread that asks it ten times a second whether it goes round.

A task of the loop that computes, or sleeps without ``await``, holds up all others beside it. The
thread sees which one that is, and where in its code. Each time costs one wake-up of the thread and
one of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nonet.telemetry.metrics import Peak

logger = logging.getLogger(__name__)

BLOCKED_SECONDS = 0.25
_ASK_SECONDS = 0.1
# While it does not answer, so that whoever is in it is seen more than once.
_WATCH_SECONDS = 0.05
# One that lasts is told while it does: it may never end.
_TELL_SECONDS = 10.0
_ADVICE = "write it as 'def', await, or isolate it"
# In the loop runs more than what somebody has written as a task.
_NO_TASK = (
    "it is no task of Nonet's: Nonet itself, the program around it, or what a task has started"
)


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who was seen in the loop.

    Attributes:
        id: of the task that is executed; else the name of the asyncio task, or empty: none.
        task: full name of its class, or empty.
    """

    id: str = ""
    task: str = ""

    def __str__(self) -> str:
        if self.task:
            return f"task {self.id} ({self.task})"
        return f"asyncio task {self.id}" if self.id else "a callback"


@dataclass(slots=True)
class _Stretch:
    """A time in which the loop does not answer, always with the same asyncio task in it.

    Attributes:
        began: when the loop was asked, or when another asyncio task was seen before (monotonic).
        first: when this one was seen first.
        culprit: filled in when it has lasted; None: not yet.
    """

    task: asyncio.Task[Any] | None
    began: float
    first: float
    culprit: Culprit | None = None
    place: str = ""
    is_told: bool = False


class LoopLag:
    """Watches the event loop in which it is started.

    Args:
        identify: which task of ours an asyncio task executes, asked in the thread; None: none.
        on_blocked: called in the thread, once for each time that the loop was blocked.
        see_to: called in the thread again and again with who blocks it, and where, as long as it
            does.
    """

    def __init__(
        self,
        identify: Callable[[asyncio.Task[Any]], Culprit | None],
        on_blocked: Callable[[Culprit], None],
        see_to: Callable[[Culprit, str], None] = lambda culprit, place: None,
    ) -> None:
        self._identify = identify
        self._see_to = see_to
        self._on_blocked = on_blocked
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nonet-lag", daemon=True)
        # When the loop was asked, and when it answered (monotonic).
        self._asked = self._answered = 0.0
        self._longest = 0.0
        self._peak = Peak()
        self._stretch: _Stretch | None = None

    def start(self) -> None:
        """Watch the running loop, in a thread."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; it is not waited for."""
        self._stopping.set()

    @property
    def answered_at(self) -> float:
        """When the loop went round last (monotonic), to 0.1 s; 0 before it was asked."""
        return self._answered

    def longest(self) -> float:
        """For how many seconds at most the loop did not answer, since this was asked before."""
        silence = time.monotonic() - self._asked if self._is_silent else 0.0
        longest, self._longest = max(self._longest, silence), 0.0
        return longest

    def recent(self) -> float:
        """The same of the last half a minute, whoever asks."""
        silence = time.monotonic() - self._asked if self._is_silent else 0.0
        return max(self._peak.largest(), silence)

    @property
    def _is_silent(self) -> bool:
        return self._asked > self._answered

    def _answer(self) -> None:
        """Called in the loop."""
        self._answered = time.monotonic()
        lag = self._answered - self._asked
        self._longest = max(self._longest, lag)
        self._peak.note(lag, self._answered)

    def _run(self) -> None:
        woke, used = time.monotonic(), time.process_time()
        while not self._stopping.wait(_WATCH_SECONDS if self._is_silent else _ASK_SECONDS):
            now, cpu = time.monotonic(), time.process_time()
            late = now - woke - _ASK_SECONDS
            # Not by code that held the interpreter: then this process would have computed.
            stood_still = late > BLOCKED_SECONDS and cpu - used < late / 2
            woke, used = now, cpu
            try:
                self._look(now, late, stood_still)
            except RuntimeError:  # the loop is closed
                return

    def _look(self, now: float, late: float, stood_still: bool) -> None:
        if self._is_silent and not stood_still:
            self._watch(now, late)
            return
        if not stood_still:
            self._end(self._answered)
        # If the process stood still, nobody in it is to blame, and it is asked anew.
        self._stretch, self._asked = None, now
        self._loop.call_soon_threadsafe(self._answer)

    def _watch(self, now: float, late: float) -> None:
        """See who is in the loop, which has not answered yet."""
        task = asyncio.current_task(self._loop)
        stretch = self._stretch
        if stretch is None or stretch.task is not task:
            self._end(now)
            # Several short ones after each other are not one that blocks.
            began = self._asked if stretch is None else now
            stretch = self._stretch = _Stretch(task, began, now - max(0.0, late))
        has_lasted = now - stretch.began > BLOCKED_SECONDS
        if not has_lasted or now - stretch.first < BLOCKED_SECONDS - _ASK_SECONDS:
            return
        if stretch.culprit is None:
            stretch.culprit, stretch.place = self._name(task), self._place()
        self._see_to(stretch.culprit, stretch.place)
        if now - stretch.began > _TELL_SECONDS:
            self._tell(stretch, "still is blocked after", now)

    def _end(self, now: float) -> None:
        """The loop answers, or somebody else is in it."""
        if self._stretch is not None and self._stretch.culprit is not None:
            self._tell(self._stretch, "was blocked for", now)

    def _tell(self, stretch: _Stretch, how_long: str, now: float) -> None:
        if stretch.is_told or stretch.culprit is None:
            return
        stretch.is_told = True
        logger.warning(
            "the event loop %s %.2f s by %s at %s: all tasks beside it waited; %s",
            how_long,
            now - stretch.began,
            stretch.culprit,
            stretch.place,
            _ADVICE if stretch.culprit.task else _NO_TASK,
        )
        self._on_blocked(stretch.culprit)

    def _name(self, task: asyncio.Task[Any] | None) -> Culprit:
        if task is None:
            return Culprit()
        return self._identify(task) or Culprit(task.get_name())

    def _place(self) -> str:
        """File and line that the thread of the loop is at."""
        frame = sys._current_frames().get(self._loop_thread)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"

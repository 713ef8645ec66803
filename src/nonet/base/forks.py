"""Detach a forked copy of this process, and end it where the code that forked it ends.

Code of a task may fork. The copy runs only the thread that forked, but it inherits the event loop
with its epoll set and connections, and the signal handlers. A copy that continued as the worker
would settle tasks over the connections of the worker, and remove them from its epoll set. So a copy

- gets ``/dev/null`` for each descriptor that the loop watches, a new epoll set and the default
  signal handlers;
- ends as soon as `ending_copies`, or the loop, gets control back from the code that forked.

The fork server runs no loop, so its children keep all that they inherit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet, WeakValueDictionary

logger = logging.getLogger(__name__)

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

_AWAITED = (
    "a forked copy of this process awaited something and ends with exit code 1: it has no event "
    "loop, so call asyncio.run() there or use blocking calls"
)


# The event loops of this process, each with its thread; one for each `detached_in_copies` block.
_loops: list[tuple[int, asyncio.AbstractEventLoop]] = []
# The loops of the process that was forked.
_inherited: list[asyncio.AbstractEventLoop] = []
_locks: WeakSet[Lock] = WeakSet()
# The asyncio tasks that are about to fork, by thread.
_forking: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()
# The number of forks between the first process and this one.
generation = 0


class Lock:
    """A lock that is free in a forked copy, even if another thread held it at the fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ending_copies:
    """A block around code of a task: a copy that this code forks ends at the end of the block.

    The copy exits like a script: with 0, the argument of ``sys.exit``, or 1 after another
    exception, which is logged.
    """

    __slots__ = ("_generation",)

    def __enter__(self) -> None:
        self._generation = generation

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if generation != self._generation:
            _end(error)


class Threads(ThreadPoolExecutor):
    """Threads that run code of tasks inside `ending_copies`."""

    def submit(
        self, function: Callable[_Given, _Answer], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Answer]:
        """See `concurrent.futures.Executor.submit`."""
        return super().submit(_run, function, *args, **kwargs)


def _run(
    function: Callable[_Given, _Answer], /, *args: _Given.args, **kwargs: _Given.kwargs
) -> _Answer:
    with ending_copies():
        return function(*args, **kwargs)


@contextmanager
def detached_in_copies(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Detach copies from a loop that this thread runs inside the block."""
    entry = threading.get_ident(), loop
    _loops.append(entry)
    try:
        yield
    finally:
        _loops.remove(entry)


def is_inherited(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this process is a copy, and `loop` runs in the process that was forked."""
    return loop in _inherited


# ---- at a fork ----------------------------------------------------------------------------------


def _loop_here() -> asyncio.AbstractEventLoop | None:
    thread = threading.get_ident()
    return next((loop for owner, loop in _loops if owner == thread), None)


def _note_task() -> None:
    """Note the current task before the fork: since Python 3.14 the copy cannot find it."""
    thread, loop = threading.get_ident(), _loop_here()
    if loop is not None and (task := asyncio.current_task(loop)) is not None:
        _forking[thread] = task
    else:
        _forking.pop(thread, None)


def _detach() -> None:
    """Detach this process, which was just forked, from its parent."""
    global generation
    generation += 1
    for lock in _locks:
        lock.renew()
    loops, here = {loop for _, loop in _loops}, _loop_here()
    _loops.clear()  # a copy of this copy is detached already
    if not loops:
        return
    _inherited.extend(loops)
    if here is not None:
        _halt(here, _forking.get(threading.get_ident()))
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        # Keep the handlers of a program that embeds a worker.
        if str(getattr(signal.getsignal(number), "__module__", "")).startswith("nonet."):
            signal.signal(number, signal.SIG_DFL)
    for loop in loops:
        _replace_descriptors(loop)


os.register_at_fork(before=_note_task, after_in_child=_detach)


def _halt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> None:
    """Run nothing more in a loop of this copy, and end the copy when the loop gets control back.

    The loop is in the middle of a step of `task`; other steps and callbacks may follow. Set a
    foreign object as the current task: asyncio then fails at the end of this step and at the start
    of any other, and calls the exception handler of the loop.

    Args:
        task: the task that has forked; None: a callback has forked.
    """

    def end(*_: object) -> NoReturn:
        if task is None:
            _end(None)
        if not task.done():
            logger.error(_AWAITED)
            _end(SystemExit(1))
        _end(asyncio.CancelledError() if task.cancelled() else task.exception())

    loop.set_exception_handler(end)
    loop.call_soon(end)
    foreign: Any = object()
    with suppress(RuntimeError):  # since Python 3.14 a fork has ended the step already
        if task is not None:
            asyncio.tasks._leave_task(loop, task)
        asyncio.tasks._enter_task(loop, foreign)


def _end(error: BaseException | None) -> NoReturn:
    """End this copy as a script ends after `error`, without the exit handlers of its parent."""
    code = 1
    try:
        if error is None:
            code = 0
        elif not isinstance(error, SystemExit):
            logger.error("a forked copy of this process failed", exc_info=error)
        elif isinstance(error.code, int | None):
            code = (error.code or 0) & 0xFF
        else:
            sys.stderr.write(f"{error.code}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# ---- descriptors --------------------------------------------------------------------------------


def _epoll_of(loop: Any) -> int | None:
    """The descriptor of a loop's epoll set; None: another kind of loop, or not Linux."""
    if not hasattr(select, "epoll"):
        return None
    if (selector := getattr(loop, "_selector", None)) is not None:
        loop_fd = selector.fileno
    else:
        loop_fd = getattr(loop, "_get_backend_id", lambda: None)  # uvloop
    found: int | None = loop_fd()
    return found


def watched_by(loop: asyncio.AbstractEventLoop) -> set[int] | None:
    """The descriptors in a loop's epoll set; None if the kernel does not list them."""
    try:
        with open(f"/proc/self/fdinfo/{_epoll_of(loop)}", "rb") as file:
            return {int(line.split()[1]) for line in file if line.startswith(b"tfd:")}
    except OSError:
        return None


def _replace_descriptors(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the descriptors that a loop watches, and its epoll set, in this copy only.

    If they were closed, new files would get their numbers, which the loop still uses.
    """
    watched, epoll = watched_by(loop), _epoll_of(loop)
    if watched is None or epoll is None:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in watched:
        if number > 2:  # the copy shares the standard files
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    with select.epoll() as empty:
        os.dup2(empty.fileno(), epoll, inheritable=False)

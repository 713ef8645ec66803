"""Run middleware around submissions, and count its failures.

An exception in a middleware never reaches the submission or attempt. It is logged (each kind once,
then a summary each minute) and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from nonet.tasks.middleware import Middleware, Middlewares, OutgoingTask
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_logs: dict[str, FailureLog] = {}
_failures: Counter[str] = Counter()
_Opened = list[tuple[Middleware, AbstractContextManager[None]]]
# The middleware of the submissions in the current block of `within_middleware`.
_opened: ContextVar[_Opened | None] = ContextVar("nonet_middleware_opened", default=None)


# How long each part of a middleware may take.
MOST_SECONDS = 5.0


def name_of(middleware: Middleware) -> str:
    """The name of a middleware in log lines and metrics: its class name."""
    return type(middleware).__qualname__


def failed(middleware: Middleware, error: BaseException) -> None:
    """Count and log an exception that a middleware raised."""
    name = name_of(middleware)
    _failures[name] += 1
    log = _logs.setdefault(name, FailureLog(f"middleware {name}", logger))
    log.failed(error)


def add_failures(counts: Mapping[str, int]) -> None:
    """Add the failures of a child process to the failures of this process."""
    _failures.update(counts)


def failure_samples(middlewares: Middlewares) -> Iterator[Sample]:
    """Yield how often each middleware has failed in this process and its children."""
    for name in dict.fromkeys([*map(name_of, middlewares), *list(_failures)]):
        yield "nonet_middleware_errors_total", (name,), _failures[name]


def take_failures() -> dict[str, int]:
    """Return the failures since the last call, to be added elsewhere."""
    taken = dict(_failures)
    _failures.clear()
    return taken


def open_submission(middlewares: Middlewares, task: OutgoingTask) -> None:
    """Run the first part of each middleware around a submission.

    Its second part runs at the end of the current block of `within_middleware`. Outside of one,
    nothing is submitted, and no middleware runs.
    """
    opened = _opened.get()
    if opened is not None:
        _open(middlewares.around_submit, lambda item: item.around_submit(task), opened)


def is_middleware_used() -> bool:
    """Whether any middleware of this process does something around submissions."""
    return Middlewares.are_around_submit


@contextmanager
def within_middleware(sending: AbstractContextManager[_T]) -> Iterator[_T]:
    """Run the second part of the middleware of each submission that the block prepares.

    Args:
        sending: is entered around the block.
    """
    opened: _Opened = []
    token = _opened.set(opened)
    try:
        with _closing(opened), sending as value:
            yield value
    finally:
        _opened.reset(token)


@contextmanager
def around(
    middlewares: Iterable[Middleware], method: Callable[[Middleware], Iterator[None]]
) -> Iterator[None]:
    """Run a method of each middleware around the block; only errors of the block are raised."""
    opened: _Opened = []
    _open(middlewares, method, opened)
    with _closing(opened):
        yield


@contextmanager
def _closing(opened: _Opened) -> Iterator[None]:
    """Run the second part of each opened middleware at the end of the block."""
    try:
        yield
    except BaseException as error:
        _close(opened, error)
        raise
    else:
        _close(opened, None)


def _open(
    middlewares: Iterable[Middleware],
    method: Callable[[Middleware], Iterator[None]],
    opened: _Opened,
) -> None:
    for middleware in middlewares:
        block = contextmanager(method)(middleware)
        try:
            block.__enter__()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit in a middleware must not end the program
            failed(middleware, error)
        else:
            opened.append((middleware, block))


def _close(opened: _Opened, raised: BaseException | None) -> None:
    kind = None if raised is None else type(raised)
    for middleware, block in reversed(opened):
        try:
            block.__exit__(kind, raised, None if raised is None else raised.__traceback__)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if error is not raised:
                failed(middleware, error)


async def close_middleware(middlewares: Middlewares) -> None:
    """Close all middlewares of an application, the innermost first."""
    for middleware in reversed(list(middlewares)):
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await middleware.close()
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            failed(middleware, error)

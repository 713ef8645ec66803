"""Run middleware around attempts, in the process that executes them.

A middleware cannot change what becomes of an attempt: its second part runs after the conclusion was
drawn, and whatever it raises is logged and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Any

from nonet.rules.outcomes import End, Failed, Settlement
from nonet.tasks.middleware import Middleware, Middlewares, RunningTask
from nonet.telemetry.running_middleware import MOST_SECONDS, around, failed

# The names of outcomes that authors do not have to distinguish.
_BACK = (End.SUSPECT, End.ON)
_FAILED = (End.RETRY, End.CRASH, End.DEAD)


class Around:
    """The middleware around one attempt, after its first part."""

    def __init__(self, task: RunningTask, middlewares: Middlewares) -> None:
        self._task = task
        self._middlewares = middlewares
        self._opened: list[tuple[Middleware, AbstractAsyncContextManager[None]]] = []

    @classmethod
    async def open(cls, task: RunningTask, middlewares: Middlewares) -> Around:
        """Run the first part of each middleware, in the current asyncio task.

        One that fails is left out: its second part does not run.
        """
        made = cls(task, middlewares)
        for middleware in middlewares.around_attempt:
            block = asynccontextmanager(middleware.around_attempt)(made._task)
            try:
                async with asyncio.timeout(MOST_SECONDS):
                    await block.__aenter__()
            except BaseException as error:
                _note(middleware, error)
            else:
                made._opened.append((middleware, block))
        return made

    def in_thread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with what middleware does around it in its thread."""
        middlewares = self._middlewares.around_thread
        if not middlewares:
            return function

        @wraps(function)
        def run(**arguments: object) -> Any:
            with around(middlewares, lambda item: item.around_thread(self._task)):
                return function(**arguments)

        return run

    async def close(
        self, settlement: Settlement, error: BaseException | None, *, is_lost: bool = False
    ) -> None:
        """Run the second part of each middleware, the innermost first.

        Args:
            error: what the attempt raised. It counts only if the attempt has failed.
            is_lost: the attempt is void, whatever its settlement would have been.
        """
        task = self._task
        end = End.LOST if is_lost else settlement.end
        task.outcome = str(End.BACK if end in _BACK else end)
        raised = task.error = error if end in _FAILED else None
        task.is_expected = raised is not None and settlement.is_expected
        if end in (End.RETRY, End.CRASH):
            task.retry_in = settlement.delay
        thrown = (None, None, None) if raised is None else (type(raised), raised, _trace(raised))
        for middleware, block in reversed(self._opened):
            try:
                async with asyncio.timeout(MOST_SECONDS):
                    await block.__aexit__(*thrown)
            except BaseException as problem:
                if problem is not raised:
                    _note(middleware, problem)


def error_of(ended: object) -> BaseException | None:
    """Return the exception of an outcome, if it has one."""
    return ended.error if isinstance(ended, Failed) else None


async def report_crash(
    task: RunningTask, middlewares: Middlewares, error: BaseException, settlement: Settlement
) -> None:
    """Run both parts of each middleware for an attempt whose process died."""
    if middlewares.around_attempt and settlement.end in _FAILED:
        around = await Around.open(task, middlewares)
        await around.close(settlement, error)


def _trace(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = BaseException.__getattribute__(error, "__traceback__")
    return found


def _note(middleware: Middleware, error: BaseException) -> None:
    """Count a failure, unless the event loop ends."""
    current = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and current and current.cancelling():
        raise error
    failed(middleware, error)

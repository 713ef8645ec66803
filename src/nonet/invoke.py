"""How ``execute`` is called: awaited in the loop, or run in a thread if it is a plain function."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any


async def invoke(
    function: Callable[..., Any],
    arguments: Mapping[str, object],
    threads: Executor,
    before: Callable[[], None] | None = None,
    abandoned: Callable[[Future[Any]], None] | None = None,
    returned: Callable[[], None] | None = None,
) -> Any:
    """What ``function(**arguments)`` returns, and what that gives when it is awaitable.

    Args:
        threads: where a function runs that is no coroutine function, with the caller's context
            variables. A decorator may hide a coroutine function; what it returns is awaited.
        before: called right before the function, where it will run.
        abandoned: told of a thread that goes on although its caller was cancelled.
        returned: called when a thread has ended, before what it gave is awaited; what it raises
            is raised instead.

    Raises:
        BaseException: whatever the function raises.
    """
    if inspect.iscoroutinefunction(function):
        if before is not None:
            before()
        return await function(**arguments)
    context = contextvars.copy_context()
    thread = threads.submit(context.run, _outcome, function, arguments, before)
    try:
        result, error = await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        if abandoned is not None and thread.running():
            abandoned(thread)
        raise
    try:
        if returned is not None:
            returned()
    except BaseException:
        if inspect.iscoroutine(result):
            result.close()
        raise
    if error is not None:
        raise error
    return await result if inspect.isawaitable(result) else result


def _outcome(
    function: Callable[..., Any],
    arguments: Mapping[str, object],
    before: Callable[[], None] | None,
) -> tuple[Any, BaseException | None]:
    """Result or exception as values: no future can carry StopIteration or GeneratorExit."""
    try:
        if before is not None:
            before()
        return function(**arguments), None
    except BaseException as error:  # raised again by the caller
        return None, error

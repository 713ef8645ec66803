"""Call ``execute``: await it in the event loop, or run a plain function in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Any

from nonet.base.forks import ending_copies


async def invoke(
    function: Callable[..., Any],
    arguments: Mapping[str, object],
    threads: Executor,
    before: Callable[[], None] | None = None,
    abandoned: Callable[[Future[Any]], None] | None = None,
    returned: Callable[[], None] | None = None,
) -> Any:
    """Call ``function(**arguments)`` and await the result if it is awaitable.

    A coroutine function runs in the event loop, any other function in a thread with a copy of the
    context variables. (A decorator can hide a coroutine function; then the thread returns an
    awaitable.)

    Args:
        threads: the executor for functions that are not coroutine functions.
        before: called right before the function, in the same thread.
        abandoned: called with a thread that keeps running although its caller was cancelled.
        returned: called after a thread has ended, before an awaitable result is awaited. If it
            raises, its error replaces the result.

    Raises:
        TypeError: the result is a coroutine, so an ``await`` is missing and the work was not done.
        BaseException: whatever the function raises.
    """
    if is_coroutine_function(function):
        if before is not None:
            before()
        with ending_copies():
            result = await function(**arguments)
        return _awaited(result, function)
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
    return _awaited(await result, function) if inspect.isawaitable(result) else result


def _awaited(result: Any, function: Callable[..., Any]) -> Any:
    if not inspect.iscoroutine(result):
        return result
    result.close()  # Python's own "never awaited" warning would name a line of ours
    raise TypeError(f"{_description(function)} returned a coroutine: write `return await …`")


def _description(function: Any) -> str:
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)
    return name if owner is None else f"{name} of {type(owner).__name__}"


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """`inspect.iscoroutinefunction`, cached for methods because every attempt calls it."""
    plain = getattr(function, "__func__", None)
    return inspect.iscoroutinefunction(function) if plain is None else _is_coroutine(plain)


@lru_cache(4096)
def _is_coroutine(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _outcome(
    function: Callable[..., Any], arguments: Mapping[str, object], before: Callable[[], None] | None
) -> tuple[Any, BaseException | None]:
    """Return the result or the exception: a future cannot carry StopIteration or GeneratorExit."""
    try:
        if before is not None:
            before()
        with ending_copies():
            return function(**arguments), None
    except BaseException as error:
        return None, error

"""How ``execute`` is called: awaited in the loop, or run in a thread if it is a plain function."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Any

# Classes are few, and each has one function.
_FUNCTIONS = 4096


async def invoke(
    function: Callable[..., Any],
    arguments: Mapping[str, object],
    threads: Executor,
    before: Callable[[], None] | None = None,
    abandoned: Callable[[Future[Any]], None] | None = None,
    returned: Callable[[], None] | None = None,
) -> Any:
    """What ``function(**arguments)`` returns, and what that gives when it is awaitable.

    A coroutine in the end is a forgotten ``await``: nothing of what it would do has been done.

    Args:
        threads: where a function runs that is no coroutine function, with the caller's context
            variables. A decorator may hide a coroutine function; what it returns is awaited.
        before: called right before the function, where it will run.
        abandoned: told of a thread that goes on although its caller was cancelled.
        returned: called when a thread has ended, before what it gave is awaited; what it raises
            is raised instead.

    Raises:
        TypeError: it gives a coroutine that nobody has awaited.
        BaseException: whatever the function raises.
    """
    if is_coroutine_function(function):
        if before is not None:
            before()
        return _awaited(await function(**arguments), function)
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
    result.close()  # it is told here: Python's own warning would name a line of ours
    raise TypeError(f"{_told(function)} returned a coroutine: write `return await …`")


def _told(function: Any) -> str:
    """A function as authors know it: a method by its name and the class of its object."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)
    return name if owner is None else f"{name} of {type(owner).__name__}"


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """`inspect.iscoroutinefunction`, remembered of methods: each attempt asks."""
    plain = getattr(function, "__func__", None)
    return inspect.iscoroutinefunction(function) if plain is None else _is_coroutine(plain)


@lru_cache(_FUNCTIONS)
def _is_coroutine(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


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

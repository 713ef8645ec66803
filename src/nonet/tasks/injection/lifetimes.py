"""Call a dependency and run its teardown: when, in which task, and with which exception."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import types
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from nonet.base.errors import DependencyError
from nonet.base.forks import ending_copies
from nonet.tasks.injection.providers import Provider, name_of
from nonet.tasks.injection.recipes import Kind, Made

# Practically unlimited. With a bound, a teardown that frees a resource could queue behind set-ups
# that wait for this resource: a deadlock.
_THREADS = ThreadPoolExecutor(100_000, thread_name_prefix="nonet-task-dependency")

_Request: TypeAlias = tuple[Made, dict[str, object], "asyncio.Future[object]"]


class ProcessScope:
    """Opens each process-scoped dependency once, and closes them.

    A separate asyncio task does both. So cancelling one attempt does not cancel a set-up that
    others wait for, no context variables of an attempt leak in, and a dependency that holds a task
    group or a timeout open leaves it in the task that entered it.
    """

    def __init__(self) -> None:
        self._made: dict[Provider, asyncio.Future[object]] = {}
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._keeper: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()
        self._closed = False

    async def get(self, step: Made, arguments: dict[str, object]) -> object:
        if self._closed:
            raise DependencyError(f"{name_of(step.call)} was requested after the injector closed")
        answer = self._made.get(step.call)
        if answer is None:
            answer = self._made[step.call] = asyncio.get_running_loop().create_future()
            self._requests.put_nowait((step, arguments, answer))
            if self._keeper is None:
                self._keeper = asyncio.get_running_loop().create_task(
                    self._keep(), name="nonet-process-dependencies", context=self._context
                )
        return answer.result() if answer.done() else await asyncio.shield(answer)

    async def aclose(self) -> None:
        self._closed = True
        self._requests.put_nowait(None)
        if self._keeper is not None:
            await self._keeper

    async def _keep(self) -> None:
        async with AsyncExitStack() as stack:
            while request := await self._requests.get():
                step, arguments, answer = request
                try:
                    answer.set_result(await make(step, arguments, stack))
                except BaseException as error:
                    del self._made[step.call]  # let the next attempt try again
                    answer.set_exception(error)
                    answer.exception()  # mark it as retrieved: its attempt may be cancelled by now
                    if _cancel_requests():
                        raise


async def make(step: Made, arguments: dict[str, object], stack: AsyncExitStack) -> object:
    """Call a dependency and push its teardown, if it has one, on the stack."""
    if step.kind is Kind.THREAD:
        made = await _in_thread(step.call, **arguments)
    else:
        made = step.call(**arguments)
    if isinstance(made, types.CoroutineType):
        made = await made
    if step.kind is Kind.YIELD:
        made = getattr(made, "gen", made)  # the generator inside a contextlib context manager
        if isinstance(made, types.GeneratorType):
            return await _enter(name_of(step.call), _ThreadedGenerator(made), stack)
        if isinstance(made, types.AsyncGeneratorType):
            return await _enter(name_of(step.call), made, stack)
    return made


class _ThreadedGenerator:
    """Gives a sync generator the interface of an async one; each step runs in a thread."""

    def __init__(self, generator: Generator[object, None, object]) -> None:
        self._generator = generator

    async def __anext__(self) -> object:
        return await _in_thread(_next, self._generator)

    async def athrow(self, error: BaseException) -> object:
        return await _in_thread(self._generator.throw, error)

    async def aclose(self) -> None:
        await _in_thread(self._generator.close)


def _next(generator: Generator[object, None, object]) -> object:
    # Raised through __anext__, a StopAsyncIteration of the dependency would mean its normal end.
    try:
        return next(generator)
    except StopAsyncIteration as error:
        raise RuntimeError("a dependency raised StopAsyncIteration") from error


_Generator: TypeAlias = "AsyncGenerator[object, None] | _ThreadedGenerator"


async def _enter(name: str, generator: _Generator, stack: AsyncExitStack) -> object:
    try:
        value = await generator.__anext__()
    except StopAsyncIteration:
        raise DependencyError(f"{name} did not yield a value") from None
    except asyncio.CancelledError:
        await generator.aclose()  # its thread may have reached the yield nevertheless
        raise
    stack.push_async_exit(functools.partial(_leave, name, generator))
    return value


async def _leave(
    name: str,
    generator: _Generator,
    _type: type[BaseException] | None,
    error: BaseException | None,
    _traceback: types.TracebackType | None,
) -> None:
    """Resume a generator after its ``yield``: to its end, or with the exception of the body.

    An exception that it raises goes to the generators opened before it. An exception that it
    swallows still reaches them and the caller, because this function reports nothing to the stack:
    a failed attempt must not become a success. The same holds for a cancellation during the
    teardown.
    """
    before = _cancel_requests()
    try:
        with ending_copies():
            await (generator.__anext__() if error is None else generator.athrow(error))
    except StopAsyncIteration:
        pass
    except BaseException as raised:
        if error is None or not _is_same(raised, error):
            raise
    else:
        await generator.aclose()
        raise DependencyError(f"{name} yielded twice; a dependency yields exactly once")
    if _cancel_requests() > before and not isinstance(error, asyncio.CancelledError):
        raise asyncio.CancelledError(f"while {name} was closed")


def _is_same(raised: BaseException, error: BaseException) -> bool:
    """Whether a generator let ``error`` pass; Python wraps the two that mean its end."""
    wrapped = isinstance(error, StopIteration | StopAsyncIteration)
    return raised is error or (wrapped and raised.__cause__ is error)


def _cancel_requests() -> int:
    """How often this asyncio task was cancelled; ``asyncio.timeout`` takes its requests back."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def _in_thread(function: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call in a thread; after a cancellation wait for it, because a thread cannot be stopped."""
    run = functools.partial(contextvars.copy_context().run, _outcome, function, *args, **kwargs)
    work = asyncio.get_running_loop().run_in_executor(_THREADS, run)
    try:
        value, error = await asyncio.shield(work)
    except asyncio.CancelledError as cancelled:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # cancelled again: still wait for the thread
        raise cancelled from work.result()[1]
    if error is not None:
        raise error
    return value


def _outcome(
    function: Callable[..., object], *args: object, **kwargs: object
) -> tuple[object, BaseException | None]:
    """Return the result or the exception: a future cannot carry StopIteration or CancelledError."""
    try:
        with ending_copies():
            return function(*args, **kwargs), None
    except StopIteration:
        return None, StopAsyncIteration()
    except BaseException as error:
        return None, error

"""How `execute` is called."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from nonet import BaseTask, Nonet, context
from nonet.tasks.invoke import invoke

variable: ContextVar[str] = ContextVar("variable")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool:
        yield pool


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not know about coroutines."""

    @functools.wraps(function)
    def wrapper(**arguments: Any) -> Any:
        return function(**arguments)

    return wrapper


async def coroutine(n: int) -> tuple[int, str]:
    await asyncio.sleep(0)
    return n, threading.current_thread().name


def plain(n: int) -> tuple[int, str]:
    return n, threading.current_thread().name


@pytest.mark.parametrize(
    ("function", "in_loop"),
    [(coroutine, True), (plainly(coroutine), True), (plain, False), (plainly(plain), False)],
)
async def test_result_and_place(
    threads: ThreadPoolExecutor, function: Callable[..., Any], in_loop: bool
) -> None:
    """Coroutines are awaited in the loop, also behind a decorator; the rest runs in a thread."""
    value, thread = await invoke(function, {"n": 7}, threads)
    assert value == 7
    assert thread.startswith("other") != in_loop


class Forgets(BaseTask):
    async def execute(self) -> Any:
        return coroutine(7)


class ForgetsPlainly(BaseTask):
    def execute(self) -> Any:
        return Forgets().execute()


@pytest.mark.parametrize("cls", [Forgets, ForgetsPlainly])
async def test_a_forgotten_await_is_an_error(
    threads: ThreadPoolExecutor, cls: type[BaseTask]
) -> None:
    """What was not awaited has done nothing; the error names the author's method."""
    with pytest.raises(TypeError) as told:
        await invoke(cls().execute, {}, threads)
    assert (
        str(told.value) == f"execute of {cls.__name__} returned a coroutine: write `return await …`"
    )


async def test_context_variables_reach_the_thread(threads: ThreadPoolExecutor) -> None:
    """A function in a thread sees the caller's context."""
    variable.set("seen")
    assert await invoke(lambda: variable.get(), {}, threads) == "seen"


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), GeneratorExit(), StopIteration()])
async def test_any_exception_leaves_a_thread(
    threads: ThreadPoolExecutor, error: BaseException
) -> None:
    """What a function raises in a thread arrives; no future could carry all of these."""

    def fail() -> None:
        raise error

    raised: BaseException | None = None
    try:
        await invoke(fail, {}, threads)
    except BaseException as caught:
        raised = caught
    # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert error in (raised, raised and raised.__cause__)


async def test_before_runs_where_the_function_runs(threads: ThreadPoolExecutor) -> None:
    """The hook is called in the function's own thread, first."""
    seen: list[str] = []
    for function in (coroutine, plain):
        _, place = await invoke(
            function, {"n": 1}, threads, lambda: seen.append(threading.current_thread().name)
        )
        assert seen[-1] == place


async def test_a_call_leaves_its_context(redis_url: str) -> None:
    """What follows `app.call` in the same coroutine runs in no task's context."""

    class Shows(BaseTask):
        async def execute(self) -> str:
            return context().name

    async with Nonet.from_settings(redis_url=redis_url) as app:
        app.registry.add(Shows, "x")
        assert await app.call(Shows()) == "x:Shows"
        with pytest.raises(LookupError):
            context()

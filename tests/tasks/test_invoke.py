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
async def test_coroutines_run_in_the_loop_and_functions_in_a_thread(
    threads: ThreadPoolExecutor, function: Callable[..., Any], in_loop: bool
) -> None:
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
    with pytest.raises(TypeError, match=f"execute of {cls.__name__} returned a coroutine: write"):
        await invoke(cls().execute, {}, threads)


async def test_context_variables_reach_the_thread(threads: ThreadPoolExecutor) -> None:
    variable.set("seen")
    assert await invoke(lambda: variable.get(), {}, threads) == "seen"


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), GeneratorExit(), StopIteration()])
async def test_any_exception_of_a_thread_is_raised(
    threads: ThreadPoolExecutor, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    raised: BaseException | None = None
    try:
        await invoke(fail, {}, threads)
    except BaseException as caught:
        raised = caught
    # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert error in (raised, raised and raised.__cause__)


async def test_the_hook_runs_first_in_the_thread_of_the_function(
    threads: ThreadPoolExecutor,
) -> None:
    seen: list[str] = []
    for function in (coroutine, plain):
        _, place = await invoke(
            function, {"n": 1}, threads, lambda: seen.append(threading.current_thread().name)
        )
        assert seen[-1] == place


async def test_a_call_of_the_application_leaves_no_context(redis_url: str) -> None:
    class Shows(BaseTask):
        async def execute(self) -> str:
            return context().name

    async with Nonet.from_settings(redis_url=redis_url) as app:
        app.registry.add(Shows, "x")
        assert await app.call(Shows()) == "x:Shows"
        with pytest.raises(LookupError):
            context()

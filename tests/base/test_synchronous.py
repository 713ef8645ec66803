"""Coroutines without an event loop: what they may wait with, and what ends them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from nonet.base.synchronous import Gate, TimeIsOver, complete, is_sync, seconds_left, sleep, timeout


async def tell() -> bool:
    return is_sync()


def test_it_runs_to_its_end() -> None:
    """What it returns or raises comes out; inside another one, too."""

    async def inner() -> tuple[bool, int]:
        return is_sync(), complete(answer(1))

    async def answer(number: int) -> int:
        return 1 // number

    assert complete(inner()) == (True, 1)
    assert not is_sync()
    with pytest.raises(ZeroDivisionError):
        complete(answer(0))
    assert not is_sync()


def test_what_needs_a_loop_is_refused() -> None:
    """And not left suspended."""

    async def waits() -> None:
        try:
            await asyncio.Future(loop=loop)
        finally:
            ended.append(True)

    loop, ended = asyncio.new_event_loop(), list[bool]()
    with pytest.raises(RuntimeError, match=r"waits .* needs an event loop"):
        complete(waits())
    loop.close()
    assert ended == [True]


async def test_a_running_loop_does_not_matter() -> None:
    """As in a notebook: it is not used, and what asyncio offers is that of asyncio again."""
    assert complete(tell()) and not is_sync()
    began = time.monotonic()
    complete(sleep(0.02))
    assert time.monotonic() - began >= 0.02
    task = asyncio.create_task(sleep(60))
    await sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_limit_ends_a_sleep() -> None:
    """The inner or the outer limit, whichever is over first."""

    async def within(outer: float | None, inner: float | None) -> str:
        try:
            async with timeout(outer):
                try:
                    async with timeout(inner):
                        await sleep(0.5)
                        return "none"
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"

    assert complete(within(None, 0.01)) == "inner"
    assert complete(within(0.01, None)) == "outer"
    assert complete(within(0.01, 10)) == "outer"
    assert complete(within(30, 30)) == "none"
    assert complete(within(None, None)) == "none"


def test_a_call_sees_the_time_that_is_left() -> None:
    """Without a limit its own; after one nothing of it is left."""

    async def left() -> None:
        assert seconds_left(5) == 5 and seconds_left(None) is None
        async with timeout(1):
            assert 0.9 < (seconds_left(None) or 0) <= 1
            assert seconds_left(0.5) == 0.5
        with pytest.raises(TimeoutError):
            async with timeout(0):
                seconds_left(5)
        assert seconds_left(None) is None

    complete(left())


def test_what_a_limit_ends_is_no_exception() -> None:
    """Code that handles errors does not handle it by accident; another one passes."""
    assert not issubclass(TimeIsOver, Exception)

    async def fails() -> None:
        async with timeout(5):
            raise TimeIsOver

    with pytest.raises(TimeIsOver):
        complete(fails())


@pytest.mark.parametrize("number", [1, 3])
def test_a_gate_lets_so_many_threads_through(number: int) -> None:
    """Others wait."""
    inside, most = list[int](), list[int]()

    async def enter() -> None:
        async with gate:
            inside.append(1)
            most.append(len(inside))
            await sleep(0.01)
            inside.pop()

    gate = Gate(number)
    threads = [threading.Thread(target=lambda: complete(enter())) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == number


async def test_a_gate_of_a_loop() -> None:
    """It is a semaphore of asyncio there."""
    gate = Gate()
    async with gate:
        with pytest.raises(TimeoutError):
            async with timeout(0.01), gate:
                pass
    async with gate:
        pass

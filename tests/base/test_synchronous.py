"""Coroutines without an event loop: what they may wait with, and what ends them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waits import WAIT_SECONDS

from nonet.base.synchronous import Gate, TimeIsOver, complete, is_sync, seconds_left, sleep, timeout


async def tell() -> bool:
    return is_sync()


def test_a_coroutine_runs_to_its_end_without_a_loop() -> None:
    async def inner() -> tuple[bool, int]:
        return is_sync(), complete(answer(1))

    async def answer(number: int) -> int:
        return 1 // number

    assert complete(inner()) == (True, 1)
    assert not is_sync()
    with pytest.raises(ZeroDivisionError):
        complete(answer(0))
    assert not is_sync()


def test_a_coroutine_that_needs_a_loop_is_refused_and_closed() -> None:
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


async def test_a_running_loop_is_not_used() -> None:
    assert complete(tell()) and not is_sync()
    complete(sleep(0.02))
    task = asyncio.create_task(sleep(60))
    await sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_first_limit_ends_a_sleep() -> None:
    async def within(outer: float | None, inner: float | None) -> str:
        try:
            async with timeout(outer):
                try:
                    async with timeout(inner):
                        await sleep(0.02)
                        return "none"
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"

    assert complete(within(None, 0)) == "inner"
    assert complete(within(0, None)) == "outer"
    assert complete(within(0, 10)) == "outer"
    assert complete(within(60, 60)) == "none"
    assert complete(within(None, None)) == "none"


def test_a_call_knows_the_seconds_left() -> None:
    async def left() -> None:
        assert seconds_left(5) == 5 and seconds_left(None) is None
        async with timeout(60):
            assert 0 < (seconds_left(None) or 0) <= 60
            assert seconds_left(0.5) == 0.5
        with pytest.raises(TimeoutError):
            async with timeout(0):
                seconds_left(5)
        assert seconds_left(None) is None

    complete(left())


def test_the_end_of_a_limit_is_no_exception_that_code_handles() -> None:
    assert not issubclass(TimeIsOver, Exception)

    async def fails() -> None:
        async with timeout(5):
            raise TimeIsOver

    with pytest.raises(TimeIsOver):
        complete(fails())


@pytest.mark.parametrize("number", [1, 3])
def test_a_gate_admits_a_number_of_threads(number: int) -> None:
    inside, most = list[int](), list[int]()
    together = threading.Barrier(number)

    async def enter() -> None:
        async with gate:
            inside.append(1)
            most.append(len(inside))
            together.wait(WAIT_SECONDS)
            inside.pop()

    gate = Gate(number)
    threads = [threading.Thread(target=lambda: complete(enter())) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == number


async def test_a_gate_in_a_loop_is_a_semaphore() -> None:
    gate = Gate()
    async with gate:
        with pytest.raises(TimeoutError):
            async with timeout(0.01), gate:
                pass
    async with gate:
        pass

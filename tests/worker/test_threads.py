"""The threads of plain functions: how many run at a time, and what code that does not end takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from waits import WAIT_SECONDS, until

from nonet.base.errors import TaskTimeoutError
from nonet.worker.threads import FunctionThreads

PLACES = 3


def attempt(*left: Any, timed_out: bool = False) -> Any:
    """What `FunctionThreads` reads of an attempt."""
    error = TaskTimeoutError("too long") if timed_out else None
    return SimpleNamespace(left=left, timed_out=error)


@asynccontextmanager
async def made(freed: Any = lambda: None) -> AsyncIterator[FunctionThreads]:
    threads = FunctionThreads(PLACES, freed)
    try:
        yield threads
    finally:
        threads.close()


async def test_no_more_functions_run_at_a_time_than_there_are_places() -> None:
    """They reuse as many threads, each for one function at a time; none waits in vain."""
    running, most, used = set[int](), [0], set[int]()
    told: list[int] = []

    def work() -> None:
        me = threading.get_ident()
        assert me not in running
        running.add(me)
        used.add(me)
        most[0] = max(most[0], len(running))
        running.discard(me)

    async with made(lambda: told.append(threads.waiting)) as threads:

        async def run() -> None:
            await threads.take_place()
            await asyncio.wrap_future(threads.submit(work))
            threads.give_back_place(attempt())

        async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(run())
        assert (threads.free, threads.waiting) == (PLACES, 0)
    assert most[0] <= PLACES
    assert len(used) <= PLACES
    assert set(told) == {0}


async def test_who_is_cancelled_while_it_waits_takes_no_place() -> None:
    async with made() as threads:
        for _ in range(PLACES):
            await threads.take_place()
        waiting = asyncio.create_task(threads.take_place())
        await until(lambda: threads.waiting == 1, "it waits")
        waiting.cancel()
        await asyncio.wait({waiting})
        assert (threads.free, threads.waiting) == (0, 0)
        threads.give_back_place(attempt())
        async with asyncio.timeout(WAIT_SECONDS):
            await threads.take_place()


@pytest.mark.parametrize("timed_out", [False, True])
async def test_code_that_does_not_end_frees_each_place_once(timed_out: bool) -> None:
    """After its time limit, that is; cancelled code keeps its place until it ends."""
    end = threading.Event()
    try:
        async with made() as threads:

            async def leave() -> None:
                await threads.take_place()
                threads.give_back_place(attempt(threads.submit(end.wait), timed_out=timed_out))

            async with asyncio.timeout(WAIT_SECONDS):
                for _ in range(PLACES):
                    await leave()
                assert threads.free == (PLACES if timed_out else 0)
                if timed_out:
                    for _ in range(PLACES):
                        await leave()
                    assert threads.free == 0
                end.set()
                await until(lambda: threads.free == PLACES, "all places are free again")
    finally:
        end.set()

"""`Nonet.hold` and `Nonet.call`: declared locks for code that is no task."""

from __future__ import annotations

import asyncio

import pytest
from cli.errands import Add, Limiter
from cli.terminal import TaskRun
from waits import until

from nonet import (
    DeadlockError,
    ExclusiveRWLock,
    LeaseLostError,
    MutexLock,
    SharedRWLock,
    UnableToAcquireLockError,
)

JOB = MutexLock("job", 7)
KEY = "{cli}:lock:mutex:job:7"


async def test_hold_excludes_others_and_lets_go(task_run: TaskRun) -> None:
    """Locks and limiters are taken together or not at all, and released at the end."""
    held = (JOB, SharedRWLock("job", 8), Limiter("job", 9))
    async with task_run.app() as app, app.hold(*held) as fence:
        assert fence > 0
        for other in (JOB, ExclusiveRWLock("job", 8), Limiter("job", 9)):
            with pytest.raises(UnableToAcquireLockError, match=r"job:([78] is held|9 is full)"):
                async with app.hold(MutexLock("job", "free"), other):
                    pass
        async with app.hold(MutexLock("job", "free"), SharedRWLock("job", 8)) as later:
            assert later > fence
    assert task_run.keys("l*") == set()


async def test_hold_waits(task_run: TaskRun) -> None:
    """`wait` gets a lock that is released meanwhile."""
    async with task_run.app() as app:
        first = app.hold(JOB)
        before = await first.__aenter__()

        async def second() -> int:
            async with app.hold(JOB, wait=20) as fence:
                return fence

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        assert await waiting > before


async def test_hundreds_of_waiting_holds_share_a_connection(task_run: TaskRun) -> None:
    """Each of them gets its turn, in order."""
    task_run.environment["NONET_LOCK_TTL"] = "10"  # so many at once may hold up this process
    async with task_run.app() as app:
        fences: list[int] = []

        async def one() -> None:
            async with app.hold(JOB, wait=120) as fence:
                fences.append(fence)

        queue = "{cli}:queue:lock:mutex:job:7"
        async with asyncio.TaskGroup() as waiting, app.hold(JOB):
            for _ in range(300):
                waiting.create_task(one())
            await until(lambda: task_run.redis.zcard(queue) == 300, "all wait")
            assert len(task_run.redis.client_list()) < 100
        assert len(fences) == 300 and fences == sorted(fences)


async def test_a_hold_inside_a_hold_of_the_same_lock(task_run: TaskRun) -> None:
    """It is told at once that it would wait for ever; beside the block it may wait for its end."""
    async with task_run.app() as app:

        async def beside() -> int:
            async with app.hold(JOB, wait=20) as fence:
                return fence

        async with app.hold(JOB) as outer:
            with pytest.raises(DeadlockError, match="lock:mutex:job:7 can never be taken here"):
                async with app.hold(JOB, wait=20):
                    pass
            waiting = asyncio.create_task(beside())
            await until(lambda: task_run.redis.exists("{cli}:queue:lock:mutex:job:7"), "it waits")
        assert await waiting > outer


async def test_a_lost_lock_cancels_the_block(task_run: TaskRun) -> None:
    """The block is cancelled as soon as its lock is gone, and raises what happened."""
    async with task_run.app() as app:
        with pytest.raises(LeaseLostError, match="taken away"):
            async with app.hold(JOB):
                task_run.redis.delete(KEY)
                await asyncio.Event().wait()
        # The cancellation was ours alone: the task goes on.
        assert await app.call(Add(1, 2)) == 3
        assert not asyncio.current_task().cancelling()


async def test_a_lost_lock_is_told_to_code_that_did_not_wait(task_run: TaskRun) -> None:
    """A block that swallows the cancellation cannot end as if it had held its lock."""
    async with task_run.app() as app:
        with pytest.raises(LeaseLostError):
            async with app.hold(JOB):
                task_run.redis.delete(KEY)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.Event().wait()


async def test_an_error_and_a_cancellation_release_the_lock(task_run: TaskRun) -> None:
    """Whatever ends the block, the lock is free afterwards, and the error is passed on."""
    async with task_run.app() as app:
        with pytest.raises(ZeroDivisionError):
            async with app.hold(JOB):
                _ = 1 / 0
        assert not task_run.redis.exists(KEY)

        async def block() -> None:
            async with app.hold(JOB):
                await asyncio.Event().wait()

        blocked = asyncio.create_task(block())
        await until(lambda: task_run.redis.exists(KEY), "the lock is held")
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        assert not task_run.redis.exists(KEY)


async def test_a_repeated_hold_is_the_same_hold(task_run: TaskRun) -> None:
    """When the reply was lost, asking again gives the same fence: no lock refuses its holder."""
    async with task_run.app() as app:
        line = JOB.line()
        first = await app.broker.hold("hold-1", line)
        assert await app.broker.hold("hold-1", line) == first
        assert (await app.broker.hold("hold-2", line))[0] == "REFUSED"
        await app.broker.unhold("hold-1")
    assert task_run.keys("l*") == set()

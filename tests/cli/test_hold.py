"""`Nonet.hold` and `Nonet.call`: declared locks for code that is no task."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest
from cli.errands import Add, Limiter
from cli.terminal import TaskRun
from waits import WAIT_SECONDS, until

from nonet import (
    BaseLock,
    DeadlockError,
    ExclusiveRWLock,
    LeaseLostError,
    MutexLock,
    SharedRWLock,
    UnableToAcquireLockError,
)

JOB = MutexLock("job", 7)
KEY = "{cli}:lock:mutex:job:7"
QUEUE = "{cli}:queue:lock:mutex:job:7"


async def test_a_hold_excludes_others_until_its_end(task_run: TaskRun) -> None:
    """Locks and limiters are taken together or not at all."""
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


async def test_waiting_holds_share_a_connection_and_keep_their_order(task_run: TaskRun) -> None:
    """A hold that waits gets the lock as soon as the hold before it has ended."""
    async with task_run.app() as app:
        fences: list[int] = []

        async def one() -> None:
            async with app.hold(JOB, wait=WAIT_SECONDS) as fence:
                fences.append(fence)

        async with asyncio.TaskGroup() as waiting, app.hold(JOB):
            for _ in range(150):
                waiting.create_task(one())
            await until(lambda: task_run.redis.zcard(QUEUE) == 150, "all wait")
            assert len(task_run.redis.client_list()) < 100
        assert len(fences) == 150 and fences == sorted(fences)


async def test_a_hold_inside_a_hold_of_the_same_lock_is_a_deadlock(task_run: TaskRun) -> None:
    """It is refused at once; a hold in another task may wait."""
    async with task_run.app() as app:

        async def beside() -> int:
            async with app.hold(JOB, wait=WAIT_SECONDS) as fence:
                return fence

        async with app.hold(JOB) as outer:
            with pytest.raises(DeadlockError, match="lock:mutex:job:7 can never be taken here"):
                async with app.hold(JOB, wait=WAIT_SECONDS):
                    pass
            waiting = asyncio.create_task(beside())
            await until(lambda: task_run.redis.exists(QUEUE), "it waits")
        assert await waiting > outer


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_lost_lock_cancels_the_block(task_run: TaskRun, swallows: bool) -> None:
    """The error names the locks, even if the block swallows its cancellation."""
    async with task_run.app() as app:
        with pytest.raises(LeaseLostError, match=r"job:7, lock:rw:job:8: lost.*'task-run events'"):
            async with app.hold(JOB, SharedRWLock("job", 8)):
                task_run.redis.delete(KEY)
                with suppress(asyncio.CancelledError if swallows else ZeroDivisionError):
                    await asyncio.Event().wait()
        # Only the block was cancelled: its task continues.
        assert await app.call(Add(1, 2)) == 3
        assert not asyncio.current_task().cancelling()


async def test_an_error_and_a_cancellation_release_the_lock(task_run: TaskRun) -> None:
    """The lock is free after the block, and the error is raised."""
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
    """After a lost reply a hold asks again and gets the same fence."""
    async with task_run.app() as app:
        line = JOB.line()
        first = await app.broker.hold("hold-1", line)
        assert await app.broker.hold("hold-1", line) == first
        assert (await app.broker.hold("hold-2", line))[0] == "REFUSED"
        await app.broker.unhold("hold-1")
    assert task_run.keys("l*") == set()


@pytest.mark.parametrize(
    ("locks", "wait", "kind", "reason"),
    [
        (([JOB],), 0, TypeError, "one by one"),
        (("job",), 0, TypeError, "'job' is not a lock"),
        ((), 0, ValueError, "pass at least one lock"),
        ((JOB,), -1, ValueError, "wait=-1 must be 0"),
        ((JOB,), float("nan"), ValueError, "wait=nan must be 0"),
    ],
)
async def test_wrong_arguments_are_refused(
    task_run: TaskRun, locks: tuple[Any, ...], wait: float, kind: type[Exception], reason: str
) -> None:
    """The error comes from the call, before Redis is asked."""
    async with task_run.app() as app:
        with pytest.raises(kind, match=reason):
            app.hold(*locks, wait=wait)


async def test_a_refused_hold_says_why(task_run: TaskRun) -> None:
    """It names the lock, whether others hold it or a limiter is full, and how long it waited."""

    async def refusal(lock: BaseLock, wait: float = 0) -> str:
        with pytest.raises(UnableToAcquireLockError) as caught:
            async with app.hold(lock, wait=wait):
                pass
        return str(caught.value)

    limiter, who = Limiter("job", 9), "; 'task-run locks' shows who has it"
    held = "lock:mutex:job:7 is held by others, or others wait for it longer"
    async with task_run.app() as app, app.hold(JOB, limiter):
        # In tasks of their own: inside the block it would be a deadlock.
        said = [
            await asyncio.create_task(refusal(*given)) for given in ((JOB,), (JOB, 0.3), (limiter,))
        ]
        assert said == [
            held + who,
            f"{held} (waited 0.3 s){who}",
            f"{limiter.redis_key} is full{who}",
        ]
        task_run.redis.flushall()
        # A new Redis grants no locks for a while, and there is no holder to look for.
        again = r"lock:mutex:job:7 is not granted for \d+\.\d s more: Redis is new or has lost data"
        said = await asyncio.create_task(refusal(JOB))
        assert re.match(rf"{again}; try again then, or wait for it \(--wait-locks \d+; ", said)

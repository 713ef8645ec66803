"""What `Nonet.hold` and `call` say when they cannot take locks, or lose them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from cli.errands import Guarded, Limiter
from cli.terminal import TaskRun

from nonet import BaseLock, LeaseLostError, MutexLock, SharedRWLock, UnableToAcquireLockError
from nonet.operate.interactive import call

JOB = MutexLock("job", 7)


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
async def test_what_cannot_be_held_is_refused_at_once(
    task_run: TaskRun, locks: tuple[Any, ...], wait: float, kind: type[Exception], reason: str
) -> None:
    """A mistake of the caller is said in words, before anything is asked of Redis."""
    async with task_run.app() as app:
        with pytest.raises(kind, match=reason):
            app.hold(*locks, wait=wait)


async def test_a_refused_hold_says_what_is_in_its_way(task_run: TaskRun) -> None:
    """The lock, whether others hold it or a limiter is full, and how long it waited."""

    async def refusal(lock: BaseLock, wait: float) -> str:
        with pytest.raises(UnableToAcquireLockError) as caught:
            async with app.hold(lock, wait=wait):
                pass
        return str(caught.value)

    limiter, who = Limiter("job", 9), "; 'task-run locks' shows who has it"
    held = "lock:mutex:job:7 is held by others, or others wait for it longer"
    async with task_run.app() as app, app.hold(JOB, limiter):
        # Beside the block, not in it: what is in it is told that it would wait for ever.
        said = [
            await asyncio.create_task(refusal(lock, wait))
            for lock, wait in ((JOB, 0), (JOB, 0.3), (limiter, 0))
        ]
    assert said == [held + who, f"{held} (waited 0.3 s){who}", f"{limiter.redis_key} is full{who}"]


async def test_a_hold_says_when_nobody_gets_its_lock_yet(task_run: TaskRun) -> None:
    """After a loss of data nobody is looked for who has it: there is nobody, and a time to wait."""
    async with task_run.app() as app:
        async with app.hold(JOB, wait=30):
            pass
        task_run.redis.flushall()
        with pytest.raises(UnableToAcquireLockError) as caught:
            async with app.hold(JOB):
                pass
    said = str(caught.value)
    words = r"lock:mutex:job:7 is not granted for 0\.\d s more: Redis is new or has lost data; "
    assert re.match(words + r"try again then, or wait for it \(--wait-locks 1; .* wait=1,", said)
    assert "locks' shows" not in said


async def test_a_rest_of_locks_is_waited_for_where_it_is_short(
    task_run: TaskRun, tmp_path: Path
) -> None:
    """`task-run call` waits for one, `app.call` does not by itself; neither for a longer one."""
    task = Guarded(tmp_path / "report")
    async with task_run.app() as app, app.injector() as injector:
        given = (task, app.client, injector, app.settings)
        _rest(task_run, 1.0)
        with pytest.raises(UnableToAcquireLockError, match=r"for \d\.\d s more"):
            await app.call(task)
        assert await call(*given, rest_seconds=5) > 0
        _rest(task_run, 60)
        with pytest.raises(UnableToAcquireLockError, match=r"--wait-locks 60; "):
            await call(*given, rest_seconds=5)


def _rest(task_run: TaskRun, seconds: float) -> None:
    """As if Redis were new: nobody gets a lock for so long."""
    now, microseconds = task_run.redis.time()
    task_run.redis.hset("{cli}:epoch", "calm", round((now + seconds) * 1e6) + microseconds)


async def test_only_a_task_says_that_nothing_was_run(task_run: TaskRun) -> None:
    """`call` adds what the refusal means for the task."""
    async with task_run.app() as app, app.hold(JOB):
        with pytest.raises(UnableToAcquireLockError, match=r"; nothing was run$"):
            await app.call(Guarded(Path("/nowhere")))


async def test_the_loss_of_a_hold_names_its_locks(task_run: TaskRun) -> None:
    """Whose locks were taken away learns which, and where forced releases are told."""
    names = "lock:mutex:job:7, lock:rw:job:8: lost"
    async with task_run.app() as app:
        with pytest.raises(LeaseLostError, match=f"{re.escape(names)}.*'task-run events'"):
            async with app.hold(JOB, SharedRWLock("job", 8)):
                task_run.redis.delete("{cli}:lock:mutex:job:7")
                await asyncio.Event().wait()

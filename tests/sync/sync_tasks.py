"""Tasks that sync programs submit."""

from __future__ import annotations

import asyncio

from waits import WAIT_SECONDS

from nonet import BaseLock, BaseTask, Isolation, MutexLock, Size, context, task


class Add(BaseTask):
    a: int
    b: int = 0
    size = Size.SMALL

    async def execute(self) -> int:
        return self.a + self.b


class Locked(Add):
    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock("job", self.a)]

    async def execute(self) -> int:
        await asyncio.sleep(self.b)
        return self.a


class Kept(Add):
    durable = True


class Fail(BaseTask):
    size = Size.SMALL

    async def execute(self) -> int:
        raise ValueError("no")


class Wait(BaseTask):
    """Reports progress, and waits until it is cancelled."""

    size = Size.SMALL

    async def execute(self) -> None:
        context().progress(0.5, "half")
        await asyncio.sleep(3600)


class Sum(BaseTask):
    size = Size.SMALL

    async def execute(self) -> int:
        return sum(child.value for child in await context().group_results())


@task(size=Size.SMALL)
def nested(a: int) -> int:
    """Submits a task from its thread, and waits for the result."""
    handle = Add(a, 1).schedule_sync()
    return handle.result(timeout=WAIT_SECONDS)


@task(size=Size.SMALL, isolation=Isolation.CHILD)
def nested_in_child(a: int) -> int:
    """The same in a child process."""
    return Add(a, 1).schedule_sync().result(timeout=WAIT_SECONDS)

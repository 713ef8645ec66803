"""Nonet with default settings, except that it keeps no results, like the others here."""

import asyncio

import common

from nonet import BaseTask, Nonet, Size


class Nothing(BaseTask):
    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        common.note(self.number, common.BEGUN)


class Pause(BaseTask):
    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        await common.pause(self.number)


_TASKS = {"nothing": Nothing, "pause": Pause}


async def _submit() -> None:
    async with Nonet.from_settings(tasks=("with_nonet",)):
        await common.submit(lambda kind, number: _TASKS[kind](number=number).schedule())


if __name__ == "__main__":
    if common.is_worker():
        common.become("task-worker", "--size", "small", "--tasks", "with_nonet")
    import with_nonet  # workers import the classes under this name

    asyncio.run(with_nonet._submit())

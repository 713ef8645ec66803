"""taskiq on Redis streams, without a result backend."""

import asyncio

import common
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(common.URL, max_connection_pool_size=200)


@broker.task
async def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


@broker.task
async def pause(number: int) -> None:
    await common.pause(number)


_TASKS = {"nothing": nothing, "pause": pause}


async def _submit() -> None:
    await broker.startup()
    await common.submit(lambda kind, number: _TASKS[kind].kiq(number))
    await broker.shutdown()


if __name__ == "__main__":
    if common.is_worker():
        number = str(common.CONCURRENCY)
        one = ("--workers", "1", "--max-async-tasks", number, "--max-prefetch", number)
        common.become("taskiq", "worker", "with_taskiq:broker", *one, "--log-level", "ERROR")
    import with_taskiq  # workers import the tasks under this name

    asyncio.run(with_taskiq._submit())

"""streaQ."""

import asyncio

import common
from streaq import Worker

worker = Worker(
    redis_url=common.URL,
    concurrency=common.CONCURRENCY,
    anyio_kwargs={"use_uvloop": common.is_worker()},
)


@worker.task(silent=True, ttl=0)
async def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


@worker.task(silent=True, ttl=0)
async def pause(number: int) -> None:
    await common.pause(number)


_TASKS = {"nothing": nothing, "pause": pause}


async def _submit() -> None:
    async with worker:

        async def one(kind: str, number: int) -> None:
            await _TASKS[kind].enqueue(number)

        await common.submit(one)


if __name__ == "__main__":
    if common.is_worker():
        worker.run_sync()
    else:
        asyncio.run(_submit())

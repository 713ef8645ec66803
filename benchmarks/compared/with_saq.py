"""SAQ on Redis."""

import asyncio

import common
from saq import Queue

queue = Queue.from_url(common.URL, max_concurrent_ops=50)


async def nothing(ctx: object, *, number: int) -> None:
    common.note(number, common.BEGUN)


async def pause(ctx: object, *, number: int) -> None:
    await common.pause(number)


settings = {"queue": queue, "functions": [nothing, pause], "concurrency": common.CONCURRENCY}


async def _submit() -> None:
    await queue.connect()
    await common.submit(lambda kind, number: queue.enqueue(kind, number=number, ttl=-1))
    await queue.disconnect()


if __name__ == "__main__":
    if common.is_worker():
        common.become("saq", "with_saq.settings")
    asyncio.run(_submit())

"""docket (pydocket); its worker polls every 5 ms instead of the default 250 ms, in its favour."""

import asyncio
from datetime import timedelta

import common
import uvloop
from docket import Docket, Worker


async def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


async def pause(number: int) -> None:
    await common.pause(number)


_TASKS = {"nothing": nothing, "pause": pause}


def _docket() -> Docket:
    # The worker needs more connections than the client's default pool has.
    url = f"{common.URL}?max_connections=500"
    docket = Docket(name="compared", url=url, execution_ttl=timedelta(0))
    for task in _TASKS.values():
        docket.register(task)
    return docket


async def _submit() -> None:
    async with _docket() as docket:
        await common.submit(lambda kind, number: docket.add(_TASKS[kind])(number))


async def _work() -> None:
    often = timedelta(milliseconds=5)
    async with (
        _docket() as docket,
        Worker(docket, concurrency=common.CONCURRENCY, minimum_check_interval=often) as worker,
    ):
        await worker.run_forever()


if __name__ == "__main__":
    if common.is_worker():
        uvloop.run(_work())
    asyncio.run(_submit())

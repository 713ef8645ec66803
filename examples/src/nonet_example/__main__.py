"""``python -m nonet_example``: create and remove files with real tasks, one of which fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

from nonet import Nonet, TaskFailed
from nonet_example.database import FileDB, create_tables
from nonet_example.files import CreateFile, RemoveFile
from nonet_example.storage import storage

ELEMENT = "CERN-DST"
LFNS = [f"/lhcb/{number}" for number in range(20)]


async def main() -> None:
    await create_tables()
    # Outside of tasks, a dependency is an ordinary generator function.
    with contextmanager(storage)() as client:
        (client.root / ELEMENT).mkdir(exist_ok=True)
    async with Nonet.from_settings() as app:
        written = await app.submit_many(
            CreateFile(ELEMENT, lfn, "lhcb", b"0123456789") for lfn in LFNS
        )
        sizes = [await handle.result(timeout=60) for handle in written]
        print(f"{sum(sizes)} bytes written")
        removed = await app.submit_many(RemoveFile(ELEMENT, lfn) for lfn in LFNS)
        freed = [await handle.result(timeout=60) for handle in removed]
        print(f"{sum(freed)} bytes freed")
        lost = await RemoveFile("NOWHERE", "/lhcb/lost").schedule()
        try:
            await lost.result(timeout=60)
        except TaskFailed as error:
            print(error)
    async with asynccontextmanager(FileDB.session)() as db:
        print(f"{len(await db.find('lhcb', LFNS))} files left")


if __name__ == "__main__":
    asyncio.run(main())

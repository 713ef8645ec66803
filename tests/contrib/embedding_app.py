"""A FastAPI application that executes its own tasks; served by uvicorn in a test."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from contrib.embedded_tasks import Gated, Where
from fastapi import FastAPI
from waits import WAIT_SECONDS

from nonet import Nonet
from nonet.contrib.fastapi import NonetApp, lifespan

nonet = Nonet.from_settings(tasks=("contrib.embedded_tasks",))


@asynccontextmanager
async def working(web: FastAPI) -> AsyncIterator[None]:
    """Open Nonet, and run its daemons beside the routes."""
    before = signal.getsignal(signal.SIGTERM)
    async with lifespan(nonet)(web), nonet.running(sizes=["small", "medium"]) as daemons:
        assert signal.getsignal(signal.SIGTERM) is before
        web.state.daemons = daemons
        yield


web = FastAPI(lifespan=working)


@web.get("/ready")
async def ready() -> list[str]:
    """Why the daemons are not ready; nothing if they are."""
    return list(web.state.daemons.reasons)


@web.post("/where/{size}")
async def where(size: str, nonet: NonetApp) -> int:
    """Execute a task of a size; the process in which it ran."""
    handle = await nonet.submit(Where(), labels={"size": size})
    return await handle.result(timeout=WAIT_SECONDS)


@web.post("/gated")
async def gated(place: str, nonet: NonetApp) -> str:
    """Submit a task that waits for a file; its id."""
    return await nonet.submit(Gated(place))

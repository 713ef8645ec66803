"""Ceilings of the configuration in front of real workers, and through HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Submitter
from fastapi import FastAPI
from waits import WAIT_SECONDS, until

from nonet import UnableToAcquireLockError
from nonet.contrib.fastapi import NonetApp, install, lifespan

TASKS = "acceptance.unique_tasks"


async def limited(site: Site, ceilings: str) -> None:
    """Start a scheduler, and wait until it has published these ceilings."""
    site.scheduler("--config", site.write("nonet.yaml", f"ceilings: {ceilings}"))
    await until(lambda: site.redis.exists(site.key("capped")), "ceilings hold")


@asynccontextmanager
async def web(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """Requests to an application that submits tasks."""
    app = FastAPI(lifespan=lifespan(site.app()))
    install(app)

    @app.post("/briefs", status_code=202)
    async def brief(nonet: NonetApp) -> str:
        return await nonet.submit(Brief(1))

    @app.post("/locked")
    async def locked() -> None:
        raise UnableToAcquireLockError("lock:mutex:job:7 is held by ann@host 7")

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://nonet") as client,
    ):
        yield client


async def test_a_ceiling_accepts_fifteen_of_fifty_requests(site: Site) -> None:
    """The others get 429 and when to come back; a request is accepted once there is room."""
    await limited(site, "{namespace: 15}")
    async with web(site) as client:
        answers = await asyncio.gather(*(client.post("/briefs") for _ in range(50)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert [answer.status_code for answer in answers].count(202) == 15 == 50 - len(refused)
        body = refused[0].json()
        assert (body["active"], body["ceiling"], body["scope"]) == (15, 15, "namespace")
        assert all(1 <= int(answer.headers["Retry-After"]) <= 300 for answer in refused)
        site.worker()
        await site.all_ended()
        assert (await client.post("/briefs")).status_code == 202
    await site.all_ended()
    assert len(site.journal("start")) == 16


async def test_a_task_that_is_refused_a_submission_is_handed_back(site: Site) -> None:
    """It uses no attempt, waits, and runs when there is room."""
    async with site.app() as app:
        for _ in range(2):  # no worker runs them; one has the headroom
            await app.submit(Brief(1, 0), labels={"size": "large"})
        await limited(site, "{tasks: {Brief: 1}}")
        site.worker()
        handle = await app.submit(Submitter(2))
        await until(lambda: site.parked(handle), "it was handed back")
        status = await app.status(handle)
        assert (status.state, status.attempt) == ("waiting", 0)
        assert "class unique_tasks:Brief has 2 of" in status.blocker
        site.worker(size="large")
        await until(lambda: len(site.live()) == 1, "there is room")
        site.hurry(handle)
        assert await handle.result(timeout=WAIT_SECONDS)
    await site.all_ended()


async def test_refusals_over_http_name_no_server_and_no_holder(own_site: Site) -> None:
    """A lock in use is 409; a full Redis is 503 with a time to come back."""
    async with web(own_site) as client:
        locked = await client.post("/locked")
        assert locked.status_code == 409 and "ann" not in locked.text
        own_site.redis.config_set("maxmemory", 1)
        full = await client.post("/briefs")
        assert full.status_code == 503 and int(full.headers["Retry-After"]) >= 1
        assert "memory" not in full.text

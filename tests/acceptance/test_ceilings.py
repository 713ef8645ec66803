"""Ceilings of the configuration in front of real workers, through HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Submitter
from fastapi import FastAPI
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import AdmissionRejected, UnableToAcquireLockError
from nonet.contrib.fastapi import NonetApp, install, lifespan

TASKS = "acceptance.unique_tasks"


def ceiling(site: Site, text: str) -> str:
    """A file with ceilings, for the scheduler."""
    site.settings["NONET_TASKS"] = TASKS
    return site.write("nonet.yaml", f"ceilings: {text}")


async def published(site: Site) -> None:
    """Wait until the leader has published them."""
    await until(lambda: site.redis.exists(site.key("capped")), "ceilings hold")


def web(site: Site) -> FastAPI:
    """The application of somebody who serves HTTP."""
    app = FastAPI(lifespan=lifespan(site.app(tasks=(TASKS,))))
    install(app)

    @app.post("/briefs/{number}", status_code=202)
    async def brief(number: int, nonet: NonetApp, seconds: float = 0.2) -> dict[str, object]:
        handle = await nonet.submit(Brief(number, seconds))
        return {"id": handle, "created": handle.created}

    @app.post("/locked")
    async def locked() -> None:
        raise UnableToAcquireLockError("lock:mutex:job:7 is held by ann@host 7")

    @app.get("/briefs/{id}")
    async def state_of(id: str, nonet: NonetApp) -> str:
        return (await nonet.status(id)).state

    return app


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Requests to the application, with its lifespan around them."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://nonet") as client,
    ):
        yield client


class Watch:
    """How many tasks ran at any look."""

    def __init__(self, site: Site) -> None:
        self.most = 0
        self._site = site

    async def until_idle(self) -> None:
        """Look until no task lives."""
        while self._site.live():
            events = [event.event for event in self._site.journal()]
            self.most = max(self.most, events.count("start") - events.count("end"))
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.soak)])
async def test_fifteen_of_fifty_are_accepted(site: Site, rounds: int) -> None:
    """Three workers of one slot drain them; the others come again when told, and find room."""
    site.scheduler("--config", ceiling(site, "{namespace: 15}"))
    await published(site)
    for _ in range(3):
        site.worker("--concurrency", "1")
    async with client_of(web(site)) as client:
        for _ in range(rounds):
            calls = [client.post(f"/briefs/{n}?seconds=1.5") for n in range(50)]
            answers = await asyncio.gather(*calls)
            taken = [answer.json()["id"] for answer in answers if answer.status_code == 202]
            refused = [answer for answer in answers if answer.status_code == 429]
            assert (len(taken), len(refused)) == (15, 35)
            body = refused[0].json()
            assert (body["active"], body["ceiling"], body["scope"]) == (15, 15, "namespace")
            assert body["detail"] == "the namespace has 15 of at most 15 tasks"
            waits = {int(answer.headers["Retry-After"]) for answer in refused}
            assert min(waits) >= 1 and max(waits) <= 300
            watch = Watch(site)
            await asyncio.gather(watch.until_idle(), asyncio.sleep(max(waits)))
            assert (await client.post("/briefs/99")).status_code == 202
            assert 1 <= watch.most <= 3
            await watch.until_idle()
    ended = site.journal("end")
    assert len(ended) == len({event.id for event in ended}) == len(site.journal("start"))
    await site.all_ended()


async def test_a_refused_task_is_handed_back(site: Site) -> None:
    """It uses no attempt, waits as long as it is told, and goes on when there is room."""
    config = ceiling(site, "{tasks: {Brief: 1}}")
    async with site.app(tasks=(TASKS,)) as app:
        for _ in range(2):  # nobody runs them; one has the headroom
            await app.submit(Brief(1, 0), labels={"size": "large"})
        site.scheduler("--config", config)
        await published(site)
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


async def test_ceilings_come_back_after_a_loss(own_site: Site, own_server: RedisServer) -> None:
    """The leader publishes them again in an empty Redis."""
    own_site.scheduler("--config", ceiling(own_site, "{namespace: 1}"))
    await published(own_site)
    own_site.redis.flushall()
    await published(own_site)
    async with own_site.app(tasks=(TASKS,)) as app:
        await app.submit(Brief(1))
        with pytest.raises(AdmissionRejected):
            await app.submit(Brief(2))


async def test_what_cannot_be_taken_now_is_told_without_names(own_site: Site) -> None:
    """No server and no holder of a lock is named to clients of HTTP."""
    own_site.settings["NONET_TASKS"] = TASKS
    async with client_of(web(own_site)) as client:
        locked = await client.post("/locked")
        assert locked.status_code == 409 and "ann" not in locked.text
        own_site.redis.config_set("maxmemory", 1)
        full = await client.post("/briefs/1")
        assert full.status_code == 503 and int(full.headers["Retry-After"]) >= 1
        assert "memory" not in full.text
        own_site.redis.config_set("maxmemory", 0)
        assert (await client.post("/briefs/1")).status_code == 202

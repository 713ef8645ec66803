"""A server that refuses, in any words, while connections to it stay open.

So does a demoted master behind an address that leads to another server by now. Every daemon and
program then works on over new connections; the old ones refuse forever.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from acceptance.contention import scales
from acceptance.site import NAMESPACE, eventually
from connections import ELSEWHERE
from faults.fault_tasks import Timed
from faults.rig import PRODUCTION, Crew, Rig, under_load
from faults.test_topologies import every_fifth, mixed
from ports import free_port
from waits import WAIT_SECONDS, until

import nonet
from nonet.base.errors import NonetError
from nonet.config.settings import plain_settings

# Commands that were refused before the server is well: some of each connection.
ENOUGH = 150
WITHIN = 5.0
WORDS = (*ELSEWHERE, "NOAUTH Authentication required.", "ERR max number of clients reached")
UNKNOWN = "ERR max requests limit exceeded"  # as a provider says it
Works = Callable[[], Awaitable[bool]]


@scales(ELSEWHERE[1:2], WORDS)
async def test_refused(proxied: Rig, tmp_path: Path, scale: Sequence[str]) -> None:
    """Workers, scheduler, dashboard and programs recover by themselves; nothing is lost."""
    proxy = proxied.proxy
    assert proxy
    async with under_load(proxied, mixed, later=every_fifth) as own:
        async with others(proxied, own, tmp_path) as works:
            for words in scale:
                await own.is_busy()
                proxy.refuse(words)
                enough = proxy.refused + ENOUGH
                await until(lambda n=enough: proxy.refused >= n, f"it refuses: {words}")
                proxy.relent()
                await recover(own, works)
            for _ in range(len(scale) // 2):
                await own.is_busy()
                proxy.pin()  # idle connections are forgotten on the way, without a word
                await recover(own, works, since_silence=True)
        own.judged(f"{len(scale)} refusals, open connections keep refusing", within=WITHIN)


async def recover(own: Crew, works: Mapping[str, Works], *, since_silence: bool = False) -> None:
    """Wait until all work again; a silence is noticed after a time-out only."""
    since = time.time()
    await asyncio.gather(own.until_it_serves(since), *(eventually(work) for work in works.values()))
    own.recoveries[-1] = 0.0 if since_silence else time.time() - since


@asynccontextmanager
async def others(rig: Rig, own: Crew, home: Path) -> AsyncIterator[Mapping[str, Works]]:
    """Whether each of these works: the scheduler, the dashboard, a program with threads."""
    settings = rig.site.settings
    url = f"http://127.0.0.1:{(port := free_port())}"
    web = rig.site.program("task-web", NONET_WEB_PORT=str(port))
    threads = nonet.SyncNonet(
        plain_settings(
            redis_url=settings["NONET_REDIS_URL"],
            namespace=NAMESPACE,
            tasks=tuple(settings["NONET_TASKS"].split(",")),
            state_dir=home / "state",
        )
    )

    async def leads() -> bool:
        expiry = rig.site.redis.hget(rig.site.key("leader"), "expiry")
        await asyncio.sleep(0.2)
        return bool(expiry != rig.site.redis.hget(rig.site.key("leader"), "expiry"))

    async def shows() -> bool:
        return (await browser.get("/api/v1/overview")).status_code == 200

    async def submits() -> bool:
        try:
            handle = await asyncio.to_thread(threads.submit, Timed(0.0))
        except NonetError:
            return False
        rig.accepted([str(handle)])
        return True

    code = await until(lambda: re.search(r"code=([\w-]+)", web.log), "it logs a link")
    with threads:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as browser:
            form = {"code": code[1]}
            answer = await browser.post("/login/link", data=form, headers={"Origin": url})
            assert answer.status_code == 303
            yield {"scheduler": leads, "web": shows, "threads": submits}
    assert web.alive and own.scheduler.alive


@scales(60, 600)
async def test_refused_in_unknown_words(proxied: Rig, scale: int) -> None:
    """While a third of all commands is refused, each task runs and is settled once."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    rig.workers(2, slots=20, **PRODUCTION)
    rig.site.scheduler(**PRODUCTION)
    async with rig.site.app() as app:
        ids = await rig.submit(
            app, [Timed(0.05, f"lock-{n}" if n % 2 else "") for n in range(scale)]
        )
        proxy.refuse_some(UNKNOWN, 0.3)
        await rig.settles(ids)
        proxy.refuse_some("", 0.0)
    assert len(rig.site.journal("start")) == scale, "work that had ended was done again"
    await rig.judge(f"a third of all commands is refused: {UNKNOWN}")

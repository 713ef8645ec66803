"""The pages of locks: holders, waiters, and a forced release."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.conftest import eventually

from nonet import ConcurrencyLimiter, MutexLock, Nonet, RateLimiter
from nonet.base.errors import LeaseLostError

JOB = "lock:mutex:job:7"


@asynccontextmanager
async def waiter(nonet: Nonet, *locks: MutexLock | ConcurrencyLimiter) -> AsyncIterator[None]:
    """A program that waits for locks."""

    async def wait() -> None:
        async with nonet.hold(*locks, wait=60):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await eventually(nonet.stores.locks.waiting, "it waits")
    yield
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


async def test_contended_locks_come_first(nonet: Nonet, client: AsyncClient) -> None:
    """The list has the most wanted lock first, with its holder and the next waiter."""
    one, seven = MutexLock("job", 1), MutexLock("job", 7)
    async with nonet.hold(one), nonet.hold(seven), waiter(nonet, seven):
        page = (await client.get("/locks")).text
        assert page.index(JOB) < page.index('lock:mutex:job:1"')
        assert "2 in use, 1 with waiting tasks" in page
        assert JOB not in (await client.get("/locks?text=job:1")).text
        assert "No lock in use matches" in (await client.get("/locks?object_type=site")).text
        detail = (await client.get(f"/locks/{JOB}")).text
        (holder,) = (await nonet.stores.locks.get(JOB)).holders
        assert holder.id in detail and str(holder.fence) in detail and holder.fence
        assert "held for" in detail and "in time" in detail


async def test_the_whole_name_opens_the_lock(client: AsyncClient) -> None:
    """A search for the name of a lock leads to its page, also if it is free."""
    answer = await client.get("/locks", params={"text": JOB}, follow_redirects=True)
    assert answer.url.path == f"/locks/{JOB}" and "It is free" in answer.text


async def test_a_lock_is_released_with_the_keyboard(nonet: Nonet, address: str, page: Page) -> None:
    """A forced release names the holder, wants the name of the lock, and voids the holder."""
    released = page.get_by_text(f"released {JOB}, voided")
    with suppress(LeaseLostError):  # a slow browser hears of the release after the holder does
        async with nonet.hold(MutexLock("job", 7)):
            (holder,) = (await nonet.stores.locks.get(JOB)).holders
            await page.goto(f"{address}/locks/{JOB}")
            await page.get_by_role("link", name="Release by force").focus()
            await page.keyboard.press("Enter")
            warning = page.get_by_text("may overlap with the next holder")
            await warning.wait_for()
            await expect(page.locator("main")).to_contain_text(holder.id)
            field = page.get_by_label("Type the name of the lock")
            await field.focus()
            await page.keyboard.type(f"{JOB}x")
            # The answer is 422, which a browser reports as an error.
            await page.keyboard.press("Backspace")
            await page.keyboard.press("Enter")
            await released.wait_for()
    await released.wait_for()
    assert not (await nonet.stores.locks.get(JOB)).is_held
    kinds = [event.kind for event in await nonet.stores.events.last(5)]
    assert "lock-released" in kinds


async def test_another_name_releases_nothing(nonet: Nonet, client: AsyncClient) -> None:
    """Without the name of the lock, nothing is released."""
    async with nonet.hold(MutexLock("job", 7)):
        answer = await client.post(f"/release/{JOB}", data={"typed": "lock:mutex:job:8"})
        assert answer.status_code == 422 and "nothing was released" in answer.text
        assert (await nonet.stores.locks.get(JOB)).is_held


async def test_a_holder_that_was_not_shown_keeps_the_lock(
    nonet: Nonet, client: AsyncClient
) -> None:
    """A lock that has passed to another holder since the form was shown is not released."""
    async with nonet.hold(MutexLock("job", 7)):
        shown = (await client.get(f"/release/{JOB}")).text
    before = re.findall(r'name="holder" value="([^"]+)"', shown)
    async with nonet.hold(MutexLock("job", 7)):
        form = {"typed": JOB, "holder": before}
        answer = await client.post(f"/release/{JOB}", data=form)
        assert answer.status_code == 422 and "It has another holder now" in answer.text
        assert before and (await nonet.stores.locks.get(JOB)).is_held


async def test_a_limiter_is_emptied(nonet: Nonet, client: AsyncClient) -> None:
    """The grants of a rate limiter can be dropped; its page says that it has no holders."""
    name = "limiter:rate:job:7"
    async with nonet.hold(RateLimiter("job", 7, limit=2, window_seconds=600)):
        page = (await client.get(f"/locks/{name}")).text
        assert "1 of 2 in 600 s" in page and "has no holders" in page
        answer = await client.post(f"/release/{name}", data={"typed": name})
        assert answer.status_code == 303
        assert (await nonet.stores.locks.get(name)).used == 0


async def test_a_hostile_name_is_inert(nonet: Nonet, address: str, page: Page) -> None:
    """Whatever the key is, its lock has a page of its own, and nothing of it is markup."""
    keys = ("<script>alert(1)</script>", "a/../b?c#d%2F", "é\u202e'\"")
    locks = [MutexLock("job", key) for key in keys]
    async with nonet.hold(*locks):
        for lock in locks:
            await page.goto(f"{address}/locks")
            await page.locator("tbody a", has_text=lock.redis_key).click()
            await page.locator("#holders").wait_for()
            assert await page.inner_text("h1") == lock.redis_key
            assert await page.locator("main script").count() == 0
            assert "program" in await page.inner_text("main")
            await page.get_by_role("link", name="Release by force").click()
            assert lock.redis_key in await page.inner_text("main")


async def test_many_locks_have_pages(nonet: Nonet, client: AsyncClient) -> None:
    """Ten thousand locks are listed in pages, and a page reads only its own locks."""
    redis, prefix = nonet.broker.client, "{test}:"
    for start in range(0, 10_000, 1000):
        pairs = {
            f"{prefix}lock:mutex:job:{number:05}": "t/1/1|4000000000000000"
            for number in range(start, start + 1000)
        }
        await redis.mset(pairs)
    first = (await client.get("/locks")).text
    assert "10\u202f000 in use" in first and "Next page" in first
    assert first.count("/locks/lock:mutex") == 100
    found = (await client.get("/api/v1/locks")).json()
    second = (await client.get("/locks", params={"cursor": found["cursor"]})).text
    assert "lock:mutex:job:00100" in second and "lock:mutex:job:00099" not in second

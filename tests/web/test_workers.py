"""Workers, as pages and in the API: what they do, and their drain."""

from __future__ import annotations

import asyncio

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from waits import WAIT_SECONDS
from web.conftest import ClientOf, in_state, working
from web_tasks import Held

from nonet import Nonet, Size
from nonet.daemon.service import ExitCode
from nonet.rules.permissions import Role


@pytest.fixture(autouse=True)
def gate() -> asyncio.Event:
    """The event that ends the held tasks of a test."""
    Held.gate = asyncio.Event()
    return Held.gate


async def test_a_drained_worker_finishes_and_ends(
    nonet: Nonet, client: AsyncClient, client_of: ClientOf, gate: asyncio.Event
) -> None:
    """A drain lets tasks end, may be repeated, and is not for viewers."""
    async with working(nonet) as running, client_of(Role.VIEWER) as viewer:
        held = await nonet.submit(Held())
        (worker,) = (await client.get("/api/v1/workers", params={"size": "small"})).json()["items"]
        path, name = "/api/v1/workers/drain", worker["name"]
        assert (await viewer.post(path, json={"size": "small"})).status_code == 403
        assert (await client.post(path, json={"workers": ["nobody"]})).status_code == 404
        answers = [
            (await client.post(path, json=body)).json()
            for body in ({"workers": [name]}, {"size": "small"})
        ]
        assert answers == [{"asked": asked, "draining": [name]} for asked in (1, 0)]
        (found,) = await nonet.stores.results.workers()
        assert (found.state, found.drained_by) == ("draining", "alice")
        assert not running.done()
        gate.set()
        await held.result(timeout=WAIT_SECONDS)
        assert await running is ExitCode.OK
        assert await nonet.stores.results.workers() == []


async def test_pages_show_workers_and_drain_them(
    nonet: Nonet, address: str, page: Page, gate: asyncio.Event
) -> None:
    """The list leads to a worker with its tasks and classes, where a button drains it."""
    async with working(nonet) as running, working(nonet, Size.LARGE) as other:
        held = await nonet.submit(Held())
        await in_state(nonet, held, "running")
        await page.goto(f"{address}/workers?text=web_tasks:Held")
        table = page.locator("#workers tbody tr")
        await expect(table).to_have_count(1)
        await expect(table).to_contain_text("1 / 100")
        await table.get_by_role("link").first.click()
        await expect(page.locator("#worker")).to_contain_text(held)
        await expect(page.locator("#worker")).to_contain_text("web_tasks:Failing")
        await page.get_by_role("button", name="Drain …").press("Enter")
        await page.get_by_role("button", name="Drain ", exact=False).last.press("Enter")
        await expect(page.get_by_role("status").last).to_contain_text("draining: ")
        gate.set()
        assert await running is ExitCode.OK

        await page.goto(f"{address}/workers")
        await page.get_by_role("link", name="Drain all large …").click()
        await page.get_by_role("button", name="Drain 1 large worker").click()
        await expect(page.get_by_role("status").last).to_contain_text("draining: ")
        assert await other is ExitCode.OK
        await page.reload()
        await expect(page.locator("main")).to_contain_text("No worker is registered")

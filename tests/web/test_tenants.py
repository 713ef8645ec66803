"""The page of tenants, and what the API says of them."""

from __future__ import annotations

import asyncio

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.accessible import faults

from nonet import Nonet
from nonet.rules.vectors import vector
from nonet.stores.queue.leases import Counted, Leases

CONFIG = '{"fairness": {"by": "label:team", "weights": {"mail": 3}}}'


@pytest.fixture
async def shared(nonet: Nonet, redis_url: str) -> Nonet:
    """Two teams with starts, one of which has failed tasks; the configuration names one."""
    stores = nonet.stores
    term = await stores.leadership.lead("a", 30, "{}") or ""
    await stores.publication.publish(term, "1", CONFIG, source="", revision="", who="a")
    await stores.fairness.publish(term, ["normal:small"], {"mail": 3}, "a test")
    leases = Leases(redis_url, "test", "small-a", worker_ttl=30, lock_ttl=30, timeout_seconds=5)
    rows = {"mail": vector([30], [30], [], {}, (30,)), "<b>ads": vector([9, 4], [9], [], {}, (90,))}
    leases.count(lambda: Counted({}, rows, 1), lambda _: None)
    await asyncio.to_thread(leases.add_figures)
    leases.close()
    return nonet


async def test_the_page_explains_tenants_before_there_are_any(client: AsyncClient) -> None:
    """And what tells them apart."""
    assert "Tenants are told apart by vo" in (await client.get("/tenants")).text
    found = (await client.get("/api/v1/tenants")).json()
    assert (found["by"], found["items"]) == ("vo", [])
    assert "Tenants</a> by" not in (await client.get("/")).text


@pytest.mark.usefixtures("shared")
async def test_page_and_api_agree(client: AsyncClient) -> None:
    """The named one comes first, or that with the most failures; names are escaped."""
    found = (await client.get("/api/v1/tenants", params={"since": "10m"})).json()
    assert found["by"] == "label:team"
    first, second = found["items"]
    assert (first["name"], first["started"], first["failed"], first["weight"]) == ("mail", 30, 0, 3)
    assert (second["name"], second["started"], second["failed"]) == ("<b>ads", 90, 4)
    assert (first["share_used"], first["share_due"]) == (0.25, 0.25)  # it wanted no more
    page = (await client.get("/tenants")).text
    assert "&lt;b&gt;ads" in page and "<b>ads" not in page
    assert page.index(">mail</a></th>") < page.index("ads</a></th>")
    page = (await client.get("/tenants", params={"sort": "failed"})).text
    assert page.index(">mail</a></th>") > page.index("ads</a></th>")
    assert (await client.get("/tenants/nobody")).status_code == 404
    for wrong in ({"since": "1s"}, {"sort": "x"}):
        assert (await client.get("/api/v1/tenants", params=wrong)).status_code == 422
    assert "Tenants</a> by label:team" in (await client.get("/")).text
    (event,) = (await client.get("/api/v1/events?kind=fairness-published")).json()["items"]
    assert event["text"] == "shared: normal:small; weights: mail 3"


@pytest.mark.usefixtures("shared")
async def test_tenants_are_sorted_with_the_keyboard(address: str, page: Page) -> None:
    """From the overview, by its key in the navigation."""
    await page.goto(address)
    await page.keyboard.press("g")
    await page.keyboard.press("n")
    await page.get_by_role("heading", name="Tenants").wait_for()
    rows = page.locator("#tenants tbody th")
    await expect(rows).to_have_text(["mail", "<b>ads"])
    await page.get_by_label("Order").select_option("failed")
    await page.get_by_role("button", name="Show").press("Enter")
    await page.wait_for_url("**sort=failed**")
    await expect(rows).to_have_text(["<b>ads", "mail"])
    assert await faults(page) == []
    await page.get_by_role("link", name="<b>ads").press("Enter")
    await expect(page.locator("#numbers")).to_contain_text("retries")
    await page.wait_for_selector("figure[data-chart=rates] canvas")

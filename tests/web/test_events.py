"""The page of events."""

from __future__ import annotations

from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.conftest import ClientOf

from nonet import Nonet
from nonet.rules.permissions import Role


async def test_events_are_paged_and_filtered(nonet: Nonet, address: str, page: Page) -> None:
    """The newest come first; a filter looks at older ones, too, and hostile texts are inert."""
    await nonet.stores.events.log("pause", "bob", "<b>everything</b>")
    for number in range(130):
        await nonet.stores.events.log("resume", "alice", f"number {number}.")
    await page.goto(f"{address}/events")
    rows = page.locator("#events tbody tr")
    await expect(rows).to_have_count(100)
    await expect(rows.first).to_contain_text("number 129.")
    await page.get_by_role("link", name="Next page").click()
    await expect(rows).to_have_count(31)
    await expect(rows.last).to_contain_text("<b>everything</b>")
    await page.get_by_label("Kind").select_option("pause")
    await page.get_by_role("button", name="Show").click()
    await expect(rows).to_have_count(1)
    await page.get_by_label("Text or name").fill("nobody")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("#events")).to_contain_text("No event matches")


async def test_a_filter_finds_nothing_that_is_hidden(
    nonet: Nonet, client: AsyncClient, client_of: ClientOf
) -> None:
    """A viewer cannot guess the text of an error by searching for it."""
    await nonet.stores.events.log("startup-hook", "redis", "load: failed: password=tiger")
    query = {"text": "tiger"}
    assert "password=tiger" in (await client.get("/events", params=query)).text
    async with client_of(Role.VIEWER) as viewer:
        assert "No event matches" in (await viewer.get("/events", params=query)).text
        assert "startup-hook" in (await viewer.get("/events", params={"text": "redis"})).text
    assert (await client.get("/events?cursor=nonsense")).status_code == 422

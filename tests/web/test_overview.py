"""The overview, as a page and in the API."""

from __future__ import annotations

import httpx
from playwright.async_api import Page
from web_tasks import Report

from nonet import Nonet


async def test_the_api_shows_what_the_command_shows(client: httpx.AsyncClient) -> None:
    """`/api/v1/overview` has the findings of `Nonet.overview`."""
    answer = await client.get("/api/v1/overview")
    assert answer.status_code == 200
    assert "no scheduler leads" in answer.text


async def test_the_page_shows_findings(nonet: Nonet, address: str, browser_page: Page) -> None:
    """The first page shows what is wrong."""
    await nonet.submit(Report(1))
    await browser_page.goto(address)
    assert "scheduler" in await browser_page.inner_text("#findings")

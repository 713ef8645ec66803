"""The overview, streams and classes, as pages and in the API."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from httpx import AsyncClient
from playwright.async_api import Page, expect
from starlette.routing import Match
from web.conftest import Fixed, eventually, principal, working
from web_tasks import Held, Mail, Report

from nonet import Nonet
from nonet.config.settings import plain_settings
from nonet.config.web_settings import WebSettings
from nonet.rules.page_paths import page_of
from nonet.web.app import create_app


async def test_the_overview_shows_a_live_system(
    nonet: Nonet, client: AsyncClient, address: str, page: Page
) -> None:
    """It shows findings, streams, rates, times, slots, servers, running tasks and charts."""
    Held.gate = asyncio.Event()
    await nonet.submit_many([Mail() for _ in range(20)])
    await nonet.submit_many([Report(number) for number in range(7)])
    async with working(nonet, concurrency=2):
        held = await nonet.submit(Held())

        async def shown() -> Any:
            found = (await client.get("/api/v1/overview")).json()
            busy = [crew["busy"] for crew in found["crews"]]
            running = [row["id"] for row in found["longest"]]
            return (busy, running) == ([1, 0, 0], [str(held)]) and found["throughput"]["ended_rate"]

        await eventually(shown, "only one runs, and the others are counted")
        await page.goto(address)
        parts = ("findings", "streams", "figures", "daemons", "longest", "minutes")
        shown_in = {part: await page.inner_text(f"#{part}") for part in parts}
        assert "no scheduler leads" in shown_in["findings"]
        assert "7 queued" in shown_in["streams"]
        assert "1 running" in shown_in["streams"]
        assert "p95" in shown_in["figures"]
        assert "1 of 2" in shown_in["daemons"]
        assert "round trip" in shown_in["daemons"]
        assert str(held) in shown_in["longest"]
        await page.click("#hour-table summary")
        await expect(page.locator("#hour-table tbody tr >> nth=0")).to_contain_text("20")
        await page.wait_for_selector("figure[data-chart=load] canvas")
        # It changes without a reload.
        Held.gate.set()
        await page.wait_for_function(
            "() => !document.querySelector('#longest').textContent.includes('Held')", timeout=60_000
        )


async def test_a_stream_and_a_class_are_paused_on_their_pages(
    nonet: Nonet, address: str, page: Page
) -> None:
    """A pause of a page is in force with its reason, and its button ends it."""
    controls = nonet.stores.controls
    await nonet.submit_many([Report(number) for number in range(3)])
    await page.goto(address)
    await page.click("#streams a[aria-label^='normal:medium']")
    await expect(page.locator("#queued")).to_contain_text("web_tasks:Report")
    await page.click("text=Pause …")
    await page.fill("[name=reason]", "storage is full")
    await page.click("#pause button.primary")
    await expect(page.locator("#state")).to_contain_text("storage is full")
    assert [item.what for item in await controls.load()] == ["stream:normal:medium"]
    await page.click("text=Resume")
    await page.click("#classes a")
    await expect(page.locator("#options")).to_contain_text("medium")
    await page.click("text=Pause …")
    await page.click("#pause button.primary")
    assert [item.what for item in await controls.load()] == ["task:web_tasks:Report"]
    await page.goto(f"{address}/classes?text=report")
    await expect(page.locator("#classes tbody")).to_contain_text("paused")


def test_a_finding_links_to_what_it_is_about() -> None:
    """The page of a finding shows the thing itself; a finding about no thing has no link."""
    app = create_app(Nonet(plain_settings()), WebSettings.plain(), Fixed(principal()))
    for kind, what, path in [
        ("lock", "lock:mutex:job:7", "/locks/lock:mutex:job:7"),
        ("limiter", "limiter:rate:host:a", "/locks/limiter:rate:host:a"),
        ("class", "mail:Send", "/classes/mail:Send"),
        ("worker", "small", "/workers?size=small"),
        ("worker", "mail:Send", "/classes/mail:Send"),
        ("worker", "deaths", "/events?kind=worker-lost"),
        ("queue", "large", "/workers?size=large"),
        ("pause", "stream:background:small", "/streams/background/small"),
        ("pause", "task:mail:Send", "/classes/mail:Send"),
        ("pause", "all", "/"),
        ("pause", "pipeline:volumes", "/pipelines/volumes"),
        ("pipeline", "volumes", "/pipelines/volumes"),
        ("workflow", "building", "/workflows?state=building"),
        ("workflow", "nightly", "/workflows/nightly"),
        ("class", "rare failures", "/history?state=dead"),
        ("tenant", "lhcb", "/tenants"),
        ("stream", "quarantine", "/quarantine"),
        ("task", "a/b", "/tasks/a%2Fb"),
        ("schedule", "mail:Send", "/schedules"),
        ("sql", "dead letters", "/dead-letters"),
        ("sql", "database", "/"),
    ]:
        assert page_of(kind, what) == path
        scope = {"type": "http", "method": "GET", "path": urlsplit(path).path}
        assert any(route.matches(scope)[0] is Match.FULL for route in app.routes), path

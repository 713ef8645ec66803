"""The overview, streams and classes, as pages and in the API."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from starlette.routing import Match
from web.conftest import ClientOf, Fixed, eventually, in_state, principal, working
from web_tasks import Failing, Held, Mail, Report

from nonet import Nonet, Size
from nonet.config.settings import plain_settings
from nonet.config.web_settings import WebSettings
from nonet.rules.findings import remedies
from nonet.rules.findings.buttons import button_of
from nonet.rules.page_paths import page_of
from nonet.rules.permissions import Role
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
        parts = ("findings", "streams", "figures", "daemons", "longest", "numbers")
        shown_in = {part: await page.inner_text(f"#{part}") for part in parts}
        assert "no scheduler leads" in shown_in["findings"]
        assert "7 queued" in shown_in["streams"]
        assert "1 running" in shown_in["streams"]
        assert "p95" in shown_in["figures"]
        assert "1 of 2" in shown_in["daemons"]
        assert "round trip" in shown_in["daemons"]
        assert str(held) in shown_in["longest"]
        assert "done" in shown_in["numbers"]
        await page.click("#slots summary")
        await expect(page.locator("#slots tbody tr >> nth=0")).to_contain_text("20")
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
        ("schedule", "mail:Send", "/schedules?task=mail:Send"),
        ("worker", "7@host", "/workers/7@host"),
        ("sql", "dead letters", "/dead-letters"),
        ("sql", "database", "/"),
    ]:
        assert page_of(kind, what) == path
        scope = {"type": "http", "method": "GET", "path": urlsplit(path).path}
        assert any(route.matches(scope)[0] is Match.FULL for route in app.routes), path


def test_a_button_does_what_its_command_does() -> None:
    """It sends a form, or opens a page, that exists; what a page cannot do has no button."""
    app = create_app(Nonet(plain_settings()), WebSettings.plain(), Fixed(principal()))
    for command in (
        *(remedies.of_pause(what) for what in ("all", "stream:normal:small", "pipeline:volumes")),
        remedies.command("task-run", "pause", "--task", "mail:Send"),
        remedies.of_task("cancel", "-a/b"),
        remedies.command("task-run", "limits", "unset", "limiter:conc:job:7"),
        remedies.command("task-run", "limits", "show", "limiter:conc:job:7"),
        remedies.of_workflow("resume", "nightly"),
        remedies.command("task-run", "schedules", "resume", "mail:Send"),
        remedies.command("task-run", "locks", "release", "lock:mutex:job:7"),
    ):
        button = button_of(command)
        assert button is not None, command
        method = "GET" if button.fields is None else "POST"
        scope = {"type": "http", "method": method, "path": unquote(urlsplit(button.path).path)}
        assert any(route.matches(scope)[0] is Match.FULL for route in app.routes), button.path
    assert button_of(remedies.of_worker("small")) is None
    assert button_of(remedies.of_redis("CONFIG", "GET", "save")) is None


async def test_a_finding_is_mended_and_marked_where_it_is_shown(
    nonet: Nonet, client: AsyncClient, client_of: ClientOf, address: str, page: Page
) -> None:
    """A mark sinks it for all, names who made it, and ends; the button of the command mends it."""

    async def order(caller: AsyncClient) -> list[tuple[str, str]]:
        found = (await caller.get("/api/v1/overview")).json()["findings"]
        return [(item["what"], (item["seen"] or {}).get("who", "")) for item in found]

    await nonet.stores.controls.pause(["stream:normal:medium"], "ann@host 1", "the disk is full")
    await nonet.submit(Report(7))
    await page.goto(address)
    leader = page.locator("#findings li", has_text="no scheduler leads")
    await expect(leader).to_contain_text("critical")
    await leader.get_by_role("button", name="Seen …").click()
    await leader.get_by_role("button", name="8 hours").click()
    await page.get_by_text("leader: seen until").wait_for()
    await expect(page.locator("#findings li").last).to_contain_text("seen by alice until")
    async with client_of(principal(Role.VIEWER, "vera")) as other:
        assert (await order(other))[-1] == ("leader", "alice")
        seen = {"kind": "scheduler", "what": "leader", "seconds": 0}
        assert (await other.post("/api/v1/overview/seen", json=seen)).status_code == 403
        assert (await client.post("/api/v1/overview/seen", json=seen)).json()["seen"] is None
        assert ("leader", "") in await order(client)
        assert (await client.post("/api/v1/overview/seen", json={**seen, "what": "x"})).is_error
    events = await nonet.stores.events.last(2, kind="finding-seen")
    assert [event.text.partition(": ")[2][:10] for event in events] == ["seen until", "not seen"]
    paused = page.locator("#findings li", has_text="the disk is full")
    await paused.get_by_role("button", name="Resume").click()
    await page.get_by_text("stream normal:medium is resumed").wait_for()
    assert await nonet.stores.controls.load() == []


async def test_a_failure_leads_to_its_cause(
    nonet: Nonet, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To its dead letters, or its tasks of the history; a preview submits them again."""
    ids = [await nonet.submit(Failing()) for _ in range(3)]
    async with working(nonet, Size.MEDIUM):
        for id in ids:
            await in_state(nonet, id, "dead")
    for has_letters, path in ((False, "/bulk/resubmit?"), (True, "/dead-letters/resubmit?")):
        monkeypatch.setattr(Failing, "dlq_eligible", has_letters)
        text = (await client.get("/")).text.replace("&amp;", "&")
        (link,) = re.findall(rf'href="({re.escape(path)}[^"]*)"', text)
        assert f"Show {Failing.__module__}:Failing" in text and link.endswith(":Failing")
        assert ("3 tasks" in (await client.get(link)).text) != has_letters
        for page in (link, link.replace("bulk/resubmit", "history").replace("/resubmit", "")):
            assert f'href="{page}"' in text
            assert (await client.get(page)).status_code == 200

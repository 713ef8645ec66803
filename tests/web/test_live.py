"""Live changes: the stream of the API, and the pages that follow it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from playwright.async_api import Page
from ports import free_port
from redis.asyncio import Redis
from redis.asyncio.client import Monitor
from web.conftest import principal, serving

from nonet import Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import Stop
from nonet.rules.details import HIDDEN
from nonet.rules.permissions import ACTIONS, Principal, Role
from nonet.telemetry.metrics import METRICS
from nonet.web import live as live_module
from nonet.web import ring
from nonet.web.access.access import Fixed
from nonet.web.app import create_app
from nonet.web.live import COMMANDS_PER_SECOND
from nonet.web.server import Server


class Sessions:
    """Takes the header ``X-Session`` as the session of alice, while that is in `known`."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.role = Role.ADMIN

    async def identify(self, request: Request) -> Principal | None:
        """See `nonet.web.access.access.Access`."""
        session = request.headers.get("X-Session", "one")
        known = session in self.known
        return Principal("alice", ACTIONS[self.role], session=session) if known else None


@pytest.fixture
def sessions() -> Sessions:
    """The sessions that `site` knows."""
    return Sessions("one", "two")


@pytest.fixture
def app(nonet: Nonet, sessions: Sessions) -> FastAPI:
    """An application with sessions."""
    return create_app(nonet, WebSettings.plain(), sessions)


@pytest.fixture
async def url(app: FastAPI) -> AsyncIterator[str]:
    """The address of `app`."""
    async with serving(app, WebSettings.plain(port=free_port())) as address:
        yield address


@asynccontextmanager
async def stream(
    url: str, session: str = "one", **headers: str
) -> AsyncIterator[AsyncIterator[tuple[str, Any, str]]]:
    """Open a stream, and give its messages: kind, data and id. A comment has the kind ``:``."""

    async def messages(answer: httpx.Response) -> AsyncIterator[tuple[str, Any, str]]:
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                yield ":", None, ""
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields.get("event", ""), json.loads(fields["data"]), fields.get("id", "")
                fields = {}

    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream(
            "GET", f"{url}/api/v1/live", headers={"X-Session": session, **headers}
        ) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store"
        yield messages(answer)


async def until(messages: AsyncIterator[tuple[str, Any, str]], kind: str) -> tuple[Any, str]:
    """Read messages up to one of this kind, and return its data and id."""
    async with asyncio.timeout(20):
        async for found, data, id in messages:
            if found == kind:
                return data, id
    raise AssertionError(f"the stream ended without {kind}")


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.02)


async def test_events_come_live_and_missed_ones_come_first(nonet: Nonet, url: str) -> None:
    """A stream has new events with their ids; a later one begins after the last id."""
    async with stream(url) as messages:
        await until(messages, "hello")
        await nonet.stores.events.log("resume", "bob", "stream normal:small")
        data, first = await until(messages, "event")
        assert (data["who"], data["text"]) == ("bob", "stream normal:small")
        await until(messages, "tick")
    for number in range(2):
        await nonet.stores.events.log("resume", "bob", f"missed {number}")
    async with stream(url, **{"Last-Event-ID": first}) as messages:
        texts = [(await until(messages, "event"))[0]["text"] for _ in range(2)]
    assert texts == ["missed 0", "missed 1"]


async def test_a_stream_beats_and_ends_with_its_session(
    url: str, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream has heartbeats, and ends at the first one after its session is over."""
    monkeypatch.setattr(live_module, "_HEARTBEAT_SECONDS", 0.1)
    async with stream(url) as messages:
        await until(messages, ":")
        sessions.known.clear()
        assert (await until(messages, "end"))[0] == {"reason": "session"}


@pytest.mark.parametrize("end", ["removed", "demoted"])
async def test_ticks_keep_no_stream_open(
    url: str, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A stream with much to send ends as soon, too, when its user is out or may see less."""
    monkeypatch.setattr(live_module, "_HEARTBEAT_SECONDS", 0.5)
    monkeypatch.setattr(live_module, "_SHORTEST_SECONDS", 0.05)
    async with stream(url) as messages:
        await until(messages, "tick")
        if end == "removed":
            sessions.known.clear()
        else:
            sessions.role = Role.VIEWER
        async with asyncio.timeout(5):
            assert (await until(messages, "end"))[0] == {"reason": "session"}


async def test_a_session_has_one_stream_which_its_logout_closes(app: FastAPI, url: str) -> None:
    """The second stream of a session replaces the first, and `close` ends it at once."""
    live = app.state.site.live
    async with stream(url) as first, stream(url, "two") as other, stream(url) as second:
        await until(second, "hello")
        await until(other, "hello")
        assert (await until(first, "end"))[0] == {"reason": "replaced"}
        live.close("one")
        assert (await until(second, "end"))[0] == {"reason": "session"}
        assert live.open == 1


async def test_a_stop_does_not_wait_for_streams(app: FastAPI, nonet: Nonet) -> None:
    """The server ends within two seconds although a stream is open."""
    async with serving(app, WebSettings.plain(port=free_port())) as url:
        context = stream(url)
        messages = await context.__aenter__()
        await until(messages, "hello")
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert (await until(messages, "end"))[0] == {"reason": "stopping"}
    await context.__aexit__(None, None, None)


PROBE = """<!doctype html><html lang="en"><head><title>Probe</title>
<link rel="icon" href="data:,"></head>
<body data-live="/api/v1/live"><span id="connection"></span>
<section id="part" data-refresh>
<p id="count">{count}</p>
<input id="text" name="text" value="">
<details id="more"><summary>More</summary>{count}</details>
<table><tbody>{rows}</tbody></table>
</section>
<script src="/static/live.js"></script></body></html>"""


def add_probe(app: FastAPI) -> None:
    """Add a page whose count grows, and whose first row is another one each time."""
    count = 0

    def probe() -> HTMLResponse:
        nonlocal count
        count += 1
        rows = "".join(
            f'<tr><td><input type="checkbox" name="id" value="{id}"></td><td>{count}</td></tr>'
            for id in (f"new-{count}", "a", "b")
        )
        return HTMLResponse(PROBE.format(count=count, rows=rows))

    app.add_api_route("/probe", probe)


async def test_a_refresh_keeps_what_the_user_did(
    app: FastAPI, url: str, browser_page: Page
) -> None:
    """Typed text, focus, open details and checked boxes outlive a refresh, also of moved rows."""
    add_probe(app)
    await browser_page.goto(f"{url}/probe")
    await browser_page.click("summary")
    await browser_page.check("[value=b]")
    await browser_page.focus("#text")
    await browser_page.keyboard.type("hel")
    shown = await browser_page.inner_text("#count")
    await browser_page.wait_for_function("old => count.textContent !== old", arg=shown)
    await browser_page.keyboard.type("lo")
    assert await browser_page.input_value("#text") == "hello"
    assert await browser_page.get_attribute("#more", "open") is not None
    checked = "[...document.querySelectorAll('input:checked')].map(box => box.value)"
    assert await browser_page.evaluate(checked) == ["b"]
    assert await browser_page.inner_text("#connection") == "live"


async def test_a_page_gets_over_a_stream_that_replaces_its_own(
    app: FastAPI, url: str, browser_page: Page
) -> None:
    """The stream of a page that was left may reach the server late: the open page stays live."""
    add_probe(app)
    await browser_page.goto(f"{url}/probe")
    await eventually(lambda: app.state.site.live.open == 1)
    async with stream(url) as late:
        await until(late, "hello")
    await eventually(lambda: app.state.site.live.open == 1)
    shown = await browser_page.inner_text("#count")
    await browser_page.wait_for_function("old => count.textContent !== old", arg=shown)


async def test_the_tabs_of_a_browser_share_a_stream(
    app: FastAPI, url: str, browser_page: Page
) -> None:
    """Only one tab holds a stream; when it closes, another one takes over."""
    add_probe(app)
    live, changed = app.state.site.live, "old => count.textContent !== old"
    assert browser_page.context.browser
    context = await browser_page.context.browser.new_context()
    first, other = await context.new_page(), await context.new_page()
    await first.goto(f"{url}/probe")
    await other.goto(f"{url}/probe")
    await other.wait_for_function("document.querySelector('#connection').textContent === 'live'")
    assert live.open == 1
    shown = await other.inner_text("#count")
    await other.wait_for_function(changed, arg=shown)
    assert live.open == 1
    await first.close()
    shown = await other.inner_text("#count")
    await other.wait_for_function(changed, arg=shown)
    assert live.open == 1


async def test_a_viewer_sees_no_texts_of_events(nonet: Nonet) -> None:
    """Who may not see details gets no texts of events that quote errors."""
    site = create_app(nonet, WebSettings.plain(), Fixed(principal(Role.VIEWER)))
    async with serving(site, WebSettings.plain(port=free_port())) as url, stream(url) as messages:
        await until(messages, "hello")
        await nonet.stores.events.log("startup-hook", "bob", "failed: password 123")
        assert (await until(messages, "event"))[0]["text"] == HIDDEN


async def test_open_pages_share_the_budget_of_commands(
    app: FastAPI, url: str, nonet: Nonet, redis_url: str
) -> None:
    """Fifty viewers on different pages, who read at each tick, need 20 commands a second in all."""
    longest = 0.0

    async def probe(number: int) -> int:
        """A page of its own for each viewer, with three commands."""

        async def source() -> int:
            for _ in range(3):
                await nonet.stores.broker.client.get("test")
            return number

        found: int = await app.state.site.shared.read(("probe", number % 25), 2.0, source)
        return found

    app.add_api_route("/probe/{number}", probe)
    refresh = httpx.AsyncClient(timeout=20, base_url=url, headers={"Nonet-Refresh": "1"})
    async with refresh as client, stream(url) as messages:
        await until(messages, "hello")
        async with commands_of(redis_url) as found:
            began = time.monotonic()
            for _ in range(3):
                paths = ["/", *(f"/probe/{number}" for number in range(49))]
                answers = await asyncio.gather(*map(client.get, paths))
                assert {answer.status_code for answer in answers} == {200}
                longest = max(longest, (await until(messages, "tick"))[0]["seconds"])
            seconds = time.monotonic() - began
    assert longest > 3  # it had to be stretched
    assert 5 < len(found) / seconds <= COMMANDS_PER_SECOND


@asynccontextmanager
async def commands_of(redis_url: str) -> AsyncIterator[list[str]]:
    """Collect the commands that Redis gets inside this block, without those of scripts."""
    found = list[str]()

    async def collect(monitor: Monitor) -> None:
        async for command in monitor.listen():
            found.extend([command["command"]] * (command["client_type"] != "lua"))

    async with (
        Redis.from_url(redis_url, socket_timeout=None) as redis,
        redis.monitor() as monitor,
        asyncio.TaskGroup() as group,
    ):
        collecting = group.create_task(collect(monitor))
        yield found
        collecting.cancel()


async def test_the_daemon_reports_requests_and_an_outage(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics count requests by route and streams; without Redis the daemon is not ready."""
    monkeypatch.setattr(ring, "SAMPLE_SECONDS", 0.05)
    port, stop = free_port(), Stop()
    server = Server(app, WebSettings.plain(port=port), [app.state.site])
    url = f"http://127.0.0.1:{port}"
    running = asyncio.create_task(server.run(stop))
    async with asyncio.timeout(20):
        await eventually(lambda: server.report().ready)
        async with httpx.AsyncClient(base_url=url, timeout=20) as client, stream(url) as messages:
            await until(messages, "hello")
            for path in ("/streams/normal/small", "/streams/normal/large", "/nothing"):
                await client.get(path)
        found = {(name, labels): value for name, labels, value in server.samples()}
        counted = found["nonet_web_requests_total", ("/streams/{priority}/{size}", "GET", "2xx")]
        assert counted == 2
        assert found["nonet_web_requests_total", ("none", "GET", "4xx")] == 1
        assert ("nonet_web_live_streams", ()) in found
        assert {name for name, _ in found} <= METRICS.keys()

        async def away(**_: bool) -> None:
            raise ServerUnreachableError("Redis does not answer")

        monkeypatch.setattr(app.state.site.nonet.stores.measures, "figures", away)
        await eventually(lambda: not server.report().ready)
        assert server.report().reasons == ["Redis does not answer"]
    stop.request()
    await running

"""Pages that ask for themselves while they are visible, and the answers that they get."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi.responses import HTMLResponse
from httpx import AsyncClient
from playwright.async_api import Page, expect
from ports import free_port
from web.access.doors import app_of
from web.conftest import Fixed, LoggedInPage, browsing, principal, serving

from nonet import Nonet
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Role
from nonet.web.access.secret import find_secret
from nonet.web.app import create_app

PROBE = """<!doctype html><html lang="en"><head><title>Probe</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="/static/nonet.css"></head><body>
<span id="connection"></span>
<section id="count" data-refresh>{count}</section>
<section id="kept" data-refresh>
<p class="seen">{count}</p>
<a href="/probe?a">a link</a> <a href="/probe?b">another link</a>
<details><summary>More</summary>{count}</details>
<div class="graph">{lines}</div>
</section>
<section id="used" data-refresh>
<p class="seen">{count}</p>
<input name="text" value=""><input type="checkbox" value="a">
<button popovertarget="question">Ask</button><div id="question" popover>Really?</div>
</section>
<script src="/static/refresh.js"></script></body></html>"""


@pytest.fixture
async def url(nonet: Nonet) -> AsyncIterator[str]:
    """The address of a page whose count grows with each answer."""
    app, count = create_app(nonet, WebSettings.plain(), Fixed(principal())), 0

    def probe() -> HTMLResponse:
        nonlocal count
        count += 1
        return HTMLResponse(PROBE.format(count=count, lines="<p>line</p>" * 99))

    app.add_api_route("/probe", probe)
    async with serving(app, WebSettings.plain(port=free_port())) as address:
        yield f"{address}/probe"


async def test_an_unchanged_page_is_not_sent_again(nonet: Nonet, client: AsyncClient) -> None:
    """The ETag stands for the whole content: with it the answer is 304, until something changes."""
    first = await client.get("/events")
    known = {"If-None-Match": first.headers["ETag"], "Nonet-Refresh": "1"}
    same = await client.get("/events", headers=known)
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["ETag"] == first.headers["ETag"]
    assert same.headers["Content-Security-Policy"] == first.headers["Content-Security-Policy"]
    app_of(client).state.site.shared.forget()  # which viewers share for two seconds
    await nonet.stores.events.log("resume", "bob", "stream normal:small")
    changed = await client.get("/events", headers=known)
    assert (changed.status_code, "normal:small" in changed.text) == (200, True)


async def open_with_clock(page: Page, url: str) -> None:
    """Open a page whose clock stands still until `refresh` moves it."""
    await page.clock.install(time=0)
    await page.clock.pause_at(3600)
    await page.goto(url)


async def refresh(page: Page) -> None:
    """Let the time pass after which a page asks for itself."""
    await page.clock.run_for(3000)


async def test_a_page_replaces_what_has_changed(url: str, page: Page) -> None:
    """It says when; open details, the scrolled text and the focus stay as they are."""
    await open_with_clock(page, url)
    await page.click("summary")
    await page.evaluate("document.querySelector('.graph').scrollTop = 30")
    await page.get_by_text("another link").focus()
    for count in ("2", "3"):
        await refresh(page)
        await expect(page.locator("#count")).to_have_text(count)
        await expect(page.locator("#kept .seen")).to_have_text(count)
        assert await page.get_attribute("details", "open") is not None
        assert await page.evaluate("document.querySelector('.graph').scrollTop") == 30
        await expect(page.get_by_text("another link")).to_be_focused()
    await expect(page.locator("#connection")).to_have_text("as of 01:00:06 UTC")


_PART = "document.querySelector('#used {}')"


# How a part comes into use, and how it is free again.
_USES = {
    "focus": ("document.querySelector('[name=text]').focus()", "document.activeElement.blur()"),
    "text": (
        f"{_PART.format('[name=text]')}.value = 'hel'",
        f"{_PART.format('[name=text]')}.value = ''",
    ),
    "box": (
        f"{_PART.format('[value=a]')}.checked = true",
        f"{_PART.format('[value=a]')}.checked = false",
    ),
    "question": ("question.showPopover()", "question.hidePopover()"),
    "selection": (
        f"getSelection().selectAllChildren({_PART.format('.seen')})",
        "getSelection().empty()",
    ),
}


async def test_a_part_in_use_is_left_alone(url: str, page: Page) -> None:
    """The other parts are replaced, the page says so, and the part follows when it is free."""
    await open_with_clock(page, url)
    count, seen = page.locator("#count"), page.locator("#used .seen")
    says = page.locator("#connection")
    for number, (use, (begin, end)) in enumerate(_USES.items()):
        before = 1 + 2 * number
        await page.evaluate(begin)
        await refresh(page)
        await expect(count, use).to_have_text(str(before + 1))
        await expect(says, use).to_contain_text(", except what you use")
        await expect(seen, use).to_have_text(str(before))
        await page.evaluate(end)
        await refresh(page)
        await expect(seen, use).to_have_text(str(before + 2))
        await expect(says, use).not_to_contain_text("except")


async def test_a_hidden_page_does_not_ask(url: str, page: Page) -> None:
    """It asks as soon as it is visible again."""
    asked = list[str]()
    await open_with_clock(page, url)
    page.on("request", lambda request: asked.append(request.url))
    become = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(become, True)
    await refresh(page)
    await refresh(page)
    await page.evaluate("fetch('/static/nonet.css').then((answer) => answer.text())")
    assert url not in asked
    await page.evaluate(become, False)
    await expect(page.locator("#count")).to_have_text("2")


async def test_a_page_says_that_no_answer_comes(url: str, chromium: str) -> None:
    """It names the time of the last answer and why there is none, and asks again."""
    async with browsing(chromium, "Failed to load resource") as page:
        await open_with_clock(page, url)
        badge = page.locator("#connection")
        await page.route("**/probe", lambda route: route.abort())
        await refresh(page)
        await expect(badge).to_contain_text("no answer since")
        await expect(badge).to_have_attribute("aria-live", "polite")
        await page.unroute("**/probe")
        await page.route("**/probe", lambda route: route.fulfill(status=503))
        await refresh(page)
        await expect(badge).to_contain_text("Redis or SQL does not answer")
        await page.unroute("**/probe")
        await refresh(page)
        await expect(badge).to_contain_text("as of")


async def test_a_page_says_that_its_session_has_ended(
    nonet: Nonet, logged_in_page: LoggedInPage
) -> None:
    """The text is the way to the login, and back."""
    opened = await logged_in_page(Role.VIEWER)
    assert opened.context.browser
    context = await opened.context.browser.new_context()  # whose console may have errors
    await context.add_cookies(await opened.context.cookies())  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(opened.url)
    await opened.goto("about:blank")
    secret = find_secret(WebSettings.plain(), nonet.settings.state_dir)
    sessions = nonet.stores.sessions(secret)
    for session in await sessions.of("viewer"):
        await sessions.end("viewer", session.digest)
    await page.get_by_text("your session has ended: log in again").click()
    await page.wait_for_url("**/login?next=*")

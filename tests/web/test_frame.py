"""What every page has around its content: the zone of times, keys, and what is read out."""

from __future__ import annotations

from playwright.async_api import Page, expect
from web.conftest import browsing


async def test_times_are_in_the_zone_that_the_viewer_chooses(address: str, chromium: str) -> None:
    """They are in UTC until the viewer asks for local time, which the browser remembers."""
    async with browsing(chromium, timezone_id="Asia/Kolkata") as page:
        await page.clock.install(time="2026-01-02T05:05:00Z")
        await page.goto(f"{address}/components")
        time = page.locator("[data-component=time] time")
        await expect(time).to_have_text("2026-01-02 03:04:05 UTC")
        ago = "document.querySelector('[data-component=time] time-ago').shadowRoot.textContent"
        assert await page.evaluate(ago) == "2 h ago"
        await page.click("#zone")
        await expect(time).to_have_text("2026-01-02 08:34:05 IST")
        await expect(time).to_have_attribute("title", "2026-01-02 03:04:05.000 UTC")
        sentence = page.locator("[data-component=finding] p")
        await expect(sentence).to_contain_text("since 2026-01-02 08:34:05 IST by ann")
        await page.goto(f"{address}/events")
        await expect(page.locator("#connection")).to_contain_text("as of 10:3")
        await expect(page.locator("#connection")).to_contain_text("IST")
        await page.context.clear_cookies()


async def test_keys_are_listed_and_can_be_turned_off(address: str, page: Page) -> None:
    """The question mark lists them; without keys of one letter, speech cannot press them."""
    await page.goto(f"{address}/workers")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Size")).to_be_focused()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Dead letters")
    await page.get_by_label("Use these keys").uncheck()
    await page.keyboard.press("Escape")
    await page.reload()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_hidden()


async def test_a_copy_is_announced(address: str, page: Page) -> None:
    """The button says it, and so does a status for people who do not see it."""
    await page.goto(f"{address}/components")
    await page.get_by_label("Copy the command").click()
    await expect(page.locator("main button[data-copy]")).to_have_text("Copied")
    await expect(page.locator("#said")).to_have_text("copied")

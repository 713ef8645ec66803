"""A walk through all pages of the dashboard, by keyboard only, on real daemons.

The tests of each page act on it; what only a walk shows is here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from docs.pages import DOCS
from playwright.async_api import Page, ViewportSize
from ports import free_port
from servers import RedisServer
from web.accessible import faults
from web.conftest import browsing
from web.walk.shop import PASSWORD, Shop

pytestmark = pytest.mark.server

WIDE = 1280
_PICTURES = DOCS / "_static" / "dashboard"

# Key of the page in the navigation, and what its picture is called.
PAGES = {
    "o": "overview",
    "t": "tasks",
    "c": "classes",
    "w": "workers",
    "l": "locks",
    "i": "limits",
    "n": "tenants",
    "s": "schedules",
    "p": "pipelines",
    "y": "delayed",
    "g": "groups",
    "f": "workflows",
    "d": "dead-letters",
    "q": "quarantine",
    "e": "events",
    "a": "audit",
}
# Pictures that the documentation has; `make screens` makes them anew.
SHOWN = ("overview", "task")
DETAILS = (
    "/history",
    "/schedules?view=calendar",
    "/dead-letters?view=letters",
    "/limits/edit",
    "/account",
    "/submit?task=mailer:SendInvoice",
    "/schedules/edit",
    "/dead-letters/resubmit",
    "/release/lock:mutex:invoice:7",
    "/workers/drain?size=small",
    "/bulk/cancel",
    "/tasks/invoice-7",
    "/tasks/invoice-7-again",
    "/tasks/users-0",
    "/tasks/archive",
    "/tasks/unknown",
    "/streams/normal/small",
    "/locks/lock:mutex:invoice:7",
    "/classes/mailer:SendInvoice",
    "/submit?task=mailer:SendInvoice",
    "/submit?again=invoice-7",
    "/schedules/edit?task=mailer:SendInvoice",
    "/classes/mailer:SendInvoice?since=14d",
    "/tenants/(none)",
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop of all walks."""
    with RedisServer() as redis:
        made = Shop(redis.url, tmp_path_factory.mktemp("shop"), free_port())
        with made.open():
            yield made


async def test_every_page_is_reached_by_keys_and_accessible(shop: Shop, chromium: str) -> None:
    """No page has a serious fault for axe-core, an error in the console, or hides what acts.

    Each is in windows of all widths, light, dark and on paper.
    """
    viewport = ViewportSize(width=WIDE, height=900)
    # A page that is not there is answered with 404, which the browser reports, too.
    async with browsing(chromium, "404", viewport=viewport) as page:
        await _log_in(page, shop)
        found: dict[str, list[str]] = {}
        for key, name in PAGES.items():
            await page.locator("body").focus()
            async with page.expect_navigation():
                await page.keyboard.press("g")
                await page.keyboard.press(key)
            await _picture(page, name)
            found[name] = await _look_at(page)
        for path in DETAILS:
            await page.goto(f"{shop.url}{path}")
            found[path] = await _look_at(page)
        await page.goto(f"{shop.url}/tasks/invoice-7-again")
        await _picture(page, "task")
        assert {name: problems for name, problems in found.items() if problems} == {}


async def _log_in(page: Page, shop: Shop) -> None:
    """Log in with the keyboard: the first field has the focus."""
    await page.goto(shop.url)
    await page.keyboard.type("ann")
    await page.keyboard.press("Tab")
    await page.keyboard.type(PASSWORD)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{shop.url}/")


async def _look_at(page: Page) -> list[str]:
    problems = await faults(page)
    if await page.locator("h1").count() != 1:
        problems.append("it has not one h1")
    if await page.locator("main :is(a, button, input, select, textarea)[tabindex='-1']").count():
        problems.append("Tab does not reach all of it")
    return problems


async def _picture(page: Page, name: str) -> None:
    """Write the picture of a page for the documentation, if asked for."""
    if os.environ.get("SCREENS") == "write" and name in SHOWN:
        await page.screenshot(path=_PICTURES / f"{name}.png")

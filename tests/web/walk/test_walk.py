"""A walk through all pages and actions of the dashboard, by keyboard only, on real daemons."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from docs.pages import DOCS
from playwright.async_api import Page, ViewportSize, async_playwright
from ports import free_port
from servers import RedisServer
from web.accessible import faults
from web.conftest import CHROMIUM
from web.walk.keyboard import Actor, Keyboard
from web.walk.shop import PASSWORD, Shop

pytestmark = pytest.mark.server

Theme = Literal["light", "dark"]
WIDE, NARROW = 1280, 390
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
    "d": "dead-letters",
    "q": "quarantine",
    "e": "events",
    "a": "audit",
}
# Pictures that the documentation has; `make screens` makes them anew.
SHOWN = ("overview", "task", "locks", "schedules", "dead-letters")
DETAILS = (
    "/tasks/invoice-7",
    "/tasks/invoice-7-again",
    "/tasks/users-0",
    "/tasks/archive",
    "/tasks/unknown",
    "/streams/normal/small",
    "/locks/lock:mutex:invoice:7",
    "/classes/mailer:SendInvoice",
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop of all walks."""
    with RedisServer() as redis:
        made = Shop(redis.url, tmp_path_factory.mktemp("shop"), free_port())
        with made.open():
            yield made


@asynccontextmanager
async def walking(theme: Theme, width: int) -> AsyncIterator[Page]:
    """A page of a browser, whose console must stay free of errors."""
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        context = await browser.new_context(
            color_scheme=theme, viewport=ViewportSize(width=width, height=900)
        )
        page = await context.new_page()
        page.on(
            "console", lambda line: problems.append(line.text) if line.type == "error" else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        try:
            yield page
        finally:
            await browser.close()
    # A page that is not there is answered with 404, which the browser reports, too.
    assert [line for line in problems if "404" not in line] == []


async def log_in(page: Page, shop: Shop) -> None:
    """Log in with the keyboard."""
    actor = Actor(page, shop.url)
    await actor.open("/")
    await actor.press("Log in", Name="ann", Password=PASSWORD)
    await page.wait_for_url(f"{shop.url}/")


LOOKS = [
    ("light", WIDE),
    pytest.param("dark", WIDE, marks=pytest.mark.soak),
    pytest.param("light", NARROW, marks=pytest.mark.soak),
    pytest.param("dark", NARROW, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("theme", "width"), LOOKS)
async def test_every_page_is_reached_by_keys_and_excludes_no_one(
    shop: Shop, theme: Theme, width: int
) -> None:
    """No page has a serious fault for axe-core, an error in the console, or scrolls sideways."""
    async with walking(theme, width) as page:
        await log_in(page, shop)
        found: dict[str, list[str]] = {}
        for key, name in PAGES.items():
            await Keyboard(page).go(key)
            found[name] = await _look_at(page)
            await _picture(page, name, theme, width)
        for path in DETAILS:
            await page.goto(f"{shop.url}{path}")
            found[path] = await _look_at(page)
        await page.goto(f"{shop.url}/tasks/invoice-7-again")
        await _picture(page, "task", theme, width)
        assert {name: problems for name, problems in found.items() if problems} == {}


async def _look_at(page: Page) -> list[str]:
    problems = await faults(page)
    if await page.locator("h1").count() != 1:
        problems.append("it has not one h1")
    if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        problems.append("it scrolls sideways")
    return problems


async def _picture(page: Page, name: str, theme: Theme, width: int) -> None:
    """Write the picture of a page for the documentation, if asked for."""
    wanted = os.environ.get("SCREENS") == "write"
    if wanted and name in SHOWN and (theme, width) == ("light", WIDE):
        await page.screenshot(path=_PICTURES / f"{name}.png")


@pytest.mark.long
async def test_every_action_is_done_with_the_keyboard(shop: Shop) -> None:
    """Each button does what it says, and the next page tells so."""
    async with walking("light", WIDE) as page:
        await log_in(page, shop)
        actor = Actor(page, shop.url)
        await _act_on_tasks(actor, shop)
        await _act_on_limits_and_locks(actor, shop)
        await _act_on_schedules(actor)
        await _act_on_streams_and_classes(actor)
        await _act_on_dead_letters(actor)
        await _act_on_quarantine(actor, shop)
        await _act_on_workers(actor)
        await actor.open("/audit")
        await actor.sees("release", "limit", "cancel", "drain", "discard", "reveal")
        await actor.open("/account")
        await actor.press("Log out everywhere")
        await actor.sees("Password")


async def _act_on_tasks(actor: Actor, shop: Shop) -> None:
    await actor.open("/tasks?q=invoice-7-again")
    await actor.sees("lock:mutex:invoice:7", "Why it does not run")
    await actor.press("Cancel…")
    await actor.press("Cancel it", Reason="not needed")
    await actor.sees("cancelled")
    await actor.open("/tasks/users-0")
    await actor.sees("FileNotFoundError", "Traceback")
    await actor.press("Show arguments and command…")
    await actor.press("Show them")
    await actor.sees("/data/users0.csv", "task-run call")
    await actor.open("/tasks/users-1")
    await actor.press("Submit again")
    await actor.sees("Submitted")
    await actor.open("/delayed")
    await actor.press("Run later now")
    shop.reach("later", "done")
    for number in range(3):
        shop.submit(f"old-{number}", "queued", "RenderArchive", number)
    await actor.open("/tasks?state=queued&task=RenderArchive")
    await actor.follow("Cancel all that match…")
    await actor.sees("RenderArchive: 4")
    await actor.press("Cancel 4 tasks")
    await actor.sees("Cancelled 4 tasks")
    assert shop.state("old-0") == "cancelled"


async def _act_on_limits_and_locks(actor: Actor, shop: Shop) -> None:
    await actor.open("/limits")
    await actor.follow("Change concurrency mail_host default")
    await actor.press("Preview", Executions="5")
    await actor.press("Set it")
    await actor.sees("set by hand")
    await actor.press("Undo concurrency mail_host default")
    await actor.sees("configuration")
    await actor.open("/locks/lock:mutex:invoice:7")
    await actor.sees("invoice-7", "SendInvoice")
    await actor.follow("Release by force …")
    await actor.press("Release it", Type="lock:mutex:invoice:7")
    await actor.sees("eleased")


async def _act_on_schedules(actor: Actor) -> None:
    await actor.open("/schedules")
    await actor.press(re.compile("^Run .*NightlyReport.* now$"))
    await actor.sees("ubmitted")
    await actor.open("/schedules")
    await actor.follow("mailer:NightlyReport")
    await actor.press("Pause", Reason="maintenance")
    await actor.sees("maintenance")
    await actor.press("Resume")
    await actor.open("/schedules")
    await actor.follow("Next 24 hours")
    await actor.sees("mailer:NightlyReport", ":00")


async def _act_on_streams_and_classes(actor: Actor) -> None:
    for path in ("/streams/normal/small", "/classes/mailer:SendMail"):
        await actor.open(path)
        await actor.press("Pause …")
        await actor.press("Pause", Reason="maintenance")
        await actor.sees("maintenance")
        await actor.press("Resume")
        await actor.sees("Pause …")


async def _act_on_dead_letters(actor: Actor) -> None:
    await actor.open("/dead-letters")
    await actor.follow("FileNotFoundError")
    await actor.sees("users-2")
    await actor.follow("Submit them again …")
    await actor.press(re.compile(r"^Submit \d+ again$"))
    await actor.sees("3 of 3 done")
    await actor.open("/dead-letters")
    await actor.follow("Discard all …")
    await actor.press(re.compile(r"^Discard \d+$"), Why="known fault")
    await actor.sees("There are no dead letters")


async def _act_on_quarantine(actor: Actor, shop: Shop) -> None:
    shop.quarantine()
    await actor.open("/quarantine")
    await actor.sees("not a task pointer")
    await actor.follow(re.compile(r"^\d+-\d+$"))
    await actor.press("Discard…")
    await actor.press("Discard it", Why="a test")
    await actor.sees("iscarded")


async def _act_on_workers(actor: Actor) -> None:
    await actor.open("/workers")
    await actor.follow("Drain all small …")
    await actor.press("Drain 2 small workers")
    await actor.sees("draining")

"""Use a page as a person without a mouse does: keys only."""

from __future__ import annotations

import re

from playwright.async_api import Locator, Page, TimeoutError

_MOST_TABS = 400


class Keyboard:
    """The keyboard of a page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def go(self, key: str) -> None:
        """Open a page of the navigation by its keys, ``g`` and `key`."""
        await self._page.locator("body").focus()
        async with self._page.expect_navigation():
            await self._page.keyboard.press("g")
            await self._page.keyboard.press(key)

    async def reach(self, target: Locator) -> None:
        """Press Tab until `target` has the focus."""
        await target.wait_for(state="visible")
        for _ in range(_MOST_TABS):
            if await target.evaluate("element => element === document.activeElement"):
                return
            await self._page.keyboard.press("Tab")
        raise AssertionError(f"{target} cannot be reached with Tab")

    async def fill(self, field: Locator, text: str) -> None:
        """Type into a field."""
        await self.reach(field)
        await self._page.keyboard.press("Control+A")
        await self._page.keyboard.type(text)

    async def press(self, target: Locator) -> None:
        """Press a button, or follow a link; wait for the page that a form leads to."""
        await self.reach(target)
        if await target.evaluate("element => element.type === 'submit' && element.form !== null"):
            async with self._page.expect_navigation():
                await self._page.keyboard.press("Enter")
        else:
            await self._page.keyboard.press("Enter")


class Actor:
    """Acts on pages with the keyboard.

    Args:
        page: a page that has logged in.
        url: of the dashboard.
    """

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._url = url
        self._keyboard = Keyboard(page)

    async def open(self, path: str) -> None:
        """Open a page by its address."""
        await self._page.goto(f"{self._url}{path}")

    async def sees(self, *texts: str) -> None:
        """Wait until the page has all these texts."""
        for text in texts:
            try:
                await self._page.get_by_text(text).first.wait_for(state="attached")
            except TimeoutError:
                shown = await self._page.inner_text("main")
                raise AssertionError(f"{text!r} is not on {self._page.url}: {shown}") from None

    async def press(self, button: str | re.Pattern[str], **fields: str) -> None:
        """Fill fields by the beginnings of their labels, and press the button with this text."""
        for label, text in fields.items():
            await self._keyboard.fill(
                self._shown(self._page.get_by_label(re.compile(f"^{label}"))), text
            )
        await self._keyboard.press(
            self._shown(self._page.get_by_role("button", name=button, exact=True))
        )

    async def follow(self, link: str | re.Pattern[str]) -> None:
        """Follow the first link with this text."""
        await self._keyboard.press(
            self._shown(self._page.get_by_role("link", name=link, exact=True))
        )

    @staticmethod
    def _shown(found: Locator) -> Locator:
        return found.locator("visible=true").first

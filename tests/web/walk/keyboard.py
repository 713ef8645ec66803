"""Use a page as a person without a mouse does: keys only."""

from __future__ import annotations

from playwright.async_api import Locator, Page

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

    async def fill(self, label: str, text: str) -> None:
        """Type into the field with this label."""
        await self.reach(self._page.get_by_label(label, exact=True).first)
        await self._page.keyboard.press("Control+A")
        await self._page.keyboard.type(text)

    async def press_button(self, name: str) -> None:
        """Press the button with this text."""
        await self.reach(self._page.get_by_role("button", name=name, exact=True).first)
        await self._page.keyboard.press("Enter")

    async def follow(self, name: str) -> None:
        """Follow the link with this text."""
        await self.reach(self._page.get_by_role("link", name=name, exact=True).first)
        await self._page.keyboard.press("Enter")

"""Find what excludes people from a page, with axe-core."""

from __future__ import annotations

from importlib.resources import files

from playwright.async_api import Page

_AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
_BAD = ("serious", "critical")


async def faults(page: Page) -> list[str]:
    """The serious faults of the page that is open, each with the first element that has it."""
    await page.evaluate(_AXE)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{item['id']} ({item['impact']}): {item['nodes'][0]['html'][:200]}"
        for item in found["violations"]
        if item["impact"] in _BAD
    ]

"""Find what excludes people from a page: axe-core, and what no tool but a browser can measure."""

from __future__ import annotations

from importlib.resources import files

from playwright.async_api import Page

_AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
_BAD = ("serious", "critical")
WIDTHS = (320, 360, 390, 768, 1280, 1920, 2560)
"""Of the windows that every page must fit; 320 is what WCAG calls reflow."""

# What acts must be inside of the window and of the box that scrolls it. A word is broken if its
# letters are on two lines; <wbr> parts words.
_UNFIT = """(isOnPaper) => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push("it scrolls sideways");
  const seen = (one) => one.checkVisibility({ contentVisibilityAuto: true });
  for (const one of document.querySelectorAll("a, button, input, select, textarea, summary")) {
    if (!seen(one) || one.closest(".graph, .skip") || one.type === "hidden") continue;
    const name = one.outerHTML.slice(0, 90), box = one.getBoundingClientRect();
    const around = one.closest(".table, pre")?.getBoundingClientRect() || { left: 0, right: width };
    const left = Math.max(0, around.left), right = Math.min(width, around.right);
    if (box.left < left - 1 || box.right > right + 1) found.push(`out of sight: ${name}`);
    const isInText = one.matches("a:not(.button, nav a), [type=checkbox]");
    const isSmall = Math.min(box.width, box.height) < 24;
    if (isSmall && !isInText && !isOnPaper) found.push(`smaller than 24 pixels: ${name}`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const around = text.parentElement;
    if (!seen(around) || around.closest("pre, code, svg, option, thead")) continue;
    for (const word of text.data.matchAll(/\\b\\w{2,24}\\b/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const [first, ...others] = range.getClientRects();
      if (others.some((other) => other.top > first.bottom - 2)) found.push(`broken: ${word[0]}`);
    }
  }
  return found;
}"""


async def faults(page: Page) -> list[str]:
    """The serious faults of the page that is open, in both schemes and in windows of all widths."""
    await page.evaluate(_AXE)
    light = await _run(page, "{resultTypes: ['violations']}")
    await page.emulate_media(color_scheme="dark")
    dark = await _run(page, "{runOnly: ['color-contrast']}")
    await page.emulate_media(color_scheme="light")
    return [*light, *(f"dark: {fault}" for fault in dark), *await _unfit(page)]


async def _run(page: Page, options: str) -> list[str]:
    """Return what axe-core finds, each with the first element that has it."""
    found = await page.evaluate(f"axe.run(document, {options})")
    return [
        f"{item['id']} ({item['impact']}): {item['nodes'][0]['html'][:200]}"
        for item in found["violations"]
        if item["impact"] in _BAD
    ]


async def _unfit(page: Page) -> list[str]:
    """What does not fit into windows of all widths, or on paper."""
    found, size = list[str](), page.viewport_size
    assert size
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        found += [f"{width} px: {one}" for one in await page.evaluate(_UNFIT, False)]
    await page.set_viewport_size({"width": 720, "height": 900})
    await page.emulate_media(media="print")
    found += [f"print: {one}" for one in await page.evaluate(_UNFIT, True)]
    if await page.locator("nav.pages, main button").filter(visible=True).count():
        found.append("print: it has something to press")
    await page.emulate_media(media="screen")
    await page.set_viewport_size(size)
    return found

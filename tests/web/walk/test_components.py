"""The components of pages, compared with what was approved: ``components.txt``.

The text has what style sheets decide, so that it is the same with the fonts of any machine, which
pictures are not: how many parts are beside each other in each window, sizes, space and colours.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

from playwright.async_api import Page

_APPROVED = Path(__file__).with_name("components.txt")
_WIDTHS = (360, 390, 768, 1280, 1920, 2560)
# Text decides how many of these are in a line.
_FLOWING = ("badge", "time", "message", "search", "buttons", "progress")

_LAYOUT = """(flowing) => Object.fromEntries([...document.querySelectorAll("[data-component]")]
  .filter((one) => !flowing.includes(one.dataset.component))
  .map((one) => {
    const body = one.querySelector("tbody tr, dl") ?? one.querySelector("h2 + *");
    const parts = [...body.children].filter((part) => part.checkVisibility());
    const tops = parts.map((part) => Math.round(part.getBoundingClientRect().top / 8));
    const most = Math.max(...tops.map((top) => tops.filter((other) => other === top).length));
    const share = one.offsetWidth / document.querySelector("main").clientWidth;
    return [one.dataset.component, `${most}${share < 0.7 ? " half" : ""}`];
  }))"""

_LOOKS = """() => {
  const hex = (color) => {
    const [red, green, blue, alpha] = color.match(/[\\d.]+/g);
    if (alpha === "0") return "none";
    return `#${[red, green, blue].map((one) => (+one).toString(16).padStart(2, "0")).join("")}`;
  };
  const look = (style) => [
    `${parseFloat(style.fontSize)} px, weight ${style.fontWeight}, padding ${style.padding}`,
    `${hex(style.color)} on ${hex(style.backgroundColor)}, edge ${
      style.borderLeftWidth === "0px" ? "none" : hex(style.borderLeftColor)}`,
  ];
  const plain = look(getComputedStyle(document.querySelector("[data-component]"))).join();
  const found = {}, known = new Set();
  for (const one of document.querySelectorAll("[data-component] :not(wbr, option)")) {
    const name = [one.localName, ...one.classList].join(".");
    const its = look(getComputedStyle(one));
    if (its.join() === plain || known.has(name + its)) continue;
    known.add(name + its);
    found[`${one.closest("[data-component]").dataset.component}: ${name}`] ??= its;
  }
  return found;
}"""


async def test_components_look_as_approved(address: str, page: Page) -> None:
    """Layout, sizes and colours are those of ``components.txt``, in six widths and two schemes."""
    await page.goto(f"{address}/components")
    found = "\n".join([*await _layout(page), "", *await _looks(page), ""])
    if os.environ.get("SCREENS") == "write":
        _APPROVED.write_text(found)
    approved = _APPROVED.read_text()
    difference = "\n".join(
        unified_diff(approved.splitlines(), found.splitlines(), "approved", "now", n=0, lineterm="")
    )
    assert found == approved, f"{difference}\nlook at /components; if it is meant: make screens"


async def _layout(page: Page) -> list[str]:
    """Return a line for each component: how many parts are beside each other in each window."""
    columns = []
    for width in _WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        columns.append(await page.evaluate(_LAYOUT, _FLOWING))
    await page.emulate_media(media="print")
    columns.append(await page.evaluate(_LAYOUT, _FLOWING))
    await page.emulate_media(media="screen")
    heads = [*map(str, _WIDTHS), "print"]
    rows = [
        ("beside each other", heads),
        *((name, [one[name] for one in columns]) for name in columns[0]),
    ]
    return ["".join([name.ljust(18), *(cell.rjust(8) for cell in cells)]) for name, cells in rows]


async def _looks(page: Page) -> list[str]:
    """Return a line for each kind of element: its size and space, its colours by day and night."""
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.emulate_media(color_scheme="light")
    light = await page.evaluate(_LOOKS)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(_LOOKS)
    return [f"{name} | {size} | {day} | {dark[name][1]}" for name, (size, day) in light.items()]

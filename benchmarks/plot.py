"""Draw the plot as SVG without any library; it is readable in light and dark themes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import peers_table
from peers_table import LINES, OURS, RAW
from rows import FIGURES

_WIDTH, _LEFT, _BAR_SPACE = 860, 250, 360
_BAR, _GAP = 15, 12
# Draw a background: a picture follows the theme of the reader's system, while a page may have its
# own.
_STYLE = """
.back { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.note { fill: #59636e }
.nonet { fill: #0969da }
.peer { fill: #818b98 }
.raw { fill: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  .back { fill: #0d1117 }
  text { fill: #f0f6fc }
  .note { fill: #9198a1 }
  .nonet { fill: #4493f8 }
  .peer { fill: #656c76 }
  .raw { fill: #3d444d }
}
"""
# The rows to draw if the peers were not measured.
_OWN = (
    "sequential", "concurrent", "bulk", "drain", "results", "mutex", "latency_20_p50",
    "latency_500_p50", "drain_cpu",
)  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        kind: ``nonet``, ``peer`` or ``raw``.
        note: the ratio, in words.
    """

    kind: str
    name: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Group:
    """The bars of one row, drawn to one scale."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


def bars(runs: Sequence[dict[str, Any]]) -> list[Group]:
    """Return the groups in the order of the tables, with the peers if they were measured."""
    documents = [run["peers"] for run in runs if run["peers"]]
    return _next_to_peers(documents) if documents else _next_to_raw(runs)


def _next_to_peers(documents: Sequence[peers_table.Document]) -> list[Group]:
    groups = []
    for line in LINES:
        ours = peers_table.value(documents, line, OURS)
        if ours is None:
            continue
        found = [Bar("nonet", "Nonet", ours)]
        if (top := peers_table.best(documents, line)) and top[1]:
            found[0] = Bar(
                "nonet", "Nonet", ours, f"{ours / top[1]:.2f} × {peers_table.short(top[0])}"
            )
            found.append(Bar("peer", f"best peer: {peers_table.short(top[0])}", top[1]))
        if (raw := peers_table.value(documents, line, RAW)) is not None:
            found.append(Bar("raw", "raw redis-py", raw))
        groups.append(Group(_titled(line.title, line.more), line.unit, tuple(found)))
    return groups


def _next_to_raw(runs: Sequence[dict[str, Any]]) -> list[Group]:
    groups = []
    for figure in FIGURES:
        ours = _median(runs, figure.key)
        if figure.key not in _OWN or ours is None:
            continue
        limit = _median(runs, figure.limit)
        found = [Bar("nonet", "Nonet", ours, f"{ours / limit:.2f} ×" if limit else "")]
        if limit:
            name = next(f.title for f in FIGURES if f.key == figure.limit)
            found.append(Bar("raw", name, limit))
        groups.append(Group(_titled(figure.title, figure.more), figure.unit, tuple(found)))
    return groups


def _titled(title: str, more: bool) -> str:
    return f"{title} ({'more' if more else 'less'} is better)"


def _median(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [value for run in runs for value in run["figures"].get(key, [])]
    return statistics.median(values) if values else None


def draw(groups: Sequence[Group]) -> str:
    """Return the plot as SVG; each row has its own scale."""
    parts, y = [], 20
    for group in groups:
        parts.append(f'<text class="title" x="10" y="{y}">{escape(group.title)}</text>')
        y += _GAP
        longest = max(bar.value for bar in group.bars) or 1
        for bar in group.bars:
            parts += _bar(bar, group.unit, y, longest)
            y += _BAR + 3
        y += _GAP + 12
    size = f'width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    back = f'<rect class="back" width="{_WIDTH}" height="{y}" rx="6"/>'
    name = "<title>Nonet, the fastest peer and the limit, row by row</title>"
    return "\n".join([head, name, f"<style>{_STYLE}</style>", back, *parts, "</svg>"]) + "\n"


def _bar(bar: Bar, unit: str, y: int, longest: float) -> list[str]:
    width = max(1.0, _BAR_SPACE * bar.value / longest)
    base = y + _BAR - 3
    digits = 0 if bar.value >= 100 else 2
    said = f"{bar.value:,.{digits}f} {unit}".strip()
    note = f' <tspan class="note">{escape(bar.note)}</tspan>' if bar.note else ""
    name = f'class="note" x="{_LEFT - 8}" y="{base}" text-anchor="end"'
    box = f'x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"'
    return [
        f"<text {name}>{escape(bar.name)}</text>",
        f'<rect class="{bar.kind}" {box}/>',
        f'<text x="{_LEFT + width + 6:.1f}" y="{base}">{escape(said)}{note}</text>',
    ]

"""Format the results of a run as Markdown for docs/benchmarks.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers_table
import plot
from rows import FIGURES, Figure

Run = dict[str, Any]

START, END = "<!-- measured -->", "<!-- end of measured -->"


def write(runs: Sequence[Run], docs: Path) -> None:
    """Write the tables between the markers of the page, and the plot and the JSON beside it.

    Raises:
        ValueError: the page has no markers.
    """
    page = docs / "benchmarks.md"
    text = page.read_text()
    before, found, rest = text.partition(START)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"{page} lacks {START!r} or {END!r}")
    picture = "![Nonet, the fastest peer and the limit](benchmarks.svg)"
    measured = "\n\n".join([picture, markdown(runs)])
    page.write_text(f"{before}{START}\n\n{measured}\n\n{END}{after}")
    (docs / "benchmarks.svg").write_text(plot.draw(plot.bars(runs)))
    (docs / "benchmarks.json").write_text(json.dumps({"runs": list(runs)}) + "\n")


def markdown(runs: Sequence[Run]) -> str:
    """Return all tables."""
    parts = [_about(runs), table(runs)]
    if compared := peers_table.markdown([run["peers"] for run in runs if run["peers"]]):
        parts.append(compared)
    return "\n\n".join(parts)


def table(runs: Sequence[Run]) -> str:
    """Return our own rows: medians, with the range of all rounds of all runs."""
    lines = ["| row | median (range) | compared | target |", "|---|---:|---|---|"]
    for figure in FIGURES:
        if values := [value for run in runs for value in run["figures"].get(figure.key, [])]:
            cells = (_cell(figure, values), _compared(figure, runs), figure.target)
            lines.append(f"| {figure.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Format a number with at least three digits, and no fraction if three precede the point."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _cell(figure: Figure, values: Sequence[float]) -> str:
    median = f"{number(statistics.median(values))} {figure.unit}".strip()
    low, high = number(min(values)), number(max(values))
    return median if low == high else f"{median} ({low}–{high})"


def _compared(figure: Figure, runs: Sequence[Run]) -> str:
    """Return the median of the ratios within each round: noise of the machine affects it least."""
    ratios = [
        ours / limit
        for run in runs
        for ours, limit in zip(
            run["figures"].get(figure.key, []), run["figures"].get(figure.limit, []), strict=False
        )
    ]
    if not ratios:
        return ""
    title = next(f.title for f in FIGURES if f.key == figure.limit)
    limit = "raw" if title.startswith("raw: ") else title
    return f"{statistics.median(ratios):.2f} × {limit}"


def _about(runs: Sequence[Run]) -> str:
    facts = [", ".join(f"{name} {fact}" for name, fact in run["machine"].items()) for run in runs]
    rounds = f"{runs[0]['load']} load; runs: {len(runs)}, rounds of each: {runs[0]['rounds']}"
    return "; ".join([*dict.fromkeys(facts)]) + f"; {rounds}."

"""Tables of the peers' harness: Nonet, its peers and a raw loop, measured in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]  # the name that the harness writes

OURS, RAW = "ours", "raw_async"


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes:
        cell: name of the measurement in the harness.
        read: returns the value of one sample, or None.
    """

    title: str
    unit: str
    cell: str
    read: Callable[[Mapping[str, Any]], float | None]
    more: bool = False


def _of(name: str, enough: int = 0) -> Callable[[Mapping[str, Any]], float | None]:
    def read(sample: Mapping[str, Any]) -> float | None:
        return None if sample.get("n", enough) < enough else sample.get(name)

    return read


LINES = (
    Line("submit one by one", "/s", "a_enqueue", _of("seq"), True),
    Line("submit by 50 callers", "/s", "a_enqueue", _of("conc"), True),
    Line("submit in bulk", "/s", "a_enqueue", _of("bulk"), True),
    Line("drain, no results", "/s", "b_drain", _of("rate"), True),
    Line("drain, results stored", "/s", "b2_results", _of("rate"), True),
    Line("drain, 2 workers", "/s", "c_two", _of("rate"), True),
    Line("worker CPU a task", "µs", "b_drain", _of("worker_cpu_us")),
    Line("Redis CPU a task", "µs", "b_drain", lambda sample: sample["drn"]["cpu_us"]),
    Line("10 ms sleeps, 100 at a time", "/s", "f_sleep", _of("rate"), True),
    Line("latency at 20/s, p50", "ms", "d_idle", _of("p50")),
    Line("latency at 20/s, p99", "ms", "d_idle", _of("p99", 300)),
    Line("latency at 500/s, p50", "ms", "e_500", _of("p50")),
    Line("latency at 500/s, p99", "ms", "e_500", _of("p99")),
    Line("due at one instant: all ended in", "s", "h_same", _of("all_done_s", 5000)),
    Line("spread delays: lateness p99", "ms", "h_spread", _of("p99")),
    Line("delayed tasks that began early", "", "h_spread", _of("early")),
    Line("memory a queued task", "B", "g_memory", _of("mem")),
    Line("idle worker: commands", "/s", "d_idle", _of("idle_cmds_s")),
    Line("start to the first task", "s", "i_startup", _of("first_task_s")),
    Line("idle worker: RSS", "MiB", "i_startup", _of("rss_mb")),
)


def value(documents: Sequence[Document], line: Line, peer: str) -> float | None:
    """Return the median of all samples of all runs."""
    samples = [
        line.read(sample)
        for document in documents
        for sample in document["cells"].get(peer, {}).get(line.cell, [])
        if sample and "error" not in sample
    ]
    known = [sample for sample in samples if sample is not None]
    return statistics.median(known) if known else None


def best(documents: Sequence[Document], line: Line) -> tuple[str, float] | None:
    """Return the best peer in a row."""
    found = [
        (peer, of_peer)
        for peer in _peers(documents)
        if (of_peer := value(documents, line, peer)) is not None
    ]
    choose = max if line.more else min
    return choose(found, key=lambda item: item[1], default=None)


def short(peer: str) -> str:
    """Return the name of a peer as tables show it."""
    return {OURS: "Nonet", RAW: "raw"}.get(peer, peer.removeprefix("peer_"))


def markdown(documents: Sequence[Document]) -> str:
    """Return the table of ours and the best of the peers; empty without a run."""
    if not documents:
        return ""
    lines = ["| row | Nonet | ÷ best peer |", "|---|---:|---:|"]
    for line in LINES:
        ours, top = value(documents, line, OURS), best(documents, line)
        if ours is None and top is None:
            continue
        ratio = ""
        if ours is not None and top and top[1]:
            ratio = f"{ours / top[1]:.2f} {short(top[0])}"
        lines.append(f"| {line.title} | {_cell(ours, line)} | {ratio} |")
    more = "More is better for rates (/s of tasks), less for all else."
    where = "[benchmarks.json](benchmarks.json) has all peers, versions and settings."
    return "\n".join([*lines, "", f"{more} {where}"])


def _peers(documents: Sequence[Document]) -> list[str]:
    return [peer for peer in documents[0]["meta"] if peer not in (OURS, RAW)]


def _cell(found: float | None, line: Line) -> str:
    if found is None:
        return "–"
    digits = 0 if abs(found) >= 100 else 1 if abs(found) >= 10 else 2
    return f"{found:,.{digits}f} {line.unit}".strip()

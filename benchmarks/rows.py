"""The rows of the table: their figures, and the raw figure to compare each with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from measures import Bench, Values


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        unit: ``/s``, ``ms``, …; empty for a ratio.
        limit: key of the raw figure to compare with.
        target: the value to reach, in words.
        more: whether more of it is better.
    """

    key: str
    title: str
    unit: str
    limit: str = ""
    target: str = ""
    more: bool = False


@dataclass(frozen=True)
class Row:
    """Figures that are measured together; a row is chosen by its name.

    Attributes:
        once: measure it in the first round only, because it is slow.
        patient: takes most of a minute with any load, so it runs only with a full load or by name.
    """

    name: str
    figures: tuple[Figure, ...]
    measure: Callable[[Bench], Awaitable[Values]]
    once: bool = False
    patient: bool = False


_rate = partial(Figure, unit="/s", more=True)

# Raw rows come first. The peers' harness and the plot use these keys, too.
ROWS = (
    Row(
        "raw",
        (
            _rate("raw_sequential", "raw: XADD one by one"),
            _rate("raw_concurrent", "raw: XADD by 50 callers"),
            _rate("raw_bulk", "raw: XADD, pipelines of 1,000"),
        ),
        Bench.raw_submit,
    ),
    Row(
        "raw",
        (
            _rate("raw_drain", "raw: read, acknowledge, delete"),
            Figure("raw_ping", "raw: PING, p50", "ms"),
        ),
        Bench.raw_drain,
    ),
    Row(
        "submit",
        (
            _rate("sequential", "submit one by one", limit="raw_sequential", target="≥ 0.8 × raw"),
            _rate("concurrent", "submit by 50 callers", limit="raw_concurrent", target="≥ 51,000"),
            _rate("bulk", "submit_many", limit="raw_bulk", target="≥ 117,000"),
        ),
        Bench.submit,
    ),
    Row(
        "drain",
        (
            _rate("drain", "drain, no results", limit="raw_drain", target="≥ 36,000"),
            Figure("drain_cpu", "worker CPU a task", "µs", target="≤ 30"),
            Figure("drain_redis", "Redis CPU a task", "µs", target="≤ 15"),
            Figure("drain_commands", "Redis commands a task", ""),
            Figure("drain_reads", "round trips a task", ""),
        ),
        Bench.drain,
    ),
    Row("drain", (_rate("results", "drain, results stored", limit="raw_drain"),), Bench.results),
    Row("drain", (_rate("mutex", "drain, a mutex each", limit="drain"),), Bench.mutex),
    Row("two", (Figure("two", "2 workers ÷ 1, 1 ms CPU", "×", "", "≥ 1.8", True),), Bench.two),
    Row(
        "latency",
        (
            Figure("latency_20_p50", "latency at 20/s, p50", "ms", "raw_ping"),
            Figure("latency_20_p99", "latency at 20/s, p99", "ms"),
            Figure("latency_500_p50", "latency at 500/s, p50", "ms", "raw_ping"),
            Figure("latency_500_p99", "latency at 500/s, p99", "ms"),
        ),
        Bench.latency,
    ),
    Row(
        "sleeps",
        (Figure("sleeps", "10 ms sleeps, share of ideal", "%", "", "≥ 90", True),),
        Bench.sleeps,
    ),
    Row(
        "delayed",
        (
            Figure("delayed_all", "due at one instant: all started in", "s", target="≤ 0.4"),
            Figure("delayed_p50", "spread delays: lateness p50", "ms"),
            Figure("delayed_p99", "spread delays: lateness p99", "ms", target="≤ 5"),
            Figure("delayed_early", "delayed tasks that began early", "", target="0"),
        ),
        Bench.delayed,
    ),
    Row("memory", (Figure("memory", "memory a queued task", "B", target="≤ 400"),), Bench.memory),
    Row(
        "forgotten",
        (Figure("memory_left", "memory left a task, dedup window over", "B", target="0"),),
        Bench.forgotten,
        once=True,
        patient=True,
    ),
    Row(
        "idle",
        (
            Figure("idle_reads", "idle worker: round trips", "/s", target="≤ 2"),
            Figure("idle_commands", "idle worker: commands", "/s"),
            Figure("idle_cpu", "idle worker: CPU", "%"),
        ),
        Bench.idle,
    ),
    Row(
        "realtime",
        (
            Figure("realtime_p50", "realtime in a flood, p50", "ms"),
            Figure("realtime_p99", "realtime in a flood, p99", "ms", target="≤ 15"),
        ),
        Bench.realtime,
    ),
    Row(
        "scale",
        (Figure("scale", "drain, long queue ÷ short", "×", "", "≥ 0.95", True),),
        Bench.scale,
        once=True,
    ),
    Row(
        "lists",
        (
            Figure("list_running", "list running while many wait", "s", target="≤ 0.3"),
            Figure("list_waiting", "list the oldest of many waiting", "s"),
            Figure("list_script", "lists: longest script", "ms", target="≤ 10"),
        ),
        Bench.lists,
        once=True,
    ),
    Row(
        "lists",
        (
            Figure("cancel", "cancel many queued tasks", "s", target="≤ 10"),
            Figure("cancel_script", "cancel: longest script", "ms", target="≤ 10"),
        ),
        Bench.cancel,
        once=True,
    ),
    Row(
        "history",
        (
            Figure("history_redis", "history: Redis time a task", "µs", target="≤ 0.5"),
            Figure("history_memory", "history, full: memory", "MiB", target="≤ 8"),
            Figure("figures_memory", "figures of 100 classes: memory", "MiB", target="≤ 8"),
            Figure("history_drain", "drain, history ÷ none", "×", "", "≥ 0.97", True),
        ),
        Bench.history,
        once=True,
    ),
    Row(
        "start",
        (
            Figure("start", "start of a worker to its first task", "s", target="≤ 0.35"),
            Figure("start_rss", "idle worker: RSS", "MiB", target="≤ 60"),
        ),
        Bench.start,
    ),
    Row(
        "children",
        (
            Figure("slot_loop", "one slot: in the loop", "ms"),
            Figure("slot_child", "one slot: in a reusable child", "ms", "slot_loop"),
            Figure("slot_fresh", "one slot: in a fresh process", "ms", "slot_loop"),
        ),
        Bench.children,
    ),
)

FIGURES = tuple(figure for row in ROWS for figure in row.figures)
NAMES = sorted({row.name for row in ROWS})

"""The tasks of each tenant, its share and its fair share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nonet.base.streams import Size
from nonet.rules.fairness import NOBODY, OTHERS
from nonet.rules.figures import Times, figures_of
from nonet.rules.vectors import merged, started_in, starts_of


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What a tenant has now.

    Attributes:
        live: its tasks that have not ended.
        waiting: tasks in its lists, by size; None: tenants share no stream, or these are the
            others.
        oldest: age in seconds of the oldest of these; None: none waits.
        running: attempts that workers run.
        tenants: how many tenants these are.
    """

    live: int = 0
    waiting: Mapping[str, int] | None = None
    oldest: float | None = None
    running: int = 0
    tenants: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """Parts of the starts of all tenants in the last minutes, from 0 to 1.

    Attributes:
        used: the share of starts that the tenant had.
        due: the share that its weight gives it among tenants that had tasks.
    """

    used: float
    due: float


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """The figures of one tenant; past figures count from `TenantTable.since`.

    Attributes:
        name: empty: the tasks that have no tenant; ``(others)``: all tenants beyond a number.
        weight: its weight; None: tenants share no stream, or these are the others.
        live: its tasks that have not ended.
        waiting: tasks that wait for its turn, without delayed tasks and tasks that wait for locks;
            None: tenants share no stream, or these are the others.
        oldest_seconds: age of the oldest of these; None: none waits.
        running: attempts that workers ran at their last beats.
        share_used: its part of all starts of the last minutes, from 0 to 1; None: none started, or
            tenants share no stream.
        share_due: the part that its weight gives it among tenants that had tasks.
        started: attempts that began.
        ended: tasks that a worker ended, in whatever state.
        failed: tasks that ended dead or expired, without expected errors.
        retried: attempts that failed, or whose process died, and were followed by another one.
        wait: how long tasks were runnable before a worker fetched them.
    """

    name: str
    weight: float | None
    live: int
    waiting: int | None
    oldest_seconds: float | None
    running: int
    share_used: float | None
    share_due: float | None
    started: int
    ended: int
    failed: int
    retried: int
    wait: Times

    @property
    def label(self) -> str:
        """How it is shown."""
        return tenant_label(self.name)

    @property
    def used_percent(self) -> str | None:
        """What it has started, in percent."""
        return _percent(self.share_used)

    @property
    def due_percent(self) -> str | None:
        """What it is due, in percent."""
        return _percent(self.share_due)


@dataclass(frozen=True, slots=True)
class TenantTable:
    """The tenants of a namespace.

    Attributes:
        by: what identifies them: ``vo``, ``class`` or ``label:NAME``.
        since: since when past figures count.
        share_seconds: the period in which shares are compared.
        items: first the tenants that the configuration names, then by their tasks.
        cursor: null: the list is whole.
    """

    by: str
    since: datetime
    share_seconds: float
    items: tuple[TenantFigures, ...]
    cursor: None = None


ORDERS = {
    "tasks": "most tasks",
    "name": "name",
    "live": "most live",
    "waiting": "most waiting",
    "oldest": "oldest first",
    "running": "most running",
    "behind": "furthest behind its share",
    "failed": "most failed",
}
"""How tenants can be sorted: ``tasks`` is the order of `TenantTable.items`."""


def sorted_by(items: Iterable[TenantFigures], by: str) -> tuple[TenantFigures, ...]:
    """Sort tenants by one of `ORDERS`; the others are the last."""
    keys: Mapping[str, Callable[[TenantFigures], Any]] = {
        "tasks": lambda item: 0,
        "name": lambda item: item.name,
        "live": lambda item: -item.live,
        "waiting": lambda item: -(item.waiting or 0),
        "oldest": lambda item: -(item.oldest_seconds or 0),
        "running": lambda item: -item.running,
        "behind": lambda item: (item.share_used or 0) - (item.share_due or 0),
        "failed": lambda item: -item.failed,
    }
    return tuple(sorted(items, key=lambda item: (item.name == OTHERS, keys[by](item))))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3g}"


def tenant_label(name: str) -> str:
    """Return how a tenant is shown."""
    return name or NOBODY


def due(
    starts: float, wanted: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """Divide starts by weights; starts that a tenant does not want go to the others.

    Args:
        wanted: by tenant, how many starts it could have used.
        weights: by tenant.

    >>> due(100, {"a": 1000, "b": 1000, "c": 10}, {"a": 2, "b": 1, "c": 1})
    {'c': 10, 'a': 60.0, 'b': 30.0}
    """
    found: dict[str, float] = {}
    left, unserved = starts, {name for name, number in wanted.items() if number > 0}
    while unserved:
        each = left / sum(weights[name] for name in unserved)
        served = {name for name in unserved if wanted[name] <= each * weights[name]}
        if not served:
            return found | {name: each * weights[name] for name in sorted(unserved)}
        found |= {name: wanted[name] for name in sorted(served)}
        left -= sum(wanted[name] for name in served)
        unserved -= served
    return found


def shares(
    vectors: Mapping[str, Mapping[int, int]],
    loads: Mapping[str, TenantLoad],
    weights: Mapping[str, float],
) -> dict[str, Share]:
    """Compare the starts of each tenant with its fair share.

    A tenant could have used as many starts as it had, plus one for each waiting task. Each size of
    workers is divided separately. Empty if nothing was started.

    Args:
        vectors: what was counted in the last minutes.
        weights: of each tenant in `vectors` or `loads`.
    """
    names = sorted({*vectors, *loads})
    used, earned = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    starts = {name: starts_of(vectors.get(name, {})) for name in names}
    for size in Size:
        started = {name: starts[name][size] for name in names}
        waiting = {name: (load.waiting or {}).get(size, 0) for name, load in loads.items()}
        wanted = {name: started[name] + waiting.get(name, 0) for name in names}
        for name, number in due(sum(started.values()), wanted, weights).items():
            earned[name] += number
        for name, number in started.items():
            used[name] += number
    total = sum(used.values())
    if not total:
        return {}
    return {name: Share(used[name] / total, earned[name] / total) for name in names}


def tenant_figures(
    name: str,
    load: TenantLoad,
    vectors: Iterable[Mapping[int, int]],
    weight: float | None,
    share: Share | None,
) -> TenantFigures:
    """Return the figures of one tenant.

    Args:
        vectors: its counts by slot.
    """
    total = merged(vectors)
    figures = figures_of(total)
    return TenantFigures(
        name=name,
        weight=weight,
        live=load.live,
        waiting=None if load.waiting is None else sum(load.waiting.values()),
        oldest_seconds=load.oldest,
        running=load.running,
        share_used=share.used if share else None,
        share_due=share.due if share else None,
        started=started_in(total),
        ended=figures.ended,
        failed=figures.failed,
        retried=figures.retried,
        wait=figures.wait,
    )

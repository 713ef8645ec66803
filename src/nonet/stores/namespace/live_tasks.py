"""Live tasks as people ask for them: by worker, lock, error and age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.places import TaskFilter
from nonet.stores.queue.results import Results
from nonet.tasks.handles import TaskPage

if TYPE_CHECKING:
    from nonet.stores.namespace.lock_board import LockBoard

# Holders of a lock that a list examines, and as many waiters.
_OF_LOCK = 500


async def live_filter(
    broker: Broker,
    results: Results,
    states: Sequence[str],
    *,
    task: str | None = None,
    labels: Mapping[str, Any] | None = None,
    worker: str | None = None,
    error: str = "",
    since: timedelta | None = None,
    until: datetime | None = None,
    tenant: str = "",
) -> TaskFilter:
    """Return the filter for live tasks, for `Results.page` and `Cancellation`.

    Args:
        worker: name or incarnation of the worker that has the task; None: any, or none.
        since: submitted at most this long ago.
        until: latest submission, by the logical clock of Redis.
    """
    return TaskFilter(
        task or "",
        labels or {},
        states,
        workers=None if worker is None else await results.incarnations(worker),
        error=error,
        since=None if since is None else await broker.logical_now() - since,
        until=until,
        tenant=tenant,
    )


async def page_of_lock(
    results: Results, locks: LockBoard, lock: str, selection: TaskFilter, limit: int
) -> TaskPage:
    """Return the selected tasks that hold a lock or wait for it."""
    ids, total = await locks.tasks(lock, _OF_LOCK)
    rows = await results.chosen(ids, selection)
    return TaskPage(rows[:limit], len(rows), len(ids), max(total, len(ids)))

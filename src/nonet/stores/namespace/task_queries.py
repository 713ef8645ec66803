"""Tasks as people ask for them: by class, labels, worker, lock, error and age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from nonet.stores.namespace.history import EndedFilter
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.places import TaskFilter
from nonet.stores.queue.results import Results
from nonet.tasks.handles import TaskPage

if TYPE_CHECKING:
    from nonet.stores.namespace.lock_board import LockBoard

# Holders of a lock that a list examines, and as many waiters.
_OF_LOCK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """What commands, routes and pages ask of live and of ended tasks; empty and None: any.

    Attributes:
        worker: name or incarnation of the worker that has the task, or ended it.
        since: submitted, or ended, at most this long ago.
        until: latest submission, or end, by the logical clock of Redis.
        ids: of the tasks.
        tenant: of live tasks only.
    """

    task: str | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    worker: str | None = None
    error: str = ""
    since: timedelta | None = None
    until: datetime | None = None
    ids: Sequence[str] = ()
    tenant: str = ""

    async def live(self, broker: Broker, results: Results, states: Sequence[str]) -> TaskFilter:
        """Return the filter for live tasks, for `Results.page` and `Cancellation`."""
        return TaskFilter(states=states, tenant=self.tenant, **await self._common(broker, results))

    async def ended(self, broker: Broker, results: Results, states: Sequence[str]) -> EndedFilter:
        """Return the filter for ended tasks."""
        return EndedFilter(states, **await self._common(broker, results))

    async def _common(self, broker: Broker, results: Results) -> dict[str, Any]:
        return {
            "task": self.task or "",
            "labels": self.labels,
            "workers": await results.incarnations(self.worker) if self.worker else None,
            "error": self.error,
            "since": None if self.since is None else await broker.logical_now() - self.since,
            "until": self.until,
            "ids": self.ids,
        }


async def page_of_lock(
    results: Results, locks: LockBoard, lock: str, selection: TaskFilter, limit: int
) -> TaskPage:
    """Return the selected tasks that hold a lock or wait for it."""
    ids, total = await locks.tasks(lock, _OF_LOCK)
    ids = [id for id in ids if not selection.ids or id in selection.ids]
    rows = await results.chosen(ids, selection)
    return TaskPage(rows[:limit], len(rows), len(ids), max(total, len(ids)))

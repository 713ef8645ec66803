"""Cancel many tasks by a filter: show how many first, then end only those that existed then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nonet.client.client import Client
from nonet.stores.namespace.cancellation import CancelledTasks
from nonet.stores.queue.places import TaskFilter
from nonet.tasks.handles import TaskStatus

# How many tasks an estimate examines in each place, and how many it shows.
_BUDGET = 5000
_SAMPLE = 10
# How long one call cancels: a browser or a proxy does not wait for a million tasks.
_SECONDS = 20.0


@dataclass(frozen=True)
class Cancelled:
    """A task or workflow after its cancellation.

    Attributes:
        state: ``cancelled``; or ``cancelling`` (a workflow: ``running``) while workers end what
            runs, within seconds.
    """

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class CancelPreview:
    """What a mass cancellation would cancel.

    Attributes:
        number: how many tasks match; an estimate unless `is_exact`. It leaves out durable tasks
            that are still in SQL only.
        moment: pass it to `cancel_existing`, which leaves tasks alone that were submitted later.
        sample: some of the tasks.
    """

    number: int
    is_exact: bool
    moment: datetime
    sample: Sequence[TaskStatus]


async def preview_cancel(client: Client, selection: TaskFilter) -> CancelPreview:
    """Estimate how many tasks match, at a cost that does not depend on their number.

    Args:
        selection: its states are some of `nonet.stores.queue.places.UNFINISHED`.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    moment = await client.stores.broker.logical_now()
    page = await client.stores.results.page(selection, limit=_SAMPLE, budget=_BUDGET)
    is_exact = page.searched >= page.total
    number = page.matched
    if not is_exact and selection.is_narrow and page.searched:
        number = round(page.matched * page.total / page.searched)
    return CancelPreview(number, is_exact, moment, page.rows)


async def cancel_existing(
    client: Client, selection: TaskFilter, moment: datetime, who: str, reason: str = ""
) -> CancelledTasks:
    """Cancel the tasks of a selection that existed at `moment`.

    If the result is not complete, call it again with the same moment: it continues.

    Args:
        moment: `CancelPreview.moment`.
        who: for the event stream and for programs that wait for results.

    Raises:
        ServerUnreachableError: Redis or SQL does not answer. Some tasks may be cancelled; call it
            again.
    """
    existing = replace(selection, until=moment)
    return await client.cancellation.cancel_all(existing, who, reason, seconds=_SECONDS)

"""Callback groups: which are kept, how far each is, and the end of their children."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonet.operate.audited import Changed, audited
from nonet.operate.lists import ListQuery, Page, cut, number_in, part
from nonet.rules.permissions import Action
from nonet.stores.queue.groups import GroupStatus
from nonet.tasks.handles import TaskStatus

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.stores import Stores


async def find(stores: Stores, query: ListQuery) -> Page[GroupStatus]:
    """Return the groups that are kept, those opened last first."""
    end = number_in(query.cursor) + query.limit
    return cut(await stores.groups.list(end + 1), query)


async def get(stores: Stores, id: str) -> GroupStatus:
    """Return how far a group is.

    Raises:
        NotFoundError: no group has this id, or it has expired.
    """
    return await stores.groups.status(id)


async def children(stores: Stores, id: str, query: ListQuery) -> Page[TaskStatus]:
    """Return the children of a group, in the order of spawning.

    A child of which nothing is kept is ``unknown``.

    Raises:
        NotFoundError: no group has this id, or it has expired.
    """
    group, start = await stores.groups.status(id), number_in(query.cursor)
    ids, ended = await stores.groups.children(group, start, query.limit)
    live = {item.id: item for item in await stores.results.statuses(ids)}
    found = [live.get(id) or ended.get(id) or TaskStatus(id, "", "unknown") for id in ids]
    return part(found, start, group.total)


@audited(Action.CANCEL, "group {id}: {reason}")
async def cancel(client: Client, id: str, reason: str = "") -> Changed:
    """Cancel the children of a group that have not ended."""
    return Changed.of(await client.cancel_group(id, reason=reason), "cancelled", "cancelling")

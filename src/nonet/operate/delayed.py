"""Delayed tasks: which start next; make them due now, or cancel them while they are delayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import NotFoundError
from nonet.operate import tasks
from nonet.operate.audited import Changed, audited
from nonet.operate.lists import ListQuery, Searched, Text
from nonet.rules.permissions import Action
from nonet.tasks.handles import TaskStatus

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.stores import Stores


class DelayedQuery(ListQuery):
    """Which delayed tasks are listed."""

    task: Text = Field(
        default="", description="Only this class: its full name `category:Class`, or its bare name."
    )


async def find(stores: Stores, query: DelayedQuery) -> Searched[TaskStatus]:
    """Return the delayed tasks, also those that wait for a retry, the soonest first."""
    return await tasks.find(stores, tasks.LiveQuery(state="delayed", **query.model_dump()))


@audited(Action.SCHEDULE, "task {ids}: due now")
async def hasten(stores: Stores, ids: Sequence[str]) -> Changed:
    """Make delayed tasks due now, including those that wait for a retry."""
    named = list(dict.fromkeys(ids))
    states = dict(zip(named, await stores.controls.hasten(named), strict=True))
    changed = Changed.of(states, "delayed")
    if done := changed.changed:
        which = f"task {done[0]}" if len(done) == 1 else f"{len(done)} tasks, the last {done[-1]}"
        await stores.events.log("tasks-hastened", who(), which)
    return changed


@audited(Action.CANCEL, "task {ids}: cancel: {reason}")
async def cancel(client: Client, ids: Sequence[str], reason: str = "") -> Changed:
    """Cancel tasks, unless they are no longer delayed."""
    states: dict[str, str] = {}
    for id in dict.fromkeys(ids):
        try:
            states[id] = (await client.status(id)).state
        except NotFoundError:
            states[id] = ""
    delayed = [id for id, state in states.items() if state == "delayed"]
    if delayed:
        states |= await client.cancel_not_running(delayed, reason=reason)
    return Changed.of(states, "cancelled")

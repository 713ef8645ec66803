"""Delayed tasks for operators: make them due now, or cancel them while they are delayed."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.base.actor import who
from nonet.base.errors import NotFoundError
from nonet.client.client import Client
from nonet.stores.stores import Stores


async def hasten(ids: Sequence[str], stores: Stores) -> dict[str, str]:
    """Make delayed tasks due now, including those that wait for a retry.

    Returns:
        The state of each task before, empty if it is unknown. Only those that were ``delayed``
        have changed.
    """
    named = list(dict.fromkeys(ids))
    states = dict(zip(named, await stores.controls.hasten(named), strict=True))
    done = [id for id, state in states.items() if state == "delayed"]
    if done:
        which = f"task {done[0]}" if len(done) == 1 else f"{len(done)} tasks, the last {done[-1]}"
        await stores.events.log("tasks-hastened", who(), which)
    return states


async def cancel_delayed(ids: Sequence[str], client: Client, reason: str = "") -> dict[str, str]:
    """Cancel the tasks that are delayed; return the state of each task afterwards."""
    states: dict[str, str] = {}
    for id in dict.fromkeys(ids):
        try:
            states[id] = (await client.status(id)).state
        except NotFoundError:
            states[id] = ""
    delayed = [id for id, state in states.items() if state == "delayed"]
    if delayed:
        states |= await client.cancel_not_running(delayed, reason=reason)
    return states

"""Functions that use the open application: `spawn_with_callback`, `cancel_many`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nonet.base.errors import NotBoundError
from nonet.client.client import Client, of_client
from nonet.client.groups import Policy
from nonet.stores.queue.places import UNFINISHED
from nonet.tasks.task import BaseTask, current_submitter


class CallbackSpawner:
    """`nonet.spawn_with_callback` as a parameter of ``execute``, annotated with this class.

    Example:
        class HashAll(BaseTask):
            async def execute(self, spawn: CallbackSpawner) -> str:
                return await spawn([Hash("a"), Hash("b")], Report())
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    __call__ = of_client(Client.spawn_with_callback)


async def cancel_many(
    *,
    task: type[BaseTask] | str | None = None,
    labels: Mapping[str, Any] | None = None,
    states: Sequence[str] = UNFINISHED,
    reason: str = "",
) -> int:
    """Cancel many tasks through the open application; see `Client.cancel_many`.

    Raises:
        NotBoundError: no application is open in this process.

    Example:
        @startup_hook
        async def drop_stale(epoch: Epoch) -> None:
            await cancel_many(task=Refresh, reason="the epoch is new")
    """
    client = current_submitter()
    if not isinstance(client, Client):
        raise NotBoundError(
            "cancel_many() needs an open application, which run_inline() is not: use "
            "nonet.testing.System"
        )
    return await client.cancel_many(task=task, labels=labels, states=states, reason=reason)


async def spawn_with_callback(
    children: Sequence[BaseTask],
    callback: BaseTask,
    *,
    on_failure: BaseTask | None = None,
    policy: Policy = "all_success",
    ttl_seconds: float = 86400,
) -> str:
    """Submit a group through the open application; see `Client.spawn_with_callback`.

    Returns:
        The id of the group.

    Raises:
        NotBoundError: no application is open in this process.

    Example:
        await spawn_with_callback([Hash(part) for part in parts], Report())
    """
    client = current_submitter()
    if not isinstance(client, Client):
        raise NotBoundError(
            "spawn_with_callback() needs an open application, which run_inline() is not: annotate "
            "a parameter of execute with CallbackSpawner, or use nonet.testing.System"
        )
    return await client.spawn_with_callback(
        children, callback, on_failure=on_failure, policy=policy, ttl_seconds=ttl_seconds
    )

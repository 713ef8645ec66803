"""Submit the children of a group, and the callback that follows them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from nonet.base.errors import NonetError
from nonet.stores.queue.groups import callback_id, child_id, failure_id, group_id
from nonet.tasks.execution import TaskContext, running_context
from nonet.tasks.task import BaseTask, Options, ensure_task
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.client.client import Client

Policy = Literal["all_success", "all_done"]

_LONGEST_TTL = 10 * 365 * 86400
# How often a group is opened that Redis loses before it is sealed.
_SPAWNS = 3


def check_group(
    children: Sequence[BaseTask],
    callback: BaseTask,
    on_failure: BaseTask | None,
    policy: str,
    ttl_seconds: float,
) -> None:
    """Validate the arguments of `Client.spawn_with_callback`.

    Raises:
        TypeError: an argument is not a task.
        ValueError: `policy` or `ttl_seconds` is invalid.
    """
    for index, child in enumerate(children):
        ensure_task(child, f"spawn_with_callback: children[{index}]")
    ensure_task(callback, "spawn_with_callback: callback")
    if on_failure is not None:
        ensure_task(on_failure, "spawn_with_callback: on_failure")
    if policy not in get_args(Policy):
        raise ValueError(
            f"spawn_with_callback: policy={policy!r} must be one of {get_args(Policy)}"
        )
    if not 0 < ttl_seconds <= _LONGEST_TTL:
        raise ValueError(
            f"spawn_with_callback: ttl_seconds={ttl_seconds!r} must be above 0 and at most "
            f"{_LONGEST_TTL} (ten years)"
        )


async def open_group(
    client: Client,
    children: Sequence[BaseTask],
    callback: BaseTask,
    on_failure: BaseTask | None,
    policy: Policy,
    ttl_seconds: float,
) -> str:
    """Open a group and submit its children; see `Client.spawn_with_callback`.

    Raises:
        InvalidArgumentsError: they belong to several namespaces; nothing was submitted.
    """
    running = running_context()
    if running:
        running.ensure_lease()
    group, parent = _group_id(running), running.id if running else ""
    await client.live_config.refresh()
    with sending() as trace:
        prepare = partial(client.envelopes.prepare, trace=trace)
        prepared = [
            prepare(child, Options(id=child_id(group, index)), child_of=group)
            for index, child in enumerate(children)
        ]
        follow = partial(prepare, callback_of=group)
        if trace:
            describe_sent(prepared)
        follows = [follow(callback, Options(id=callback_id(group)))]
        if on_failure is not None:
            follows.append(follow(on_failure, Options(id=failure_id(group))))
        name, number = client.registry.of(callback).name, len(prepared)
        client, tasks = client.routing.together("group", name, [*prepared, *follows])
        prepared, (then, *otherwise) = tasks[:number], tasks[number:]
        for _ in range(_SPAWNS):
            state = await client.groups.open(
                group,
                parent,
                policy=policy,
                ttl_seconds=ttl_seconds,
                total=number,
                callback=then,
                on_failure=otherwise[0] if otherwise else None,
            )
            if state != "building":
                return group
            await client.broker.submit(prepared)
            if running:  # An attempt that lost its lease while submitting must not seal the group.
                running.ensure_lease()
            if await client.groups.seal(group, parent):
                return group
    raise NonetError(
        f"group {group} is gone: Redis lost it {_SPAWNS} times while {number} children were "
        "submitted, or that took longer than a day"
    )


def _group_id(running: TaskContext | None) -> str:
    """Return a random id or, in a task, the same id in every attempt: a retry finds its group."""
    if running is None:
        return uuid.uuid4().hex
    return group_id(running.id, running.next_spawn())

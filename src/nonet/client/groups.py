"""Submit the children of a group, and the callback that follows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from nonet.base.errors import NonetError
from nonet.stores.queue.groups import callback_id, child_id, failure_id, group_id
from nonet.tasks.execution import TaskContext, running_context
from nonet.tasks.task import BaseTask, Options, TaskOf, ensure_task, task_and_options
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.client.namespace import OpenNamespace
    from nonet.stores.queue.submissions import Submission

Policy = Literal["all_success", "all_done"]

_LONGEST_TTL = 10 * 365 * 86400
# How often to open a group, if Redis loses it before it is sealed.
_SPAWNS = 3


class Spawned(Struct, frozen=True):
    """The validated arguments of `Client.spawn_with_callback`, each task with its options."""

    children: Sequence[tuple[BaseTask, Options]]
    callback: tuple[BaseTask, Options]
    on_failure: tuple[BaseTask, Options] | None
    policy: Policy
    ttl_seconds: float

    @classmethod
    def of(
        cls,
        children: Sequence[TaskOf[Any]],
        callback: TaskOf[Any],
        on_failure: TaskOf[Any] | None,
        policy: Policy,
        ttl_seconds: float,
    ) -> Spawned:
        """Validate the arguments.

        Raises:
            TypeError: an argument is not a task, or has an id of its own.
            ValueError: `policy` or `ttl_seconds` is invalid.
        """
        given = [_with_options(child, f"children[{index}]") for index, child in enumerate(children)]
        then = _with_options(callback, "callback")
        otherwise = None if on_failure is None else _with_options(on_failure, "on_failure")
        if policy not in get_args(Policy):
            raise ValueError(
                f"spawn_with_callback: policy={policy!r} must be one of {get_args(Policy)}"
            )
        if not 0 < ttl_seconds <= _LONGEST_TTL:
            raise ValueError(
                f"spawn_with_callback: ttl_seconds={ttl_seconds!r} must be above 0 and at most "
                f"{_LONGEST_TTL} (ten years)"
            )
        return cls(given, then, otherwise, policy, ttl_seconds)

    def prepared(
        self, group: str, prepare: Callable[..., Submission]
    ) -> tuple[list[Submission], list[Submission]]:
        """Return the submissions of the children, of the callback and of `on_failure`."""

        def one(given: tuple[BaseTask, Options], id: str, **origin: str) -> Submission:
            task, options = given
            return prepare(task, replace(options, id=id), **origin)

        children = [
            one(child, child_id(group, index), child_of=group)
            for index, child in enumerate(self.children)
        ]
        follows = [one(self.callback, callback_id(group), callback_of=group)]
        if self.on_failure is not None:
            follows.append(one(self.on_failure, failure_id(group), callback_of=group))
        return children, follows


def _with_options(given: Any, what: str) -> tuple[BaseTask, Options]:
    what = f"spawn_with_callback: {what}"
    task, options = task_and_options(given, {}, what, "id")
    ensure_task(task, what)
    return task, options


async def open_group(home: OpenNamespace, spawned: Spawned) -> str:
    """Open a group and submit its children; see `Client.spawn_with_callback`.

    Raises:
        InvalidArgumentsError: they belong to several namespaces; nothing was submitted.
    """
    running = running_context()
    if running:
        running.ensure_lease()
    group, parent = _group_id(running), running.id if running else ""
    await home.live_config.refresh()
    with sending() as trace:
        prepared, follows = spawned.prepared(group, partial(home.envelopes.prepare, trace=trace))
        if trace:
            describe_sent(prepared)
        name, number = home.registry.of(spawned.callback[0]).name, len(prepared)
        there, tasks = home.routing.together("group", name, [*prepared, *follows])
        prepared, (then, *otherwise) = tasks[:number], tasks[number:]
        for _ in range(_SPAWNS):
            state = await there.stores.groups.open(
                group,
                parent,
                policy=spawned.policy,
                ttl_seconds=spawned.ttl_seconds,
                total=number,
                callback=then,
                on_failure=otherwise[0] if otherwise else None,
            )
            if state != "building":
                return group
            await there.stores.broker.submit(prepared)
            if running:  # An attempt that lost its lease while submitting must not seal the group.
                running.ensure_lease()
            if await there.stores.groups.seal(group, parent):
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

"""Submit tasks of which each has its own options, as programs describe them in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nonet.base.errors import ConflictError
from nonet.base.messages.repetition import Repeat
from nonet.client.client import Client
from nonet.client.submitting import is_durable
from nonet.tasks.handles import Handle
from nonet.tasks.task import BaseTask, Options
from nonet.telemetry.tracing import describe_sent, sending


async def submit_each(
    client: Client, wanted: Sequence[tuple[BaseTask, Options]], repeats: Sequence[Repeat] = ()
) -> list[Handle[Any]]:
    """Submit tasks with their options; all are validated before the first is submitted.

    Args:
        wanted: tasks and their options.
        repeats: the ids and marks of these tasks, if their request has an idempotency key. The
            first task decides which of two requests with the same key comes first.

    Raises:
        InvalidArgumentsError: a task or an option is invalid; nothing was submitted.
        ConflictError: the key was used for a request with another body; nothing was submitted.
        NonetError: as `nonet.Nonet.submit_many`.
    """
    if client.live_config.is_due:
        await client.live_config.refresh()
    with sending() as trace:
        durable = [is_durable(task, None, client.registry) for task, _ in wanted]
        prepared = [
            client.envelopes.prepare(
                task, options, trace=trace, repeat=repeats[number] if repeats else None
            )
            for number, (task, options) in enumerate(wanted)
        ]
        if trace:
            describe_sent(prepared)
        if not repeats:
            are_new = all(options.id is None for _, options in wanted)
            return await client.send_many(prepared, durable, ids_are_new=are_new)
        first = await client.send_many(prepared[:1], durable[:1])
        await _check_mark(client, first[0], repeats[0])
        return first + await client.send_many(prepared[1:], durable[1:])


async def _check_mark(client: Client, handle: Handle[Any], repeat: Repeat) -> None:
    """Raise ConflictError if a task with this id belongs to a request with another body."""
    if handle.created or handle != repeat.id:  # the latter was merged, by its unique key
        return
    known = await client.recognise(handle)
    if known is not None and known.mark != repeat.mark:
        raise ConflictError(
            "this Idempotency-Key was sent before with another body: send a new key with each "
            "new request, and the same key only to repeat one"
        )

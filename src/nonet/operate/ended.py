"""Submit a failed task of the history again, at most once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nonet.base.errors import ConflictError, MalformedMessageError, NotFoundError
from nonet.client.client import Client
from nonet.messages.formats import format_problem
from nonet.messages.message import Envelope
from nonet.messages.repetition import Known, Repeat, repeat_of_end
from nonet.stores.namespace.history import FAILED, History, Kept
from nonet.tasks.handles import Handle

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters


async def resubmit_ended(
    id: str,
    client: Client,
    history: History,
    letters: Callable[[], Awaitable[DeadLetters]],
) -> Handle[Any]:
    """Submit a failed task again as a new task. Its id is derived from the failed one.

    So a second call, also at the same time, submits nothing.

    Args:
        id: id of the failed task.
        letters: opens the dead letters, if the class may have some.

    Raises:
        NotFoundError: the history does not have the task.
        ConflictError: it has not failed; or it is a dead letter, was quarantined, or its message
            was not kept; or it was submitted again before. The message names the next step.
        UnknownTaskError: its class is not registered.
        InvalidArgumentsError: its class rejects the arguments.
    """
    kept = await history.find(id)
    if kept is None:
        raise NotFoundError(
            f"task {id} is not in the history of ended tasks: 'task-run list --ended' shows it"
        )
    if kept.task.state not in FAILED:
        raise ConflictError(
            f"task {id} is {kept.task.state}: only failed tasks are submitted again"
        )
    repeat = repeat_of_end(history.namespace, id, kept.life)
    await client.live_config.refresh()
    await _check_letter(kept, client, letters)
    envelope = _readable(kept, client)
    await _check_repeat(id, repeat, client, history)
    submission = client.envelopes.prepare_again(
        envelope.name, envelope.args, repeat, labels=envelope.labels, callback_of=envelope.group
    )
    durable = client.registry.get(envelope.name).cls.durable
    handle = await client.send(submission, durable=durable)
    if handle != repeat.id:
        raise ConflictError(f"task {id} was not submitted again: task {handle} has its unique key")
    if not handle.created:  # a concurrent call was faster, or another task has the id
        await _check_repeat(id, repeat, client, history)
    return handle


async def _check_letter(
    kept: Kept, client: Client, letters: Callable[[], Awaitable[DeadLetters]]
) -> None:
    """Raise `ConflictError` if the task is a dead letter, which has a command of its own."""
    task_class = client.registry.find(kept.task.name)
    overrides = client.live_config.overrides
    if task_class is None or not any(
        overrides.effective(task_class, vo).dlq_eligible for vo in overrides.vos
    ):
        return
    rows = await (await letters()).list(limit=1, task_id=kept.task.id)
    if rows:
        raise ConflictError(
            f"task {kept.task.id} is a dead letter: 'task-run dlq resubmit {rows[0].id}' submits it"
        )


def _readable(kept: Kept, client: Client) -> Envelope:
    id, name = kept.task.id, kept.task.name
    if kept.task.reason == "quarantined":
        raise ConflictError(
            f"task {id} was quarantined: 'task-run quarantine list' shows its entry, and "
            "'task-run quarantine retry ENTRY' submits it"
        )
    if not kept.envelope:
        raise ConflictError(
            f"the arguments of task {id} were not kept, because they are large: 'task-run submit "
            f"{name} --args …' submits it with the arguments that you type"
        )
    try:
        envelope = client.envelopes.read_again(id, kept.envelope)
    except MalformedMessageError as error:
        raise ConflictError(f"task {id} was not submitted again: {error}") from None
    if problem := format_problem(envelope.version):
        raise ConflictError(
            f"task {id} was written by another release ({problem}): submit it with that one"
        )
    return envelope


async def _check_repeat(id: str, repeat: Repeat, client: Client, history: History) -> None:
    """Raise `ConflictError` if the task was submitted again before, as far as that is known."""
    known = await client.recognise(repeat.id)
    if known is None and (ended := await history.find(repeat.id)) is not None:
        known = Known(ended.task.state, repeat.mark)
    if known is None:
        return
    if known.mark != repeat.mark:
        raise ConflictError(
            f"task {id} was not submitted again: another task has the id {repeat.id}"
        )
    again = f"; 'task-run resubmit {repeat.id}' submits that one" if known.state in FAILED else ""
    raise ConflictError(
        f"task {id} was submitted again already: task {repeat.id} is {known.state}{again}"
    )

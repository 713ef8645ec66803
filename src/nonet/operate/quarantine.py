"""What is in the quarantine, and after all is a task: submitted again, once."""

from __future__ import annotations

from typing import Any

from nonet.base.errors import ConflictError, MalformedMessageError, NotFoundError
from nonet.client.client import Client
from nonet.messages.formats import format_problem
from nonet.messages.message import Envelope
from nonet.messages.repetition import repeat_of_entry
from nonet.stores.namespace.quarantine import FAILED_STATES, Quarantine, Quarantined, other_task
from nonet.tasks.handles import Handle


async def retry(entry: str, client: Client, quarantine: Quarantine, who: str) -> Handle[Any]:
    """Submit an entry of the quarantine as a new task, once, and take it out.

    Args:
        entry: its id.
        who: does this, for the event stream.

    Raises:
        NotFoundError: there is no such entry, and nothing is known of its task.
        ConflictError: it is no task for this process: its signature, class or bytes do not fit;
            or it was submitted before, and that task has failed; or another task has its id.
        UnknownTaskError: its class is not registered.
        InvalidArgumentsError: its class refuses its arguments.
        LimitImpossible: it counts for more than a limiter allows now.
    """
    repeat = repeat_of_entry(quarantine.namespace, entry)
    known = await client.recognise(repeat.id)
    if known is not None and known.mark != repeat.mark:
        raise other_task(entry, repeat.id, known.state)
    if known is not None and known.state in FAILED_STATES:
        raise _failed_before(entry, repeat.id, known.state)
    try:
        item = await quarantine.get(entry)
    except NotFoundError:
        if known is None:
            raise
        return Handle(repeat.id, client, created=False)
    envelope = readable(item, client)
    await client.live_config.refresh()
    submission = client.envelopes.prepare_again(
        envelope.name, envelope.args, repeat, labels=envelope.labels, callback_of=envelope.group
    )
    durable = client.registry.get(envelope.name).cls.durable
    # A row in SQL first: who fails in between finds the entry still there, and the same id.
    kept = await client.send(submission, durable=True) if durable else None
    state = await quarantine.retry(entry, submission, who)
    if state in FAILED_STATES:
        raise _failed_before(entry, repeat.id, state)
    return Handle(repeat.id, client, not state or (kept is not None and kept.created))


def _failed_before(entry: str, id: str, state: str) -> ConflictError:
    return ConflictError(
        f"entry {entry} was submitted again before: its task {id} is {state} "
        f"('task-run status {id}' says why); it can be submitted once more when nothing is known "
        "of that task any longer, after NONET_RESULT_TTL"
    )


def readable(item: Quarantined, client: Client) -> Envelope:
    """The envelope of an entry, if a worker with the settings of this process would take it.

    Raises:
        ConflictError: it would not; the message says why.
    """
    if not item.is_whole:
        raise ConflictError(
            f"entry {item.entry} had {item.size} bytes, of which {len(item.data)} are kept: it "
            "can only be discarded"
        )
    if item.is_pointer:
        raise ConflictError(
            f"entry {item.entry} is no task here: a stream held it in place of a pointer to one, "
            "and it is no envelope; it can only be discarded"
        )
    try:
        envelope = client.envelopes.read_again(item.task_id, item.data)
    except MalformedMessageError as error:
        raise ConflictError(f"entry {item.entry} is no task here: {error}") from None
    if problem := format_problem(envelope.version):
        raise ConflictError(
            f"entry {item.entry} is of another release ({problem}): retry it with that one"
        )
    return envelope

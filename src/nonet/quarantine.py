"""What is in the quarantine, and after all is a task: submitted again, once."""

from __future__ import annotations

from nonet.client import Client, Handle
from nonet.errors import ConflictError, MalformedMessageError, NotFoundError
from nonet.message import VERSION, Envelope
from nonet.stores.quarantine import Quarantine, Quarantined


async def retry(entry: str, client: Client, quarantine: Quarantine, who: str) -> Handle:
    """Submit an entry of the quarantine as a new task, once, and take it out.

    Args:
        entry: its id.
        who: does this, for the event stream.

    Raises:
        NotFoundError: there is no such entry, and nothing is known of its task.
        ConflictError: it is no task for this process: its signature, class or bytes do not fit.
        UnknownTaskError: its class is not registered.
        InvalidArgumentsError: its class refuses its arguments; or this is no id of an entry.
        LimitImpossible: it counts for more than a limiter allows now.
    """
    id = retry_id(entry)
    try:
        item = await quarantine.get(entry)
    except NotFoundError:
        if await client.results.status(id) is None:
            raise
        return Handle(id, client, created=False)
    envelope = readable(item, client)
    submission = client.prepare_again(
        envelope.name, envelope.args, id=id, labels=envelope.labels, callback_of=envelope.group
    )
    durable = client.registry.get(envelope.name).cls.durable
    # A row in SQL first: who fails in between finds the entry still there, and the same id.
    kept = await client.send(submission, durable=True) if durable else None
    created = await quarantine.retry(entry, submission, who)
    return Handle(id, client, created or (kept is not None and kept.created))


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
    try:
        envelope = client.read(item.task_id, item.data)
    except MalformedMessageError as error:
        raise ConflictError(f"entry {item.entry} is no task here: {error}") from None
    if envelope.version > VERSION:
        raise ConflictError(
            f"entry {item.entry} is of a newer release (envelope version {envelope.version}): "
            "retry it with that one"
        )
    return envelope


def retry_id(entry: str) -> str:
    """Id of the task that an entry becomes: one per entry, so that it runs once.

    >>> retry_id("1767225600000-0")
    'q-1767225600000-0'
    """
    return f"q-{entry}"

"""Read quarantined messages, and submit those that are valid tasks after all."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from nonet.base.errors import ConflictError, MalformedMessageError, NotFoundError
from nonet.client.client import Client
from nonet.messages.documents import decrypted_arguments
from nonet.messages.encryption import NO_KEYS, Cipher
from nonet.messages.formats import format_problem
from nonet.messages.message import Envelope, decode_envelope
from nonet.messages.repetition import repeat_of_entry
from nonet.rules.findings import remedies
from nonet.stores.namespace.quarantine import FAILED_STATES, Quarantine, Quarantined, other_task
from nonet.tasks.handles import Handle

PREVIEW_BYTES = 512
_PER_LINE = 16


def claimed(item: Quarantined, cipher: Cipher = NO_KEYS) -> Envelope | None:
    """Return what an entry claims to be; its signature is not checked. None: it is no envelope.

    Args:
        cipher: decrypts its arguments. They stay encrypted if it cannot.
    """
    try:
        envelope = decode_envelope(item.data)
    except MalformedMessageError:
        return None
    with suppress(MalformedMessageError):  # or their key is missing here
        args = decrypted_arguments(envelope.args, envelope.id, cipher)
        return replace(envelope, args=args)
    return envelope


def dump(data: bytes) -> list[str]:
    """Format bytes as hexadecimal digits and ASCII characters, 16 in a line.

    >>> dump(b"a\\0<")
    ['0000  61 00 3c                                         a.<']
    """
    lines = []
    for start in range(0, len(data), _PER_LINE):
        part = data[start : start + _PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:04x}  {part.hex(' '):<{3 * _PER_LINE}} {text}")
    return lines


async def retry(entry: str, client: Client, quarantine: Quarantine, who: str) -> Handle[Any]:
    """Submit an entry of the quarantine as a new task, once, and remove the entry.

    Args:
        entry: id of the entry.
        who: the operator, for the event stream.

    Raises:
        NotFoundError: there is no such entry, and its task is unknown too.
        ConflictError: a worker would reject the message (its bytes, signature or release); or it
            was submitted before and that task failed; or another task has its id.
        UnknownTaskError: the class is not registered.
        InvalidArgumentsError: the class rejects the arguments.
        LimitImpossible: the task needs more of a limiter than its limit.
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
    # Write the SQL row first. After a crash in between, the entry is still in the quarantine, and
    # a retry submits the same id.
    kept = await client.send(submission, durable=True) if durable else None
    state = await quarantine.retry(entry, submission, who)
    if state in FAILED_STATES:
        raise _failed_before(entry, repeat.id, state)
    return Handle(repeat.id, client, not state or (kept is not None and kept.created))


def _failed_before(entry: str, id: str, state: str) -> ConflictError:
    show = remedies.of_task("status", id)
    return ConflictError(
        f"entry {entry} was submitted before, and its task {id} is {state} ('{show}' "
        "says why); it can be submitted again when that result expires, after NONET_RESULT_TTL"
    )


def readable(item: Quarantined, client: Client) -> Envelope:
    """Return the envelope of an entry, checked as by a worker with the settings of this process.

    Raises:
        ConflictError: a worker would reject it; the message says why.
    """
    if not item.is_whole:
        raise ConflictError(
            f"entry {item.entry} is truncated: {len(item.data)} of {item.size} bytes were kept; it "
            "can only be discarded"
        )
    if item.is_pointer:
        raise ConflictError(
            f"entry {item.entry} is not a valid task: it was a stream entry without a pointer to a "
            "task; it can only be discarded"
        )
    try:
        envelope = client.envelopes.read_again(item.task_id, item.data)
    except MalformedMessageError as error:
        raise ConflictError(f"entry {item.entry} is not a valid task: {error}") from None
    if problem := format_problem(envelope.version):
        raise ConflictError(
            f"entry {item.entry} was written by another release ({problem}): retry it with that one"
        )
    return envelope

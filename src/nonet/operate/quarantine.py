"""The quarantine: list messages that are not valid tasks, discard them, or retry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from nonet.base.actor import who
from nonet.base.errors import ConflictError, MalformedMessageError, NotFoundError
from nonet.base.messages.documents import decrypted_arguments
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.base.messages.formats import format_problem
from nonet.base.messages.message import Envelope, decode_envelope
from nonet.base.messages.repetition import repeat_of_entry
from nonet.base.plain import instant
from nonet.operate.audited import audited
from nonet.operate.lists import ListQuery, Page, opened, sealed, view_of
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action
from nonet.stores.namespace.quarantine import FAILED_STATES, Quarantined, other_task
from nonet.tasks.secrecy import mask_names, masked_arguments

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.stores import Stores
    from nonet.tasks.registry import Registry

_View = TypeVar("_View", bound="EntryView")
_PREVIEW_BYTES = 512
_PER_LINE = 16


@dataclass(frozen=True, slots=True)
class Claims:
    """What an envelope says of its task; its signature is not checked.

    Attributes:
        version: format of the message.
        id: of the task.
        name: full name of its class.
        parent: the task that submitted it, or empty.
        group: the group whose callback it is, or empty.
        submitted: by the clock of its client; null: it has no such time.
    """

    version: int
    id: str
    name: str
    parent: str
    group: str
    submitted: datetime | None


@dataclass(frozen=True, slots=True)
class EntryView:
    """A message in the quarantine, without its content.

    Attributes:
        entry: its id.
        at: when it was quarantined.
        reason: why it is not a valid task.
        task_id: id of the task whose record was found with it, or empty.
        stream: from which it was read, and `stream_entry` where.
        size: original length in bytes, of which `kept` were kept.
        claims: null: it is no envelope.
    """

    entry: str
    at: datetime
    reason: str
    task_id: str
    stream: str
    stream_entry: str
    size: int
    kept: int
    claims: Claims | None

    @property
    def says(self) -> str:
        """The class that it says it has, or empty."""
        return self.claims.name if self.claims else ""


@dataclass(frozen=True, slots=True)
class EntryInFull(EntryView):
    """A message in the quarantine, and whether it can be retried.

    Attributes:
        refused: why this process would not submit it; empty: nothing is known against it.
    """

    refused: str


@dataclass(frozen=True, slots=True)
class Entries(Page[EntryView]):
    """Messages in the quarantine, the newest first.

    Attributes:
        total: how many were quarantined since Redis was last empty.
    """

    total: int = 0


@dataclass(frozen=True, slots=True)
class Content:
    """What a quarantined message contains.

    Attributes:
        arguments: of an envelope, with secret ones masked; null: it is none.
        labels: of an envelope, with secret ones masked.
        preview: hexadecimal digits of its first 512 bytes, unmasked, if it is no envelope.
    """

    arguments: Mapping[str, Any] | None
    labels: Mapping[str, Any] | None
    preview: str


@dataclass(frozen=True, slots=True)
class Retried:
    """The task of a message that was submitted.

    Attributes:
        id: of the task.
        created: false: it was submitted before.
    """

    id: str
    created: bool


async def find(stores: Stores, query: ListQuery) -> Entries:
    """Return quarantined messages, the newest first, without their bytes."""
    newest = stores.quarantine.newest(query.limit + 1, before=opened(query.cursor))
    found = [item async for item in newest]
    last = found[query.limit - 1].entry if len(found) > query.limit else ""
    return Entries(
        [_view(EntryView, item) for item in found[: query.limit]],
        sealed(last),
        await stores.quarantine.count_since_loss(),
    )


async def get(client: Client, entry: str) -> EntryInFull:
    """Return one message, without its bytes.

    Raises:
        NotFoundError: there is no such entry, or the id is malformed.
    """
    item, refused = await client.stores.quarantine.get(entry), ""
    try:
        _readable(item, client)
    except ConflictError as error:
        refused = str(error)
    return _view(EntryInFull, item, refused=refused)


@audited(Action.REVEAL, "quarantined message {entry}")
async def reveal(client: Client, entry: str, registry: Registry) -> Content:
    """Return what a message contains.

    Args:
        registry: has the classes whose arguments are not all secret.

    Raises:
        NotFoundError: there is no such entry, or the id is malformed.
    """
    item = await client.stores.quarantine.get(entry)
    envelope = _claimed(item, client.cipher)
    if envelope is None:
        return Content(None, None, item.data[:_PREVIEW_BYTES].hex())
    # An envelope's bytes would show what is masked in its arguments.
    found = registry.find(envelope.name)
    arguments = masked_arguments(envelope.args, found.cls if found else None)
    return Content(arguments, mask_names(envelope.labels), "")


@audited(Action.DISCARD, "quarantined message {entries}: {why}")
async def discard(stores: Stores, entries: Sequence[str], why: str = "") -> list[str]:
    """Delete messages for good; return those that were there.

    Raises:
        NotFoundError: none was there, or an id is malformed.
    """
    done = await stores.quarantine.discard(entries, who(), why)
    gone = [entry for entry, was_there in zip(entries, done, strict=True) if was_there]
    if entries and not gone:
        raise NotFoundError(
            f"the quarantine has no entry {', '.join(entries)}: it was discarded or retried; see "
            "'task-run quarantine list'"
        )
    return gone


def _view(kind: type[_View], item: Quarantined, **more: str) -> _View:
    envelope, claims = _claimed(item), None
    if envelope is not None:
        claims = view_of(
            Claims,
            envelope,
            parent=envelope.parent or "",
            group=envelope.group or "",
            submitted=instant(envelope.submitted),
        )
    return view_of(kind, item, kept=min(len(item.data), item.size), claims=claims, **more)


def _claimed(item: Quarantined, cipher: Cipher = NO_KEYS) -> Envelope | None:
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


@audited(Action.RESUBMIT, "quarantined message {entry}")
async def retry(client: Client, entry: str) -> Retried:
    """Submit an entry of the quarantine as a new task, once, and remove the entry.

    Raises:
        NotFoundError: there is no such entry, and its task is unknown too.
        ConflictError: a worker would reject the message (its bytes, signature or release); or it
            was submitted before and that task failed; or another task has its id.
        UnknownTaskError: the class is not registered.
        InvalidArgumentsError: the class rejects the arguments.
        LimitImpossible: the task needs more of a limiter than its limit.
    """
    quarantine = client.stores.quarantine
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
        return Retried(repeat.id, created=False)
    envelope = _readable(item, client)
    await client.live_config.refresh()
    submission = client.envelopes.prepare_again(
        envelope.name, envelope.args, repeat, labels=envelope.labels, callback_of=envelope.group
    )
    durable = client.registry.get(envelope.name).cls.durable
    # Write the SQL row first. After a crash in between, the entry is still in the quarantine, and
    # a retry submits the same id.
    kept = await client.send(submission, durable=True) if durable else None
    state = await quarantine.retry(entry, submission, who())
    if state in FAILED_STATES:
        raise _failed_before(entry, repeat.id, state)
    return Retried(repeat.id, not state or (kept is not None and kept.created))


def _failed_before(entry: str, id: str, state: str) -> ConflictError:
    show = remedies.of_task("status", id)
    return ConflictError(
        f"entry {entry} was submitted before, and its task {id} is {state} ('{show}' "
        "says why); it can be submitted again when that result expires, after NONET_RESULT_TTL"
    )


def _readable(item: Quarantined, client: Client) -> Envelope:
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

"""Write dead letters to SQL, and resubmit them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from nonet.base.errors import (
    ConfigurationError,
    ConflictError,
    MalformedMessageError,
    NonetError,
    NotFoundError,
    ServerUnreachableError,
)
from nonet.client.client import Client
from nonet.messages.documents import are_encrypted, decrypted_arguments, key_of
from nonet.messages.encryption import NO_KEY, NO_KEYS, UNREADABLE, Cipher
from nonet.messages.formats import FORMAT
from nonet.messages.message import (
    Envelope,
    ErrorDocument,
    decode,
    decode_envelope,
    decode_error,
    encode,
    pack,
)
from nonet.messages.repetition import Known, Progress, Repeat, Step, next_step
from nonet.rules.findings import remedies
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import Handle
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import BaseTask

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters, LetterFilter, NewDeadLetter
    from nonet.tasks.retry import RetryPolicyBase

logger = logging.getLogger(__name__)

_LARGEST_INT = 2**31 - 1
_LARGEST_ROW = 2**63 - 1
_END_OF_TIME = 253_402_300_800  # the year 10000, which databases reject


async def resubmit(
    row_id: int,
    client: Client,
    letters: DeadLetters,
    *,
    again: bool = False,
    at_time: datetime | None = None,
) -> Handle[Any]:
    """Submit a dead letter again as a new task; concurrent calls submit one task only.

    The row becomes ``DISPATCHED`` once Redis, or SQL for a durable class, has the task. After a
    crash before that, the row is still ``PENDING``, but already has the id of the new task, which
    may have been submitted.

    Args:
        row_id: number of the row.
        again: submit it even if it was resubmitted before, unless the new task is live or done;
            or if another task has its new id.
        at_time: when the new task starts; None: now. The `start_by` of its class counts from then.

    Raises:
        NotFoundError: the namespace has no such row.
        ConflictError: it was resubmitted already, another task has its id, its bytes are not a
            task, or they are encrypted and this process has no key for them. This and the following
            errors leave the row unchanged.
        UnknownTaskError: the class is not registered.
        InvalidArgumentsError: the class rejects the arguments.
    """
    letter = await letters.get(row_id)
    if (pipeline := letter.pipeline) is not None:
        return await _resume(letter, pipeline, client, letters, again=again, at_time=at_time)
    args = _readable_arguments(letter, client)
    await client.live_config.refresh()
    repeat, step, known = await _look(letter, client, again)
    if step.is_refusal:
        raise _refusal(letter, repeat, step, known)
    submission = client.envelopes.prepare_again(
        letter.task_class, args, repeat, labels=letter.labels, at_time=at_time
    )
    await letters.claim(letter, repeat.id, repeat.resubmissions)
    created = False
    if step is Step.SUBMIT:
        try:
            created = await _submit(letter, repeat, submission, client)
        except (ServerUnreachableError, _UnsureError):
            raise  # the task may have been submitted, so keep its id in the row
        except NonetError:
            with suppress(NonetError):  # report the first error
                await letters.release(letter, repeat.id)
            raise
    # Another operator may have changed the row; the task is submitted.
    with suppress(NotFoundError, ConflictError):
        await letters.dispatch(letter.id, repeat.id)
    return Handle(repeat.id, client, created=created)


def _readable_arguments(letter: DeadLetter, client: Client) -> Any:
    """Return the arguments of a letter.

    Raises:
        ConflictError: it is no task, or this process has no key for it.
    """
    if not letter.task_class:
        raise ConflictError(
            f"dead letter {letter.id} holds bytes that could not be decoded, not a task: "
            "it can only be discarded"
        )
    args = decode(letter.task_args)
    if are_encrypted(args):
        raise ConflictError(
            f"dead letter {letter.id} was not submitted: it is {_closed(args, client.cipher)}"
        )
    return args


async def _resume(
    letter: DeadLetter,
    pipeline: str,
    client: Client,
    letters: DeadLetters,
    *,
    again: bool,
    at_time: datetime | None,
) -> Handle[Any]:
    """Make the row of a letter due again. Repeating it after a crash is harmless."""
    if letter.status != "PENDING" and not again:
        raise ConflictError(
            f"dead letter {letter.id}: the row was made due again already; "
            f"'task-run dlq resubmit --again {letter.id}' does it once more"
        )
    await letters.claim(letter, letter.task_id, letter.resubmissions + 1)
    try:
        await client.resume_row(pipeline, letter.row_key or "", at_time)
    except NonetError:
        with suppress(NonetError):  # report the first error
            await letters.release(letter, letter.task_id)
        raise
    with suppress(NotFoundError, ConflictError):  # another operator changed the letter
        await letters.dispatch(letter.id, letter.task_id)
    return Handle(letter.task_id, client)


async def _look(
    letter: DeadLetter, client: Client, again: bool
) -> tuple[Repeat, Step, Known | None]:
    """Find the next repeat of a letter, and the step that its resubmission needs."""
    repeat = letter.identity.repeat(letter.resubmissions, row=letter.id)
    progress = Progress(letter.status, letter.resubmitted_as or "")
    known = await client.recognise(repeat.id)
    step = next_step(progress, repeat, known, again=again)
    while step is Step.RAISE:
        repeat = letter.identity.repeat(repeat.resubmissions + 1, row=letter.id)
        known = await client.recognise(repeat.id)
        step = next_step(Progress("PENDING", ""), repeat, known, again=again)
    return repeat, step, known


async def _submit(
    letter: DeadLetter, repeat: Repeat, submission: Submission, client: Client
) -> bool:
    """Submit a repeat; return False if another process has submitted it."""
    durable = client.registry.get(letter.task_class).cls.durable
    handle = await client.send(submission, durable=durable)
    if handle != repeat.id:
        raise ConflictError(
            f"dead letter {letter.id} was not submitted: task {handle} has its unique key"
        )
    if handle.created:
        return True
    known = await client.recognise(repeat.id)
    step = next_step(Progress("PENDING", repeat.id), repeat, known, again=False)
    if step is not Step.RECORD:
        raise _refusal(letter, repeat, step, known)
    return False


class _UnsureError(ConflictError):
    """It is unknown whether the repeat was submitted."""


def _refusal(letter: DeadLetter, repeat: Repeat, step: Step, known: Known | None) -> ConflictError:
    """Return the error for a letter that is not resubmitted, with the next step."""
    id, state = repeat.id, known.state if known else ""
    again = f"'task-run dlq resubmit --again {letter.id}'"
    before = f"dead letter {letter.id} was submitted again already"
    match step:
        case Step.LIVE | Step.DONE:
            return ConflictError(f"{before}: task {id} is {state}")
        case Step.ENDED:
            return ConflictError(f"{before}: task {id} is {state}; {again} submits it once more")
        case Step.FORGOTTEN:
            return ConflictError(
                f"{before}, as task {id}, which is unknown by now; if it never ran, {again} "
                "submits it"
            )
        case Step.UNSURE:
            return _UnsureError(
                f"dead letter {letter.id} was about to be submitted again as task {id}, which is "
                "unknown: another process is submitting it now, or failed to; if it never ran, "
                f"{again} submits it"
            )
        case Step.FOREIGN:
            show = remedies.of_task("status", id)
            return ConflictError(
                f"dead letter {letter.id} was not submitted: its id {id} belongs to another task, "
                f"which is {state} ('{show}'); {again} submits it under another id"
            )
    return ConflictError(
        f"dead letter {letter.id} is {letter.status}: its resubmitted task {id} died as well, and "
        "has a row of its own; resubmit that one"
    )


def letter_fields(
    registry: Callable[[], Registry], *, task: str | None, cluster: str | None, **others: Any
) -> dict[str, Any]:
    """Return the fields of a `LetterFilter` that are given; empty and None: any.

    Args:
        registry: finds the full name of a class that is given by its bare name.
        cluster: a fingerprint.
        others: fields of `LetterFilter`.

    Raises:
        UnknownTaskError: no class has this bare name.
    """
    name = registry().get(task).name if task and ":" not in task else task
    found = {**others, "task_class": name, "fingerprints": (cluster,) if cluster else None}
    return {name: value for name, value in found.items() if value}


def letter_filter(registry: Callable[[], Registry], **given: Any) -> LetterFilter:
    """Return the filter for what was given; see `letter_fields`."""
    from nonet.stores.sql.dead_letters import LetterFilter  # slow to import: 170 ms

    return LetterFilter(**letter_fields(registry, **given))


def arguments_of(letter: DeadLetter, registry: Registry) -> dict[str, Any] | None:
    """Return the arguments of a letter by name, with secret ones masked.

    All of them are masked if the class is not registered here; the key of a row is not.

    Returns:
        None if they cannot be read; `why_unknown` says why.
    """
    from nonet.tasks.secrecy import masked_arguments  # it imports pydantic

    if not letter.task_class:
        return None
    found = registry.find(letter.task_class)
    if letter.row_key is not None:
        return {"key": letter.row_key}
    try:
        args = decode(letter.task_args)
    except MalformedMessageError:
        return None
    return None if are_encrypted(args) else masked_arguments(args, found.cls if found else None)


def why_unknown(letter: DeadLetter, cipher: Cipher) -> str:
    """Return why `arguments_of` has returned None for a letter."""
    try:
        args = decode(letter.task_args)
    except MalformedMessageError:
        args = {}
    return f"they are {_closed(args, cipher)}" if are_encrypted(args) else "they cannot be decoded"


def _closed(args: dict[str, Any], cipher: Cipher) -> str:
    return UNREADABLE if key_of(args) in cipher.keys else NO_KEY


def dead_letter(
    delivery: Delivery,
    document: ErrorDocument,
    history: list[bytes],
    registry: Registry,
    policy: RetryPolicyBase | None,
    *,
    cipher: Cipher = NO_KEYS,
) -> NewDeadLetter:
    """Create the row for a task that failed for good. What is encrypted stays so.

    Args:
        document: the last error.
        history: encoded error documents of earlier attempts, oldest first.
        policy: the effective retry policy of the class; None if the class is unknown.
        cipher: decrypts the arguments, which may name the VO.
    """
    from nonet.stores.sql.dead_letters import NewDeadLetter  # slow to import: 170 ms

    try:
        envelope = decode_envelope(delivery.envelope)
    except MalformedMessageError:
        envelope = Envelope(FORMAT, delivery.id, "", {}, {}, 0.0)
    task_class = registry.find(envelope.name)
    task = _task(task_class, envelope, cipher) if task_class else None
    return NewDeadLetter(
        task_id=delivery.id,
        generation=int(delivery.died or delivery.gen),
        task_class=envelope.name,
        task_args=encode(pack(envelope.args)) if envelope.name else delivery.envelope,
        submitted_at=datetime.fromtimestamp(envelope.submitted, UTC),
        reason=document.reason,
        retry_count=max(0, document.attempt - 1),
        max_retries=_max_retries(policy),
        last_attempted_at=datetime.fromtimestamp(document.at, UTC)
        if 0 < document.at < _END_OF_TIME
        else None,
        error_type=document.error_type,
        error_message=document.error,
        traceback=document.traceback,
        history=[_attempt(item) for item in [*_readable(history), document]],
        labels=envelope.labels,
        parent_id=envelope.parent or None,
        resubmitted_from=envelope.resubmitted_from
        if 0 < envelope.resubmitted_from <= _LARGEST_ROW
        else None,
        vo=_vo(task, envelope) or None,
    )


async def write(letter: NewDeadLetter, store: DeadLetters) -> int:
    """Write a letter. If its task was a resubmission, mark the original letter as failed.

    Writing a letter again changes nothing.

    Returns:
        The number of the row.

    Raises:
        ServerUnreachableError: SQL does not answer.
        ConfigurationError: SQL rejects every letter.
    """
    try:
        row = await store.add(letter)
    except (ServerUnreachableError, ConfigurationError):
        raise
    except Exception as error:  # SQL rejects a value of this task, such as an odd label
        logger.error(
            "dead letter written without optional fields: task=%s: %s", letter.task_id, error
        )
        cut = dataclasses.replace(letter, labels={}, history=(), vo=None, max_retries=None)
        row = await store.add(cut)
    if letter.resubmitted_from is not None:
        # This changes nothing if the row is gone or now holds another letter.
        await store.mark_failed(letter.resubmitted_from, letter.task_id)
    return row


def _attempt(document: ErrorDocument) -> dict[str, Any]:
    """Return one failed attempt, with its known resource usage."""
    usage = asdict(document.usage) if document.usage else {}
    return {
        "attempt": document.attempt,
        "at": document.at,
        "error": f"{document.error_type}: {document.error}",
        **{name: value for name, value in usage.items() if value is not None},
    }


def _readable(history: list[bytes]) -> Iterator[ErrorDocument]:
    for item in history:
        with suppress(MalformedMessageError):  # the letter is written without it
            yield decode_error(item)


# Below, code of the task class may raise anything, even SystemExit. The letter is written anyway.


def _max_retries(policy: RetryPolicyBase | None) -> int | None:
    if policy is None:
        return None
    from nonet.tasks.retry import NoRetry  # imports pydantic

    try:
        retries = getattr(policy, "max_retries", 0 if isinstance(policy, NoRetry) else None)
        return min(retries, _LARGEST_INT) if isinstance(retries, int) else None
    except BaseException:
        return None


def _task(task_class: TaskClass, envelope: Envelope, cipher: Cipher) -> BaseTask | None:
    try:
        args = decrypted_arguments(envelope.args, envelope.id, cipher)
        built: BaseTask = task_class.arguments.build(args)
    except BaseException:
        return None
    return built


def _vo(task: BaseTask | None, envelope: Envelope) -> str:
    try:
        vo = envelope.args.get("vo") if task is None else getattr(task, "vo", None)
        return str(vo or envelope.labels.get("vo") or "")[:255]
    except BaseException:
        return ""

"""Dead letters on their way to SQL and back: what is written of a task, and its resubmission."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from nonet.client import Client
from nonet.errors import (
    ConflictError,
    MalformedMessageError,
    NonetError,
)
from nonet.handles import Handle
from nonet.message import (
    VERSION,
    Envelope,
    ErrorDocument,
    decode,
    decode_envelope,
    decode_error,
    encode,
    pack,
)
from nonet.registry import Registry, TaskClass
from nonet.retry import NoRetry, RetryPolicyBase
from nonet.stores.deliveries import Delivery
from nonet.stores.submissions import Submission
from nonet.task import BaseTask

if TYPE_CHECKING:
    from nonet.stores.dead_letters import DeadLetter, DeadLetters, NewDeadLetter

# Ids of resubmitted dead letters, see `resubmission_id`.
_REPEATED = re.compile(r"dlq-(\d{1,15})")
_LARGEST_INT = 2**31 - 1
_END_OF_TIME = 253_402_300_800  # the year 10000, which no database takes


async def resubmit(
    row_id: int, client: Client, letters: DeadLetters, *, again: bool = False
) -> Handle[Any]:
    """Submit a dead letter again, as a new task, once, whoever else tries to.

    Args:
        row_id: its row in the table.
        again: also if that was done before and nothing is known of the task: Redis has lost
            it, its result has expired, or who marked the row died before submitting.

    Raises:
        NotFoundError: no such row.
        ConflictError: it was submitted again already, or is no task at all.
        UnknownTaskError: its class is not registered; the row stays as it is.
        InvalidArgumentsError: its class refuses its arguments now; the row stays as it is.
    """
    letter = await letters.get(row_id)
    await client.live_config.refresh()
    submission = _repetition(letter, client)
    if letter.status == "DISPATCHED":
        await _check_again(letter, submission.id, client, again)
    await letters.claim(row_id, submission.id)
    try:
        task_class = client.registry.get(letter.task_class)
        handle = await client.send(submission, durable=task_class.cls.durable)
        if handle != submission.id:
            raise ConflictError(
                f"dead letter {letter.id} was not submitted: task {handle} has its unique key"
            )
        return handle
    except BaseException:
        with suppress(NonetError):  # what failed first matters more
            await letters.unclaim(row_id, submission.id)
        raise


def _repetition(letter: DeadLetter, client: Client) -> Submission:
    if not letter.task_class:
        raise ConflictError(
            f"dead letter {letter.id} holds bytes that could not be decoded, not a task: "
            "it can only be discarded"
        )
    # One id for each row: the second of two operators submits what is there already.
    return client.envelopes.prepare_again(
        letter.task_class,
        decode(letter.task_args),
        id=resubmission_id(letter.id),
        labels=letter.labels,
    )


async def _check_again(letter: DeadLetter, id: str, client: Client, again: bool) -> None:
    known = await client.results.status(id)
    if known is not None:
        raise ConflictError(
            f"dead letter {letter.id} was submitted again already: task {id} is {known.state}"
        )
    if not again:
        raise ConflictError(
            f"dead letter {letter.id} was submitted again already, as task {id}, of which "
            "nothing is known any more; if it never ran, "
            f"'task-run dlq resubmit --again {letter.id}' submits it"
        )


def resubmission_id(row: int) -> str:
    """Id of the task that repeats a dead letter: one per row, so that it runs once.

    >>> resubmission_id(7)
    'dlq-7'
    """
    return f"dlq-{row}"


def dead_letter(
    delivery: Delivery,
    document: ErrorDocument,
    history: list[bytes],
    registry: Registry,
    policy: RetryPolicyBase | None,
) -> NewDeadLetter:
    """What is written to SQL about a task that failed for good.

    Args:
        policy: the retry policy that holds for its class; None: the class is unknown.
        document: its last error.
        history: encoded error documents of the attempts before, oldest first.
    """
    from nonet.stores.dead_letters import NewDeadLetter  # SQL costs 170 ms to import

    try:
        envelope = decode_envelope(delivery.envelope)
    except MalformedMessageError:
        envelope = Envelope(VERSION, delivery.id, "", {}, {}, 0.0)
    task_class = registry.find(envelope.name)
    task = _task(task_class, envelope) if task_class else None
    repeated = _REPEATED.fullmatch(delivery.id)
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
        resubmitted_from=int(repeated[1]) if repeated else None,
        vo=_vo(task, envelope) or None,
    )


def reduced(letter: NewDeadLetter) -> NewDeadLetter:
    """The letter without what an author made and a database may refuse."""
    return dataclasses.replace(letter, labels={}, history=(), vo=None, max_retries=None)


def _attempt(document: ErrorDocument) -> dict[str, Any]:
    """What is kept of one failed attempt; of what it took, as far as that is known."""
    taken = asdict(document.usage) if document.usage else {}
    return {
        "attempt": document.attempt,
        "at": document.at,
        "error": f"{document.error_type}: {document.error}",
        **{name: value for name, value in taken.items() if value is not None},
    }


def _readable(history: list[bytes]) -> Iterator[ErrorDocument]:
    for item in history:
        with suppress(MalformedMessageError):  # the letter matters more
            yield decode_error(item)


# The author's code may raise anything; the letter matters more, and the worker.


def _max_retries(policy: RetryPolicyBase | None) -> int | None:
    if policy is None:
        return None
    try:
        retries = getattr(policy, "max_retries", 0 if isinstance(policy, NoRetry) else None)
        return min(retries, _LARGEST_INT) if isinstance(retries, int) else None
    except BaseException:
        return None


def _task(task_class: TaskClass, envelope: Envelope) -> BaseTask | None:
    try:
        built: BaseTask = task_class.arguments.build(envelope.args)
    except BaseException:
        return None
    return built


def _vo(task: BaseTask | None, envelope: Envelope) -> str:
    try:
        vo = getattr(task, "vo", None)
        return str(vo or envelope.labels.get("vo") or "")[:255]
    except BaseException:
        return ""

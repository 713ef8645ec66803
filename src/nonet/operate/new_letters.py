"""Write the dead letters of tasks that failed for good."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from nonet.base.errors import ConfigurationError, MalformedMessageError, ServerUnreachableError
from nonet.base.messages.documents import decrypted_arguments
from nonet.base.messages.encryption import NO_KEYS, Cipher, is_encrypted_text
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import (
    Envelope,
    ErrorDocument,
    decode_envelope,
    decode_error,
    encode,
    pack,
)
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import BaseTask

if TYPE_CHECKING:
    from nonet.rules.letters import NewDeadLetter
    from nonet.stores.sql.dead_letters import DeadLetters
    from nonet.tasks.retry import RetryPolicyBase

logger = logging.getLogger(__name__)

# A row has this much of the log of each attempt; no ciphertext is ever cut.
_LOG_BYTES = 4000
_LARGEST_INT = 2**31 - 1
_LARGEST_ROW = 2**63 - 1
_END_OF_TIME = 253_402_300_800  # the year 10000, which databases reject


def dead_letter(
    delivery: Delivery,
    document: ErrorDocument,
    history: list[bytes],
    logs: Mapping[int, str],
    registry: Registry,
    policy: RetryPolicyBase | None,
    *,
    cipher: Cipher = NO_KEYS,
) -> NewDeadLetter:
    """Create the row for a task that failed for good. What is encrypted stays so.

    Args:
        document: the last error.
        history: encoded error documents of earlier attempts, oldest first.
        logs: the lines that its attempts have logged, by their numbers.
        policy: the effective retry policy of the class; None if the class is unknown.
        cipher: decrypts the arguments, which may name the VO.
    """
    from nonet.rules.letters import NewDeadLetter  # each worker imports this module, few need it

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
        history=[
            _attempt(item, logs.get(item.attempt, "")) for item in [*_readable(history), document]
        ],
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


def _attempt(document: ErrorDocument, log: str) -> dict[str, Any]:
    """Return one failed attempt, with its known resource usage and the end of its log."""
    end = log if is_encrypted_text(log) else log.encode()[-_LOG_BYTES:].decode(errors="ignore")
    usage = asdict(document.usage) if document.usage else {}
    return {
        "attempt": document.attempt,
        "at": document.at,
        "error": f"{document.error_type}: {document.error}",
        **({"reason": document.reason} if document.reason else {}),
        **({"log": end} if end and len(end) <= _LOG_BYTES else {}),
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
    try:
        retries = getattr(policy, "max_retries", None)
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

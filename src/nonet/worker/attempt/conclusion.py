"""What follows from an attempt, as data: made where the task ran, settled by the worker.

The author's code has its last word here: the retry policy is asked, the result is packed. Of an
attempt in a child process only this travels, never the exception itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace as replaced

from nonet.client.live import LiveConfig
from nonet.config.overrides import Effective
from nonet.messages.message import ResultDocument, Usage, encode, pack
from nonet.rules.outcomes import (
    DONE,
    ERROR_CHARACTERS,
    Cancelled,
    End,
    ErrorSummary,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Reason,
    Settlement,
    Succeeded,
    decide,
    summarize,
)
from nonet.stores.queue.submissions import Submission
from nonet.tasks.registry import TaskClass
from nonet.tasks.retry import NoRetry
from nonet.telemetry.masking import without_secrets
from nonet.worker.attempt.attempt import Attempt

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Conclusion:
    """What a worker needs to settle an attempt.

    Attributes:
        settlement: what the settle script is told; without a value.
        document: of a task that is done: its encoded result.
        submissions: what is submitted in the same step if it is done.
        lost: why nothing that it did counts, or empty: there is nothing to settle then.
        usage: what the attempt took.
        is_left_over: something of it goes on although it was cut off: a thread.
    """

    settlement: Settlement
    document: bytes = b""
    submissions: Sequence[Submission] = ()
    lost: str = ""
    usage: Usage | None = None
    is_left_over: bool = False


@dataclass(frozen=True, slots=True)
class Concluder:
    """Draws conclusions, as the policies of classes and the configuration say.

    Attributes:
        live_config: what holds for the classes.
        message_limit: longest result, in bytes.
        crash_limit: so many crashes end a task.
    """

    live_config: LiveConfig
    message_limit: int
    crash_limit: int

    def conclude(
        self, attempt: Attempt, outcome: Outcome, usage: Usage | None = None
    ) -> Conclusion:
        """What follows from an outcome.

        What stands in secret arguments, and passwords in URLs, are masked in what is kept of an
        error.

        Args:
            usage: what the attempt took, if it is known.
        """
        if isinstance(outcome, Lost):
            back = Settlement(End.BACK, reason=outcome.reason, started=attempt.started)
            return Conclusion(back, lost=outcome.reason, usage=usage)
        if isinstance(outcome, Succeeded):
            document = _document_of(attempt, outcome.value, usage, self.message_limit)
            return Conclusion(DONE, document, attempt.context.to_submit, usage=usage)
        cancelled = attempt.ending.cancelled
        if cancelled is not None and isinstance(outcome, Failed | HandedBack):
            outcome = Cancelled(cancelled)  # whatever it did when it was told
        effective = None
        if attempt.task_class is not None and isinstance(outcome, Failed | HandedBack):
            # It may have failed for good; the others need no policy.
            effective = effective_now(attempt, attempt.task_class, self.live_config)
        settlement = decide(
            outcome,
            effective.retry_policy if effective else NoRetry(),
            attempt.delivery.attempt,
            datetime.now(UTC),
            dlq_eligible=bool(effective and effective.dlq_eligible),
            crashes=attempt.delivery.crashes,
            crash_limit=self.crash_limit,
        )
        return Conclusion(_masked(settlement, attempt), usage=usage)


def _masked(settlement: Settlement, attempt: Attempt) -> Settlement:
    """A settlement that anybody may read: its texts are an author's, and may quote arguments."""
    error, reason, secrets = settlement.error, settlement.reason, attempt.context.secrets
    text = without_secrets(error.text, secrets)
    if len(error.text) >= ERROR_CHARACTERS:  # where it was cut, a part of one may stand
        text = text[: -max(map(len, secrets), default=0) or None]
    return replace(
        settlement,
        error=ErrorSummary(error.type, text, without_secrets(error.traceback, secrets)),
        reason=reason if isinstance(reason, Reason) else without_secrets(reason, secrets),
    )


def effective_now(attempt: Attempt, task_class: TaskClass, live_config: LiveConfig) -> Effective:
    """What holds for the class now, whatever did when the attempt began."""
    return live_config.overrides.effective(task_class, attempt.vo, attempt.size)


def result_of(
    attempt: Attempt, settlement: Settlement, usage: Usage | None, value: object = None
) -> ResultDocument:
    """What is kept of the end of a task; `value` is packed."""
    delivery = attempt.delivery
    if settlement is DONE:
        return ResultDocument(
            name=attempt.context.name,
            attempt=delivery.used + 1,
            finished=time.time(),
            value=value,
            usage=usage,
            crashes=delivery.crashes,
            deaths=delivery.deaths,
        )
    never_ran = settlement.reason in (Reason.LIMIT_IMPOSSIBLE, Reason.CAPACITY)  # this time
    return ResultDocument(
        name=attempt.context.name,
        attempt=delivery.used if never_ran else delivery.attempt,
        finished=time.time(),
        error_type=settlement.error.type,
        error=settlement.error.text,
        reason=str(settlement.reason),
        usage=usage,
        crashes=delivery.crashes + settlement.crashed,
        deaths=delivery.deaths,
    )


def _document_of(attempt: Attempt, value: object, usage: Usage | None, limit: int) -> bytes:
    """The encoded end of a task that is done; a value that cannot travel is left out."""
    done = partial(result_of, attempt, DONE, usage)
    full, note = encoded_result(done, value, attempt.context.secrets, limit=limit)
    if not note:
        return full
    logger.warning("task %s (%s) is done, but %s", attempt.context.id, attempt.context.name, note)
    return encode(replaced(done(), note=note))


def encoded_result(
    document: Callable[[object], ResultDocument],
    value: object,
    secrets: Sequence[str],
    *,
    limit: int,
) -> tuple[bytes, str]:
    """The encoded end of a task that is done, or why its result cannot be kept.

    Args:
        document: makes it of the packed value.
        value: what ``execute`` returned.
        secrets: what must not stand in the reason.
        limit: longest result, in bytes.
    """
    try:
        full = encode(document(pack(value)))
    except BaseException as error:  # a result may be of any kind, and its class do anything
        why = summarize(error)
        return b"", f"its result cannot be stored: {without_secrets(why.text, secrets) or why.type}"
    if len(full) <= limit:
        return full, ""
    return (
        b"",
        f"its result of {len(full)} bytes exceeds the limit of {limit} (NONET_MESSAGE_LIMIT)",
    )

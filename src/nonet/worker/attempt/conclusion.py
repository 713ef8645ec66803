"""Turn the outcome of an attempt into data that a worker can settle.

The process that ran the task does this: it asks the retry policy and packs the result. A child
process sends only the conclusion to its worker, never the exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace as replaced

from nonet.base.messages.documents import concealed
from nonet.base.messages.message import ResultDocument, Usage, encode, pack
from nonet.client.client import Client
from nonet.client.live import LiveConfig
from nonet.config.overrides import Effective
from nonet.rules.outcomes import (
    DONE,
    Cancelled,
    End,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Settlement,
    Succeeded,
    decide,
    summarize,
)
from nonet.rules.reasons import Reason
from nonet.stores.queue.submissions import Submission
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import BaseTask
from nonet.telemetry.masking import hide, without_secrets
from nonet.worker.attempt.attempt import Attempt

logger = logging.getLogger(__name__)


class Conclusion(msgspec.Struct):
    """What a worker needs to settle an attempt.

    Attributes:
        settlement: how the attempt ends.
        document: the encoded result of a task that is done.
        submissions: tasks to submit in the same step, if the task is done.
        lost: why the attempt is void, or empty.
        usage: resources that the attempt took.
        is_left_over: code of the attempt may still run in the child process.
        middleware_failures: how often middleware failed in the child process, by name.
    """

    settlement: Settlement
    document: bytes = b""
    submissions: Sequence[Submission] = ()
    lost: str = ""
    usage: Usage | None = None
    is_left_over: bool = False
    middleware_failures: dict[str, int] = {}


Ended = Outcome | Conclusion
"""How an attempt ended: what became of its code here, or what its child has concluded."""


class Concluder(Struct, frozen=True):
    """Draws conclusions from outcomes, with the configuration and the limits of `client`."""

    client: Client

    def conclude(self, attempt: Attempt, ended: Ended) -> Conclusion:
        """Return the conclusion of an attempt from its outcome, unless its child has drawn it.

        Secret arguments and passwords in URLs are masked in all texts.
        """
        if isinstance(ended, Conclusion):
            return ended
        outcome, usage = ended, attempt.usage
        if isinstance(outcome, Lost):
            back = Settlement(End.BACK, reason=outcome.reason, started=attempt.started)
            return Conclusion(back, lost=outcome.reason, usage=usage)
        if isinstance(outcome, Succeeded):
            document = self._document_of(attempt, outcome.value, usage)
            return Conclusion(DONE, document, attempt.context.to_submit, usage=usage)
        cancelled = attempt.cancelled
        if cancelled is not None and isinstance(outcome, Failed | HandedBack):
            outcome = Cancelled(cancelled)  # even if the code ignored it
        effective = None
        if attempt.task_class is not None and isinstance(outcome, Failed | HandedBack):
            # Only these outcomes need the retry policy.
            effective = effective_now(attempt, attempt.task_class, self.client.live_config)
        settlement = decide(
            outcome,
            effective.retry_policy if effective else BaseTask.retry_policy,
            attempt.delivery.attempt,
            datetime.now(UTC),
            dlq_eligible=bool(effective and effective.dlq_eligible),
            expected=attempt.task_class.cls.expected if attempt.task_class else (),
            crashes=attempt.delivery.crashes,
            crash_limit=self.client.settings.crash_limit,
            hide=partial(hide, attempt.context.secrets),
        )
        return Conclusion(settlement, usage=usage)

    def _document_of(self, attempt: Attempt, value: object, usage: Usage | None) -> bytes:
        """Encode the result of a task that is done, without the value if it cannot be stored."""
        context, cipher = attempt.context, self.client.cipher
        limit = self.client.settings.message_limit
        try:
            packed = None if value is None else pack(value)
            if context.is_encrypted:
                packed = cipher.encrypt(encode(packed), context.id, "value")
            full = encode(result_of(attempt, DONE, usage, packed))
        except BaseException as error:  # packing runs code of the value's class
            note = unstorable(error, context.secrets)
        else:
            if len(full) <= limit:
                return full
            note = too_long(full, limit)
        logger.warning("task %s (%s) is done, but %s", context.id, context.name, note)
        noted = replaced(result_of(attempt, DONE, usage), note=note)
        return encode(concealed(noted, context.id, cipher) if context.is_encrypted else noted)


def effective_now(attempt: Attempt, task_class: TaskClass, live_config: LiveConfig) -> Effective:
    """Return the options of the class, with the overrides in force now."""
    return live_config.overrides.effective(task_class, attempt.context.vo, attempt.size)


def result_of(
    attempt: Attempt, settlement: Settlement, usage: Usage | None, value: object = None
) -> ResultDocument:
    """Return the result document of a task that has ended; `value` is packed."""
    delivery, report = attempt.delivery, attempt.context.reported
    # Keep the last report: a client that follows the progress may not have read it yet.
    progress, doing = attempt.context.kept(*report) if report else (None, "")
    if settlement is DONE:
        return ResultDocument(
            name=attempt.context.name,
            attempt=delivery.used + 1,
            finished=time.time(),
            value=value,
            usage=usage,
            crashes=delivery.crashes,
            deaths=delivery.deaths,
            progress=progress,
            doing=doing,
        )
    never_ran = settlement.reason in (Reason.LIMIT_IMPOSSIBLE, Reason.CAPACITY)
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
        traceback=settlement.error.traceback,
        progress=progress,
        doing=doing,
    )


def unstorable(error: BaseException, secrets: Sequence[str]) -> str:
    """Say that a result cannot be packed; `secrets` are masked."""
    why = summarize(error)
    return f"its result cannot be stored: {without_secrets(why.text, secrets) or why.type}"


def too_long(document: bytes, limit: int) -> str:
    """Say that a result exceeds the longest one, in bytes."""
    problem = f"its result of {len(document)} bytes exceeds the limit of {limit}"
    return f"{problem} (NONET_MESSAGE_LIMIT)"

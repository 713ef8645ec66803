"""Write dying tasks to SQL as dead letters and end them, without using a slot of the worker.

Other tasks keep running while SQL hangs. A write waits a few seconds for SQL. After a failure the
worker tries one dying task at a time until SQL answers; the other dying tasks stay in their
streams.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import (
    NEXT_STEP_IMPOSSIBLE,
    ConfigurationError,
    LimitImpossible,
    MalformedMessageError,
    ServerUnreachableError,
    TaskExpired,
)
from nonet.base.messages.message import (
    HARD_LIMIT_BYTES,
    Envelope,
    ErrorDocument,
    decode_error,
    open_envelope,
)
from nonet.client.client import Client
from nonet.config.overrides import Effective
from nonet.operate.new_letters import dead_letter, write
from nonet.rules.outcomes import End, ErrorSummary, Failed, HandedBack, Outcome, Settlement
from nonet.rules.reasons import Reason
from nonet.stores.queue.deliveries import Delivery
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.beside_slots import Lane
from nonet.worker.attempt.conclusion import Concluder, Conclusion, effective_now, result_of
from nonet.worker.attempt.settle import Settler

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)

_AT_ONCE = 10
# How long SQL may take for one dead letter, including the connection.
_ANSWER_SECONDS = 5.0
# Pause before the next try of a task or worker. A random factor of up to 2 spreads the workers.
_RETRY_SECONDS = 5.0


class Burials(Lane):
    """Ends the dying tasks of one worker.

    Args:
        client: opens the SQL store on first use, so that workers without dead letters need no
            database.

    Attributes:
        problem: why SQL did not store the last row, or empty.
    """

    def __init__(self, client: Client, settler: Settler, concluder: Concluder) -> None:
        super().__init__()
        self._client = client
        self._settler = settler
        self._concluder = concluder
        self._signer = client.settings.signer()
        self._retry_at = 0.0
        self.problem: str = ""

    @property
    def room(self) -> int:
        """How many more dying tasks this worker takes; one at a time while SQL fails."""
        if not self.problem:
            return max(0, _AT_ONCE - len(self.attempts))  # a fetch may have returned more
        return int(not self.attempts and time.monotonic() >= self._retry_at)

    async def bury(self, attempt: Attempt) -> None:
        """End a fetched dying task: write its row, if it gets one, then settle it."""
        if (outcome := self._identify(attempt)) is not None:
            await self._settler.settle(attempt, self._concluder.conclude(attempt, outcome))
            return
        document = _error_document_of(attempt.delivery)
        error = ErrorSummary(document.error_type, document.error, document.traceback)
        end = End.EXPIRED if document.reason == Reason.CAPACITY else End.DEAD
        dead = Settlement(end, reason=document.reason, error=error)
        effective = self._effective(attempt)
        if effective is None or effective.dlq_eligible:
            await self._write_then_end(attempt, dead, document)
        else:
            await self._end(attempt, dead, document)

    async def bury_at_once(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """End a task that this worker has just marked as dying, and added to `attempts`."""
        settlement = conclusion.settlement
        document = self._settler.error_document(attempt, settlement, conclusion.usage)
        await self._write_then_end(attempt, settlement, document)

    async def queue(self, attempt: Attempt) -> None:
        """Hand a dying task back to its stream until there is room."""
        delay = timedelta(seconds=_RETRY_SECONDS * random.uniform(1, 2) if self.problem else 0)
        reason = f"SQL: {self.problem or 'others are written first'}"
        await self._hand_back(attempt, reason, delay)

    def _identify(self, attempt: Attempt) -> Outcome | None:
        """Read the envelope and find the class; return an outcome if it cannot run here."""
        try:
            envelope = self._read(attempt.delivery)
        except MalformedMessageError as unread:
            return Failed(unread, Reason.QUARANTINED)
        attempt.describe(envelope)
        attempt.task_class = self._client.registry.find(envelope.name)
        if attempt.task_class is None and not _gets_row(attempt.delivery):
            return HandedBack(
                f"a worker does not know {envelope.name}", timedelta(seconds=_RETRY_SECONDS)
            )
        return None

    def _read(self, delivery: Delivery) -> Envelope:
        if delivery.reason == Reason.QUARANTINED:  # the fetch script found the damage
            raise MalformedMessageError(delivery.detail)
        return open_envelope(
            delivery.envelope, delivery.id, self._signer, limit_bytes=HARD_LIMIT_BYTES
        )

    async def _write_then_end(
        self, attempt: Attempt, settlement: Settlement, document: ErrorDocument
    ) -> None:
        try:
            row = await self._write(attempt, document)
        except Exception as problem:  # the task stays dying and is tried again
            await self._put_off(attempt, problem)
            return
        self.problem = ""
        logger.info("task %s is dead letter %s", attempt.delivery.id, row)
        await self._end(attempt, settlement, document)

    async def _end(self, attempt: Attempt, settlement: Settlement, document: ErrorDocument) -> None:
        delivery, error = attempt.delivery, settlement.error
        if delivery.state == "dying" and not delivery.error:  # no attempt has logged why
            logger.error(
                "task %s (%s) ends %s, %s: %s",
                delivery.id,
                attempt.context.name,
                settlement.end,
                settlement.reason,
                error.brief,
            )
        await self._settler.end(attempt, settlement, result_of(attempt, settlement, document.usage))

    async def _write(self, attempt: Attempt, document: ErrorDocument) -> int:
        """Return the number of the row."""
        effective = self._effective(attempt)
        policy = effective.retry_policy if effective is not None else None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                store = await self._client.stores.dead_letters()
                history = await self._settler.broker.history(attempt.delivery.id)
                letter = dead_letter(
                    attempt.delivery,
                    document,
                    history,
                    await self._settler.broker.logs(attempt.delivery.id),
                    self._client.registry,
                    policy,
                    cipher=self._settler.cipher,
                )
                return await write(letter, store)
        except TimeoutError:
            brief = f"silent for {_ANSWER_SECONDS:g} s"
            raise ServerUnreachableError(f"the database is {brief}") from None

    def _effective(self, attempt: Attempt) -> Effective | None:
        """Return the options of the class in force now, if this worker knows the class."""
        if attempt.task_class is None:
            return None
        return effective_now(attempt, attempt.task_class, self._client.live_config)

    async def _put_off(self, attempt: Attempt, error: Exception) -> None:
        """Hand a dying task back; if SQL is unavailable, stop taking others for a while."""
        # The message begins with the address, and the record has room for a short text only.
        brief = getattr(error, "brief", "") or str(error)
        logger.error("dead letter of task %s waits: %s", attempt.delivery.id, error)
        pause = _RETRY_SECONDS * random.uniform(1, 2)
        if isinstance(error, ServerUnreachableError | ConfigurationError):  # every row would fail
            self.problem, self._retry_at = brief, time.monotonic() + pause
        await self._hand_back(attempt, f"SQL: {brief}", timedelta(seconds=pause))

    async def _hand_back(self, attempt: Attempt, reason: str, delay: timedelta) -> None:
        back = Settlement(End.BACK, delay=delay, reason=reason)
        await self._settler.settle(attempt, Conclusion(back))


def _gets_row(delivery: Delivery) -> bool:
    """Whether a task of an unknown class gets a row; this was decided when it died."""
    return bool(delivery.error) or delivery.reason == Reason.CAPACITY


def _error_document_of(delivery: Delivery) -> ErrorDocument:
    """Return the error document of a dying task; make one if no attempt of its own wrote it."""
    if delivery.error:
        try:
            return decode_error(delivery.error)
        except MalformedMessageError as problem:
            text = f"its last error cannot be read: {problem}"
            kind = type(problem).__name__
            return ErrorDocument(Reason.RETRIES, kind, text, "", delivery.used, 0.0)
    error_type = "WorkerLost"
    error = f"its worker died while it ran: {delivery.deaths} times, {delivery.crashes} times alone"
    if delivery.reason == Reason.LIMIT_IMPOSSIBLE:
        error_type = LimitImpossible.__name__
        error = f"{delivery.detail}; {NEXT_STEP_IMPOSSIBLE}"
    elif delivery.reason == Reason.CAPACITY:
        error_type, error = TaskExpired.__name__, delivery.detail
    return ErrorDocument(
        reason=delivery.reason or Reason.WORKER_LOST,
        error_type=error_type,
        error=error,
        traceback="",
        attempt=delivery.used,
        at=0.0,
    )

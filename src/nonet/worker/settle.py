"""From an outcome to a settled delivery: the script, and SQL before it for dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from nonet.dlq import dead_letter, reduced
from nonet.errors import (
    NEXT_STEP_IMPOSSIBLE,
    ConfigurationError,
    LimitImpossible,
    MalformedMessageError,
    NonetError,
    ServerUnreachableError,
    TaskExpired,
)
from nonet.live import LiveConfig
from nonet.message import (
    HARD_LIMIT_BYTES,
    Envelope,
    ErrorDocument,
    Usage,
    decode_error,
    encode,
    open_envelope,
)
from nonet.outcomes import (
    ErrorSummary,
    Failed,
    HandedBack,
    Outcome,
    Reason,
    Settlement,
    shortened,
)
from nonet.registry import Registry, TaskClass
from nonet.signing import Signer
from nonet.stores.broker import Broker
from nonet.stores.deliveries import Delivery
from nonet.stores.submissions import Submission
from nonet.worker.attempt import Attempt
from nonet.worker.closing import RowCloser
from nonet.worker.conclusion import Conclusion, conclude, effective_now, result_of

if TYPE_CHECKING:
    from nonet.stores.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_SQL_RETRY_DELAY = timedelta(seconds=5)
_BURIALS_AT_ONCE = 10
_RESETTLE_PAUSE = 0.5
_TERMINAL = ("done", "dead", "cancelled", "expired")
# How an attempt has ended that was to be done, by what Redis answers.
_ENDS = {"OK": "done", "LOST": "back"}
# What people need not tell apart: all of them use no attempt.
_HANDED_BACK = {"suspect": "back", "on": "back"}


@dataclass(frozen=True)
class Settler:
    """Ends deliveries.

    Attributes:
        dead_letters: opens the SQL store on first use, so that workers without dead letters
            need no database.
        message_limit: longest result, in bytes.
        signer: verifies the envelopes of dying tasks.
        live_config: what holds for the classes.
        rows: deletes the rows of durable tasks that have ended.
        burials: attempts that are writing to SQL.
        counts: of what happened, ``stale``: settles of what was not this worker's any more.
    """

    broker: Broker
    registry: Registry
    dead_letters: Callable[[], Awaitable[DeadLetters]]
    message_limit: int
    signer: Signer
    live_config: LiveConfig
    rows: RowCloser
    burials: set[Attempt] = field(default_factory=set, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)

    async def settle(self, attempt: Attempt, conclusion: Conclusion) -> str:
        """Settle one attempt as it was concluded.

        Returns:
            How it has ended: ``done``, ``retry``, ``crash``, ``dead``, ``cancelled``, ``expired``,
            ``back`` (no attempt is used), or ``lost``: it is void, whatever was concluded.
        """
        if conclusion.lost:
            logger.warning("task %s: attempt voided: %s", attempt.delivery.id, conclusion.lost)
            if not attempt.in_thread:
                # It has ended here: whoever owns it now refuses this, else it need not wait for
                # the end of its lease, which would count as a death of this worker.
                await self._script(attempt, conclusion.settlement, b"")
            return "lost"
        settlement = conclusion.settlement
        if settlement.outcome == "done":
            document, submissions = conclusion.document, conclusion.submissions
            answer = await self._script(attempt, settlement, document, submissions)
            if answer == "LOST":
                # A lock ran out before the settle: whatever was done may have been overtaken.
                back = Settlement("back", reason="a lock was lost before the settle")
                await self._script(attempt, back, b"")
            return _ENDS.get(answer, "lost")
        if settlement.error.type:
            self._log_failure(attempt, settlement)
        if settlement.reason == Reason.QUARANTINED:
            await self.broker.quarantine(attempt.delivery, settlement.error.text)
        if await self._apply(attempt, conclusion) != "OK":
            return "lost"
        return _HANDED_BACK.get(settlement.outcome, settlement.outcome)

    def conclude(
        self,
        attempt: Attempt,
        task_class: TaskClass | None,
        outcome: Outcome,
        usage: Usage | None = None,
    ) -> Conclusion:
        """What follows from an outcome in this process; see `nonet.worker.conclusion.conclude`."""
        return conclude(
            *(attempt, task_class, outcome, self.live_config),
            message_limit=self.message_limit,
            crash_limit=self.broker.crash_limit,
            usage=usage,
        )

    async def bury(self, attempt: Attempt) -> None:
        """Go on with a task that was dying when its last delivery ended: SQL, then settle."""
        delivery = attempt.delivery
        document = _last_words(delivery)
        try:
            envelope = _read(delivery, self.signer)
        except MalformedMessageError as unread:
            unreadable = Failed(unread, Reason.QUARANTINED)
            await self.settle(attempt, self.conclude(attempt, None, unreadable))
            return
        attempt.describe(envelope)
        task_class = self.registry.find(envelope.name)
        if task_class is None:
            back = HandedBack(f"a worker does not know {envelope.name}", _SQL_RETRY_DELAY)
            await self.settle(attempt, self.conclude(attempt, None, back))
            return
        error = ErrorSummary(document.error_type, document.error, document.traceback)
        end = "expired" if document.reason == Reason.CAPACITY else "dead"
        dead = Settlement(end, reason=document.reason, error=error)
        if effective_now(attempt, task_class, self.live_config).dlq_eligible:
            await self._to_sql_then_dead(attempt, dead, document)
        else:
            await self._script(attempt, dead, encode(result_of(attempt, dead, document.usage)))

    async def _apply(self, attempt: Attempt, conclusion: Conclusion) -> str:
        """What Redis answers; of a dead letter: to that it is one."""
        settlement, usage = conclusion.settlement, conclusion.usage
        if settlement.outcome == "dead" and settlement.keep:
            document = _error_document(attempt, settlement, usage)
            # Marked first: after a crash between SQL and Redis nobody executes it again.
            dying = dataclasses.replace(settlement, outcome="dying")
            marked = await self._script(attempt, dying, encode(document))
            if marked == "OK":
                await self._to_sql_then_dead(attempt, settlement, document)
            return marked
        if settlement.outcome in ("retry", "crash"):
            document = _error_document(attempt, settlement, usage)
            return await self._script(attempt, settlement, encode(document))
        if settlement.outcome in ("back", "suspect", "on"):
            return await self._script(attempt, settlement, b"")
        result = result_of(attempt, settlement, usage)
        return await self._script(attempt, settlement, encode(result))

    async def _to_sql_then_dead(
        self, attempt: Attempt, settlement: Settlement, document: ErrorDocument
    ) -> None:
        if len(self.burials) >= _BURIALS_AT_ONCE:
            # While SQL is slow or away it must not take all slots from tasks that can run.
            await self._wait_for_sql(attempt, "SQL: others are waiting for it")
            return
        self.burials.add(attempt)
        try:
            row = await self._write(attempt, document)
        except Exception as error:  # SQL is away or refuses; it is lost in neither case
            logger.error("dead letter of task %s waits: %s", attempt.delivery.id, error)
            # The address comes first in the message, and would fill what a record has room for.
            await self._wait_for_sql(attempt, f"SQL: {getattr(error, 'brief', '') or error}")
            return
        finally:
            self.burials.discard(attempt)
        logger.error("task %s is dead letter %s", attempt.delivery.id, row)
        result = result_of(attempt, settlement, document.usage)
        await self._script(attempt, settlement, encode(result))

    async def _write(self, attempt: Attempt, document: ErrorDocument) -> int:
        """The row of a dead letter; values that the database refuses are left out."""
        store = await self.dead_letters()
        history = await self._history(attempt.delivery.id)
        task_class = self.registry.find(attempt.context.name)
        policy = None
        if task_class is not None:
            policy = effective_now(attempt, task_class, self.live_config).retry_policy
        letter = dead_letter(attempt.delivery, document, history, self.registry, policy)
        try:
            row = await store.add(letter)
        except (ServerUnreachableError, ConfigurationError):
            raise
        except Exception as error:  # labels, for example, may hold anything
            logger.error("dead letter of task %s is cut: %s", attempt.delivery.id, error)
            row = await store.add(reduced(letter))
        if letter.resubmitted_from is not None:
            # Not if the row is gone, or is another letter now: the new row tells the story.
            await store.mark_failed(letter.resubmitted_from, letter.task_id)
        return row

    async def _history(self, id: str) -> list[bytes]:
        try:
            return await self.broker.history(id)
        except (ServerUnreachableError, ConfigurationError):
            raise
        except NonetError:  # the key is of another type: the letter matters more
            return []

    async def _wait_for_sql(self, attempt: Attempt, reason: str) -> None:
        delay = _SQL_RETRY_DELAY * random.uniform(1, 2)
        await self._script(attempt, Settlement("back", delay=delay, reason=reason), b"")

    async def _script(
        self,
        attempt: Attempt,
        settlement: Settlement,
        document: bytes,
        submissions: Sequence[Submission] = (),
    ) -> str:
        """Run the settle script, again and again while Redis refuses and the lease is ours."""
        told, text = False, ""
        if settlement.reason or settlement.error.type:
            text = shortened(_line(settlement))
        while True:
            goes_on, sent = bool(attempt.left) and attempt.goes_on, time.monotonic()
            try:
                answer = await self.broker.settle(
                    attempt.delivery,
                    settlement.outcome,
                    document,
                    text=text,
                    delay=settlement.delay,
                    started=settlement.started,
                    goes_on=goes_on,
                    submissions=submissions,
                )
            # Also what somebody must change first, permissions or a password, may be so in time.
            except (ServerUnreachableError, ConfigurationError) as error:
                if attempt.lost is not None:
                    logger.error("task %s: not settled: %s", attempt.delivery.id, error)
                    return "STALE"
                if not told:
                    told = True
                    logger.warning(
                        "task %s: not settled yet, tried again while its lease lasts: %s",
                        attempt.delivery.id,
                        error,
                    )
                await asyncio.sleep(_RESETTLE_PAUSE)
                continue
            if answer != "OK":
                self.counts["stale"] += answer == "STALE"
                logger.warning(
                    "task %s: settle as %s refused: %s",
                    attempt.delivery.id,
                    settlement.outcome,
                    answer,
                )
            elif settlement.outcome in _TERMINAL and self._is_durable(attempt):
                self.rows.close(attempt.delivery.id)
            if answer == "OK" and goes_on and attempt.on_left is not None:
                attempt.on_left(sent)
                attempt.on_left = None  # once: a task that is dying is settled again
            return answer

    def _is_durable(self, attempt: Attempt) -> bool:
        task_class = self.registry.find(attempt.context.name)
        return task_class is not None and task_class.cls.durable

    def _log_failure(self, attempt: Attempt, settlement: Settlement) -> None:
        if settlement.reason == Reason.QUARANTINED:
            logger.warning(
                "task %s is none and goes to the quarantine, not executed: %s",
                attempt.delivery.id,
                _in_one_line(settlement.error.text),
            )
            return
        logger.log(
            # A task that asked to be handed back has not failed.
            logging.INFO if settlement.outcome == "back" else logging.WARNING,
            "task %s (%s) failed in attempt %d, %s: %s",
            attempt.delivery.id,
            attempt.context.name,
            attempt.delivery.attempt,
            settlement.outcome,
            _line(settlement),
        )


def _last_words(delivery: Delivery) -> ErrorDocument:
    """The error document of a dying task; composed where no attempt of its own wrote one."""
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


def _read(delivery: Delivery, signer: Signer) -> Envelope:
    if delivery.reason == Reason.QUARANTINED:  # the script that fetched it knows why
        raise MalformedMessageError(delivery.detail)
    return open_envelope(delivery.envelope, delivery.id, signer, limit_bytes=HARD_LIMIT_BYTES)


def _error_document(attempt: Attempt, settlement: Settlement, usage: Usage | None) -> ErrorDocument:
    return ErrorDocument(
        reason=str(settlement.reason),
        error_type=settlement.error.type,
        error=settlement.error.text,
        traceback=settlement.error.traceback,
        attempt=attempt.delivery.attempt,
        at=time.time(),
        usage=usage,
    )


def _line(settlement: Settlement) -> str:
    """One line about the error, or what the task waits for."""
    error = settlement.error
    text = f"{error.type}: {error.text}" if error.type else str(settlement.reason)
    return _in_one_line(text)


def _in_one_line(text: str) -> str:
    first = text.encode("utf-8", "backslashreplace").decode().split("\n")[0]
    # A task's text must not paint in the terminal of whoever reads the log.
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", first)

"""From an outcome to a settled delivery; SQL comes after it, see `nonet.worker.attempt.burials`."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.client.live import LiveConfig
from nonet.messages.message import ErrorDocument, ResultDocument, Usage, encode
from nonet.rules.outcomes import Outcome, Reason, Settlement, shortened
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.row_closer import RowCloser
from nonet.tasks.registry import Registry, TaskClass
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Conclusion, conclude, result_of

logger = logging.getLogger(__name__)

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
        message_limit: longest result, in bytes.
        live_config: what holds for the classes.
        rows: deletes the rows of durable tasks that have ended.
        counts: of what happened, ``stale``: settles of what was not this worker's any more.
    """

    broker: Broker
    registry: Registry
    message_limit: int
    live_config: LiveConfig
    rows: RowCloser
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
        """What follows from an outcome in this process; see `conclusion.conclude`."""
        return conclude(
            *(attempt, task_class, outcome, self.live_config),
            message_limit=self.message_limit,
            crash_limit=self.broker.crash_limit,
            usage=usage,
        )

    async def end(self, attempt: Attempt, settlement: Settlement, result: ResultDocument) -> None:
        """Settle a dying task, which is in SQL now if it belongs there."""
        await self._script(attempt, settlement, encode(result))

    async def _apply(self, attempt: Attempt, conclusion: Conclusion) -> str:
        """What Redis answers. A dead letter is only marked as one: its burial follows."""
        settlement, usage = conclusion.settlement, conclusion.usage
        if settlement.outcome == "dead" and settlement.keep:
            document = error_document(attempt, settlement, usage)
            # After a crash between SQL and Redis it is not executed again.
            dying = replace(settlement, outcome="dying")
            return await self._script(attempt, dying, encode(document))
        if settlement.outcome in ("retry", "crash"):
            document = error_document(attempt, settlement, usage)
            return await self._script(attempt, settlement, encode(document))
        if settlement.outcome in ("back", "suspect", "on"):
            return await self._script(attempt, settlement, b"")
        result = result_of(attempt, settlement, usage)
        return await self._script(attempt, settlement, encode(result))

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


def error_document(attempt: Attempt, settlement: Settlement, usage: Usage | None) -> ErrorDocument:
    """What is kept of how an attempt failed."""
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

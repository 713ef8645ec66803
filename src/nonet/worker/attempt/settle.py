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
from nonet.messages.message import ErrorDocument, ResultDocument, Usage, encode
from nonet.rules.outcomes import End, Reason, Settlement, shortened
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.row_closer import RowCloser
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Conclusion, result_of

logger = logging.getLogger(__name__)

_RESETTLE_PAUSE = 0.5
_TERMINAL = (End.DONE, End.DEAD, End.CANCELLED, End.EXPIRED)
_HANDED_BACK = (End.BACK, End.SUSPECT, End.ON)


@dataclass(frozen=True)
class Settler:
    """Ends deliveries.

    Attributes:
        rows: deletes the rows of durable tasks that have ended.
        counts: of what happened, ``stale``: settles of what was not this worker's any more.
    """

    broker: Broker
    rows: RowCloser
    counts: Counter[str] = field(default_factory=Counter, init=False)

    async def settle(self, attempt: Attempt, conclusion: Conclusion) -> End:
        """Settle one attempt as it was concluded.

        A dead letter is only marked as one: its burial follows.

        Returns:
            How it has ended. What uses no attempt is `End.BACK`, for whatever reason.
        """
        settlement, usage = conclusion.settlement, conclusion.usage
        if conclusion.lost:
            return await self._void(attempt, conclusion)
        if settlement.end is End.DONE:
            return await self._commit(attempt, conclusion)
        if settlement.error.type:
            self._log_failure(attempt, settlement)
        if settlement.reason == Reason.QUARANTINED:
            await self.broker.quarantine(attempt.delivery, settlement.error.text)
        document = b""
        if settlement.end is End.DEAD and settlement.keep:
            # After a crash between SQL and Redis it is not executed again.
            settlement = replace(settlement, end=End.DYING)
        if settlement.end in (End.RETRY, End.CRASH, End.DYING):
            document = encode(error_document(attempt, settlement, usage))
        elif settlement.end not in _HANDED_BACK:
            document = encode(result_of(attempt, settlement, usage))
        if await self._script(attempt, settlement, document) != "OK":
            return End.LOST
        return End.BACK if settlement.end in _HANDED_BACK else conclusion.settlement.end

    async def _void(self, attempt: Attempt, conclusion: Conclusion) -> End:
        logger.warning("task %s: attempt voided: %s", attempt.delivery.id, conclusion.lost)
        if not attempt.in_thread:
            # It has ended here: whoever owns it now refuses this, else it need not wait for
            # the end of its lease, which would count as a death of this worker.
            await self._script(attempt, conclusion.settlement, b"")
        return End.LOST

    async def _commit(self, attempt: Attempt, conclusion: Conclusion) -> End:
        document, submissions = conclusion.document, conclusion.submissions
        answer = await self._script(attempt, conclusion.settlement, document, submissions)
        if answer == "OK":
            return End.DONE
        if answer != "LOST":
            return End.LOST
        # A lock ran out before the settle: whatever was done may have been overtaken.
        back = Settlement(End.BACK, reason="a lock was lost before the settle")
        await self._script(attempt, back, b"")
        return End.BACK

    async def end(self, attempt: Attempt, settlement: Settlement, result: ResultDocument) -> None:
        """Settle a dying task, which is in SQL now if it belongs there."""
        await self._script(attempt, settlement, encode(result))

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
                    settlement.end,
                    document,
                    text=text,
                    delay=settlement.delay,
                    started=settlement.started,
                    goes_on=goes_on,
                    submissions=submissions,
                )
            # Also what somebody must change first, permissions or a password, may be so in time.
            except (ServerUnreachableError, ConfigurationError) as error:
                if attempt.ending.lost is not None:
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
                    settlement.end,
                    answer,
                )
            elif settlement.end in _TERMINAL and is_durable(attempt):
                self.rows.close(attempt.delivery.id)
            if answer == "OK" and goes_on and attempt.on_left is not None:
                attempt.on_left(sent)
                attempt.on_left = None  # once: a task that is dying is settled again
            return answer

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
            logging.INFO if settlement.end is End.BACK else logging.WARNING,
            "task %s (%s) failed in attempt %d, %s: %s",
            attempt.delivery.id,
            attempt.context.name,
            attempt.delivery.attempt,
            settlement.end,
            _line(settlement),
        )


def is_durable(attempt: Attempt) -> bool:
    """Whether its task has a row, as far as this worker knows its class."""
    return attempt.task_class is not None and attempt.task_class.cls.durable


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

"""Settle attempts in Redis. A dead letter reaches SQL later, see `nonet.worker.attempt.burials`."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nonet.base.errors import OF_THE_SERVER, ServerUnreachableError
from nonet.base.messages.documents import concealed
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.base.messages.message import ErrorDocument, ResultDocument, Usage, encode
from nonet.rules.outcomes import End, Settlement, shortened
from nonet.rules.reasons import Reason
from nonet.rules.tracebacks import exception_of
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.row_closer import RowCloser
from nonet.telemetry.logs import keep_logs
from nonet.telemetry.outage import REDIS
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Conclusion, result_of

logger = logging.getLogger(__name__)

_RESETTLE_PAUSE = 0.5
_TERMINAL = (End.DONE, End.DEAD, End.CANCELLED, End.EXPIRED)
# Hand-backs and expected errors are INFO, final failures ERROR, the rest WARNING.
_LEVELS = {End.BACK: logging.INFO, End.DEAD: logging.ERROR}
_HANDED_BACK = (End.BACK, End.SUSPECT, End.ON)

_Document = TypeVar("_Document", ResultDocument, ErrorDocument)


class Settler(Struct, frozen=True):
    """Settles deliveries.

    Attributes:
        rows: deletes the SQL rows of durable tasks that have ended.
        cipher: encrypts the errors of encrypted tasks.
        counts: ``stale``: how many settles Redis refused because this worker had lost the delivery.
    """

    broker: Broker
    rows: RowCloser
    cipher: Cipher = NO_KEYS
    counts: Counter[str] = field(default_factory=Counter)

    async def settle(
        self, attempt: Attempt, conclusion: Conclusion, sent: Awaitable[str] | None = None
    ) -> End:
        """Settle an attempt. A task that becomes a dead letter is only marked as dying.

        Args:
            sent: gives the answer to a settle of this success that was sent already.

        Returns:
            How the attempt ended; `End.BACK` for every hand-back.
        """
        settlement, usage = conclusion.settlement, conclusion.usage
        if conclusion.lost:
            return await self._void(attempt, conclusion)
        if settlement.end is End.DONE:
            of = conclusion.document, conclusion.submissions, sent
            answer = await self._script(attempt, settlement, *of)
            if answer == "OK":
                return End.DONE
            return await self._go_back(attempt) if answer == "LOST" else End.LOST
        if settlement.error.type:
            _log_failure(attempt, settlement)
        if settlement.reason == Reason.QUARANTINED:
            await self.broker.quarantine(attempt.delivery, settlement.error.text)
        document = b""
        if settlement.end is End.DEAD and settlement.keep:
            # The row is written later: a crash before that must not execute the task again.
            settlement = replace(settlement, end=End.DYING)
        if settlement.end in (End.RETRY, End.CRASH, End.DYING):
            document = encode(self.error_document(attempt, settlement, usage))
        elif settlement.end not in _HANDED_BACK:
            document = encode(self._concealed(attempt, result_of(attempt, settlement, usage)))
        if await self._script(attempt, settlement, document) != "OK":
            return End.LOST
        return End.BACK if settlement.end in _HANDED_BACK else conclusion.settlement.end

    async def end(self, attempt: Attempt, settlement: Settlement, result: ResultDocument) -> None:
        """End a dying task whose row, if it gets one, is already in SQL."""
        await self._script(attempt, settlement, encode(self._concealed(attempt, result)))

    def error_document(
        self, attempt: Attempt, settlement: Settlement, usage: Usage | None
    ) -> ErrorDocument:
        """Return the error document that the record keeps for a failed attempt."""
        document = ErrorDocument(
            reason=str(settlement.reason),
            error_type=settlement.error.type,
            error=settlement.error.text,
            traceback=settlement.error.traceback,
            attempt=attempt.delivery.attempt,
            at=time.time(),
            usage=usage,
        )
        return self._concealed(attempt, document)

    def _concealed(self, attempt: Attempt, document: _Document) -> _Document:
        """Encrypt the error that an encrypted task has raised."""
        if attempt.context.is_encrypted and document.error_type:
            return concealed(document, attempt.delivery.id, self.cipher)
        return document

    async def _void(self, attempt: Attempt, conclusion: Conclusion) -> End:
        logger.warning("task %s: attempt voided: %s", attempt.delivery.id, conclusion.lost)
        if not attempt.in_thread:
            # Its code has ended. If no other worker owns the task yet, requeue it now: otherwise
            # it would wait for the end of its lease, which counts as a death of this worker.
            await self._script(attempt, conclusion.settlement, b"")
        return End.LOST

    async def _go_back(self, attempt: Attempt) -> End:
        """Hand a task back whose lock expired, so another task may have run meanwhile."""
        back = Settlement(End.BACK, reason="a lock was lost before the settle")
        await self._script(attempt, back, b"")
        return End.BACK

    async def _script(
        self,
        attempt: Attempt,
        settlement: Settlement,
        document: bytes,
        submissions: Sequence[Submission] = (),
        sent: Awaitable[str] | None = None,
    ) -> str:
        """Run the settle script; retry server errors until the lease is lost."""
        delivery, is_logged, text = attempt.delivery, False, ""
        if settlement.reason or settlement.error.type:
            is_secret = attempt.context.is_encrypted and settlement.error.type
            text = shortened(settlement.error.type if is_secret else _line(settlement))
        while True:
            still_runs, since = bool(attempt.left) and attempt.still_runs, time.monotonic()
            try:
                answer = await (
                    sent
                    or self.broker.settle(
                        delivery,
                        settlement.end,
                        document,
                        text=text,
                        delay=settlement.delay,
                        started=settlement.started,
                        still_runs=still_runs,
                        submissions=submissions,
                    )
                )
            # The work is done, and would be repeated. While the lease lasts the server may recover,
            # or an operator may correct permissions or a password.
            except OF_THE_SERVER as error:
                sent = None
                if attempt.lost is not None:
                    logger.error("task %s: not settled: %s", delivery.id, error)
                    return "STALE"
                if isinstance(error, ServerUnreachableError):
                    REDIS.failed(f"settle of {delivery.id}", str(error))
                elif not is_logged:
                    is_logged = True
                    logger.warning(
                        "task %s: not settled yet, retrying while its lease lasts: %s",
                        delivery.id,
                        error,
                    )
                await asyncio.sleep(_RESETTLE_PAUSE)
                continue
            if REDIS.is_unavailable:
                REDIS.recovered(f"settle of {delivery.id}")
            if still_runs and answer == "OK":
                attempt.locks_kept_at = since
            self._record(attempt, settlement.end, answer)
            return answer

    def _record(self, attempt: Attempt, end: End, answer: str) -> None:
        """Report a refused settle, or close the row of a durable task that has ended."""
        task_class = attempt.task_class
        if answer != "OK":
            self.counts["stale"] += answer == "STALE"
            logger.warning("task %s: settle as %s refused: %s", attempt.delivery.id, end, answer)
        elif task_class is not None and task_class.cls.durable and end in _TERMINAL:
            self.rows.close(attempt.delivery.id)


def is_plain_success(attempt: Attempt, conclusion: Conclusion) -> bool:
    """Whether the attempt has succeeded, and nothing but the answer ``OK`` is left to do."""
    task_class = attempt.task_class
    is_done = conclusion.settlement.end is End.DONE and not conclusion.submissions
    return is_done and task_class is not None and not task_class.cls.durable


def _log_failure(attempt: Attempt, settlement: Settlement) -> None:
    keep_logs()  # the failed attempt may have configured logging just now
    if settlement.reason == Reason.QUARANTINED:
        logger.warning(
            "message %s is not a valid task; quarantined it: %s",
            attempt.delivery.id,
            _in_one_line(settlement.error.text),
        )
        return
    level, found, error = _LEVELS.get(settlement.end, logging.WARNING), settlement.error, None
    if settlement.is_expected:
        level = logging.INFO
    if level > logging.INFO and logger.isEnabledFor(level):
        error = exception_of(found.type, found.text, found.traceback)
    id, name, line = attempt.delivery.id, attempt.context.name, _line(settlement)
    if settlement.end is End.BACK:
        logger.log(level, "task %s (%s) handed back: %s", id, name, line)
        return
    logger.log(
        level,
        "task %s (%s) failed%s in attempt %d, %s: %s",
        id,
        name,
        " as expected" if settlement.is_expected else "",
        attempt.delivery.attempt,
        settlement.end,
        line,
        exc_info=error,
    )


def _line(settlement: Settlement) -> str:
    """Return the error, or the reason of a hand-back, in one line."""
    error = settlement.error
    text = f"{error.type}: {error.text}" if error.type else str(settlement.reason)
    return _in_one_line(text)


def _in_one_line(text: str) -> str:
    first = text.encode("utf-8", "backslashreplace").decode().split("\n")[0]
    # Escape control characters: an error text could send commands to the reader's terminal.
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", first)

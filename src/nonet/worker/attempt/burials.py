"""The lane of burials: dying tasks are written to SQL and then end, beside the slots of a worker.

No burial takes a slot: while SQL hangs, tasks that can run do so. A burial waits for SQL only for
some seconds. After one has failed, the worker takes one dying task at a time, to see whether SQL is
back; all others stay in their streams until then.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import (
    NEXT_STEP_IMPOSSIBLE,
    ConfigurationError,
    LimitImpossible,
    MalformedMessageError,
    NonetError,
    ServerUnreachableError,
    TaskExpired,
)
from nonet.config.overrides import Effective
from nonet.messages.message import (
    HARD_LIMIT_BYTES,
    Envelope,
    ErrorDocument,
    decode_error,
    open_envelope,
)
from nonet.messages.signing import Signer
from nonet.operate.dead_letters import dead_letter, write
from nonet.rules.outcomes import (
    End,
    ErrorSummary,
    Failed,
    HandedBack,
    Outcome,
    Reason,
    Settlement,
)
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.registry import Registry, TaskClass
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Concluder, Conclusion, effective_now, result_of
from nonet.worker.attempt.settle import Settler, error_document

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_AT_ONCE = 10
# How long SQL may take for one burial, connecting included.
_ANSWER_SECONDS = 5.0
# Before the next try, of a task and of the worker; up to twice as long, so that workers spread.
_RETRY_SECONDS = 5.0


class Burials:
    """Ends the dying tasks of one worker.

    Args:
        dead_letters: opens the SQL store on first use, so that workers without dead letters need
            no database.
        signer: verifies the envelopes.

    Attributes:
        in_hand: those that are under way.
        freed: set when one has ended.
        problem: why the last one could not be written to SQL, or empty.
    """

    def __init__(
        self,
        settler: Settler,
        concluder: Concluder,
        registry: Registry,
        dead_letters: Callable[[], Awaitable[DeadLetters]],
        signer: Signer,
    ) -> None:
        self._settler = settler
        self._concluder = concluder
        self._registry = registry
        self._dead_letters = dead_letters
        self._signer = signer
        self._retry_at = 0.0
        self.in_hand: set[Attempt] = set()
        self.freed: asyncio.Event = asyncio.Event()
        self.problem: str = ""

    @property
    def room(self) -> int:
        """How many more it can take; while SQL fails: one now and then."""
        if not self.problem:
            return max(0, _AT_ONCE - len(self.in_hand))  # more may have come with a fetch
        return int(not self.in_hand and time.monotonic() >= self._retry_at)

    def drop(self, attempt: Attempt) -> None:
        """An attempt has ended, of these or of the others."""
        if attempt in self.in_hand:
            self.in_hand.discard(attempt)
            self.freed.set()

    async def bury(self, attempt: Attempt) -> None:
        """End a dying task: SQL first, if it belongs there, then the settlement."""
        delivery = attempt.delivery
        document = _last_words(delivery)
        if (outcome := self._identify(attempt)) is not None:
            await self._settler.settle(attempt, self._concluder.conclude(attempt, outcome))
            return
        error = ErrorSummary(document.error_type, document.error, document.traceback)
        end = End.EXPIRED if document.reason == Reason.CAPACITY else End.DEAD
        dead = Settlement(end, reason=document.reason, error=error)
        if self._is_kept(attempt):
            await self._to_sql_then_end(attempt, dead, document)
        else:
            await self._settler.end(attempt, dead, result_of(attempt, dead, document.usage))

    def _identify(self, attempt: Attempt) -> Outcome | None:
        """Learn what is dying; how this attempt ends if it cannot be buried here, else None."""
        try:
            envelope = self._read(attempt.delivery)
        except MalformedMessageError as unread:
            return Failed(unread, Reason.QUARANTINED)
        attempt.describe(envelope)
        attempt.task_class = self._registry.find(envelope.name)
        if attempt.task_class is None and not is_letter(attempt.delivery):
            return HandedBack(
                f"a worker does not know {envelope.name}", timedelta(seconds=_RETRY_SECONDS)
            )
        return None

    async def bury_at_once(self, attempt: Attempt, conclusion: Conclusion) -> None:
        """End a task that has been marked as dying just now; it is one of those `in_hand`."""
        settlement = conclusion.settlement
        document = error_document(attempt, settlement, conclusion.usage)
        await self._to_sql_then_end(attempt, settlement, document)

    async def queue(self, attempt: Attempt) -> None:
        """Let a dying task wait in its stream until there is room."""
        delay = timedelta(seconds=_RETRY_SECONDS * random.uniform(1, 2) if self.problem else 0)
        reason = f"SQL: {self.problem or 'others are written first'}"
        await self._hand_back(attempt, reason, delay)

    async def _to_sql_then_end(
        self, attempt: Attempt, settlement: Settlement, document: ErrorDocument
    ) -> None:
        try:
            row = await self._written(attempt, document)
        except Exception as problem:  # SQL is away or refuses; it is lost in neither case
            await self._put_off(attempt, problem)
            return
        self.problem = ""
        logger.error("task %s is dead letter %s", attempt.delivery.id, row)
        result = result_of(attempt, settlement, document.usage)
        await self._settler.end(attempt, settlement, result)

    def _is_kept(self, attempt: Attempt) -> bool:
        """Whether it gets a row, as its class says now; as it said then, if it is unknown here."""
        return (
            attempt.task_class is None or self._effective(attempt.task_class, attempt).dlq_eligible
        )

    def _effective(self, task_class: TaskClass, attempt: Attempt) -> Effective:
        return effective_now(attempt, task_class, self._concluder.live_config)

    async def _written(self, attempt: Attempt, document: ErrorDocument) -> int:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._write(attempt, document)
        except TimeoutError:
            brief = f"silent for {_ANSWER_SECONDS:g} s"
            raise ServerUnreachableError(f"the database is {brief}") from None

    async def _write(self, attempt: Attempt, document: ErrorDocument) -> int:
        """The row of a dead letter."""
        store, policy = await self._dead_letters(), None
        history = await self._history(attempt.delivery.id)
        if attempt.task_class is not None:
            policy = self._effective(attempt.task_class, attempt).retry_policy
        letter = dead_letter(attempt.delivery, document, history, self._registry, policy)
        return await write(letter, store)

    async def _history(self, id: str) -> list[bytes]:
        try:
            return await self._settler.broker.history(id)
        except (ServerUnreachableError, ConfigurationError):
            raise
        except NonetError:  # the key is of another type: the letter matters more
            return []

    async def _put_off(self, attempt: Attempt, error: Exception) -> None:
        """Hand a task back that SQL did not take, and try no other one for a while."""
        # The address comes first in the message, and would fill what a record has room for.
        brief = getattr(error, "brief", "") or str(error)
        logger.error("dead letter of task %s waits: %s", attempt.delivery.id, error)
        pause = _RETRY_SECONDS * random.uniform(1, 2)
        if isinstance(error, ServerUnreachableError | ConfigurationError):  # not about this row
            self.problem, self._retry_at = brief, time.monotonic() + pause
        await self._hand_back(attempt, f"SQL: {brief}", timedelta(seconds=pause))

    async def _hand_back(self, attempt: Attempt, reason: str, delay: timedelta) -> None:
        back = Settlement(End.BACK, delay=delay, reason=reason)
        await self._settler.settle(attempt, Conclusion(back))

    def _read(self, delivery: Delivery) -> Envelope:
        if delivery.reason == Reason.QUARANTINED:  # the script that fetched it knows why
            raise MalformedMessageError(delivery.detail)
        return open_envelope(
            delivery.envelope, delivery.id, self._signer, limit_bytes=HARD_LIMIT_BYTES
        )


def is_letter(delivery: Delivery) -> bool:
    """Whether it was decided when the task died that it gets a row."""
    return bool(delivery.error) or delivery.reason == Reason.CAPACITY


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

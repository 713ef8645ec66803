"""End tasks that missed their `start_by`, and write their dead letters, without any worker.

An expired task stays `dying` until its row is in SQL. The row is written first, then the task is
ended. Both steps can be repeated, so a worker or a second leader may do the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nonet.base.errors import (
    ConfigurationError,
    MalformedMessageError,
    NonetError,
    ServerUnreachableError,
    TaskExpired,
)
from nonet.base.messages.message import (
    HARD_LIMIT_BYTES,
    ErrorDocument,
    ResultDocument,
    encode,
    open_envelope,
)
from nonet.base.messages.signing import Signer
from nonet.operate.new_letters import dead_letter, write
from nonet.rules.reasons import Reason
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.rules.letters import NewDeadLetter
    from nonet.stores.sql.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_BATCH, _LEAST = 500, 10
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 5.0


class ExpiredTasks:
    """End tasks that no worker started in time and that get a dead letter.

    Args:
        letters: opens the SQL store on first use.
        signer: verifies the envelopes.
        close_row: receives the id of each ended task, to delete its row if it was durable.
    """

    def __init__(
        self,
        broker: Broker,
        letters: Callable[[], Awaitable[DeadLetters]],
        signer: Signer,
        close_row: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._letters = letters
        self._signer = signer
        self._close_row = close_row
        self._batch = _BATCH

    async def tick(self, term: str) -> float:
        """End a batch of expired tasks; return the seconds until the next call.

        Raises:
            DeposedError: another scheduler leads.
            ServerUnreachableError: SQL does not answer; the tasks stay `dying`.
        """
        found = await self._broker.expired(term, self._batch)
        if found is None:
            raise DeposedError
        if not found:
            return _LOOK_SECONDS
        names = dict(self._named(found))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._write([_letter(item) for item in found if item.id in names])
        except (ServerUnreachableError, ConfigurationError, TimeoutError) as error:
            # A slow database writes a smaller batch in time.
            self._batch = max(_LEAST, self._batch // 4)
            reason = str(error) or f"no answer from SQL within {_ANSWER_SECONDS:g} s"
            raise ServerUnreachableError(f"{len(found)} dead letters wait: {reason}") from error
        self._batch = _BATCH
        ended = await self._broker.end_expired(
            [(item, _result(item, names[item.id]) if item.id in names else b"") for item in found]
        )
        for id in ended:
            self._close_row(id)
        if ended:
            logger.error("tasks not started in time, now dead letters: number=%d", len(ended))
        return 0.0 if ended else _LOOK_SECONDS

    def _named(self, found: Sequence[Delivery]) -> Iterator[tuple[str, str]]:
        """Yield id and class of each valid task; a worker quarantines the others."""
        for item in found:
            with suppress(MalformedMessageError):
                envelope = open_envelope(
                    item.envelope, item.id, self._signer, limit_bytes=HARD_LIMIT_BYTES
                )
                yield item.id, envelope.name

    async def _write(self, letters: Sequence[NewDeadLetter]) -> None:
        store = await self._letters()
        try:
            await store.add_many(letters)
        except (ServerUnreachableError, ConfigurationError):
            raise
        except NonetError:  # the database refuses a value in one of them
            for letter in letters:
                await write(letter, store)
            return
        for letter in letters:
            if letter.resubmitted_from is not None:
                await store.mark_failed(letter.resubmitted_from, letter.task_id)


def _letter(delivery: Delivery) -> NewDeadLetter:
    # Do not load the class: this process need not know it, and runs no code of its author.
    name, text = TaskExpired.__name__, delivery.detail
    document = ErrorDocument(Reason.CAPACITY, name, text, "", delivery.used, 0.0)
    return dead_letter(delivery, document, [], {}, Registry(), None)


def _result(delivery: Delivery, name: str) -> bytes:
    """Return the result of a task that never ran, in the format that workers write."""
    return encode(
        ResultDocument(
            name=name,
            attempt=delivery.used,
            finished=time.time(),
            error_type=TaskExpired.__name__,
            error=delivery.detail,
            reason=str(Reason.CAPACITY),
        )
    )

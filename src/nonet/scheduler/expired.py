"""Expired tasks: the leader writes their rows to SQL, and ends them, where no worker does.

A task with a `start_by` ends at its deadline although no worker runs: that is what it is for. If it
belongs into SQL it is dying until its row is there. Row first, then the end: both are safe to
repeat, so that a worker of its size, or a second leader, may do the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
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
from nonet.messages.message import (
    HARD_LIMIT_BYTES,
    ErrorDocument,
    ResultDocument,
    encode,
    open_envelope,
)
from nonet.messages.signing import Signer
from nonet.operate.dead_letters import dead_letter, write
from nonet.rules.outcomes import Reason
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters, NewDeadLetter

logger = logging.getLogger(__name__)

_BATCH, _LEAST = 500, 10
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 5.0
_RETRY_SECONDS = 5.0


class ExpiredTasks:
    """What nobody has started in time and has a dead letter.

    Args:
        letters: opens the SQL store on first use.
        signer: verifies the envelopes.
        close_row: called with the id of each that has ended: it may have been durable.
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
        self._problem = ""
        self._batch = _BATCH

    async def tick(self, term: str) -> float:
        """End some of them; the seconds until the next look. While SQL is away, all stay dying.

        Raises:
            DeposedError: somebody else leads.
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
            reason = str(error) or f"SQL is silent for {_ANSWER_SECONDS:g} s"
            if reason != self._problem:
                logger.error("%d dead letters of expired tasks wait: %s", len(found), reason)
            self._problem = reason
            # A slow database writes fewer rows in time.
            self._batch = max(_LEAST, self._batch // 4)
            return _RETRY_SECONDS * random.uniform(1, 2)
        self._problem, self._batch = "", _BATCH
        ended = await self._broker.end_expired(
            [(item, _result(item, names[item.id]) if item.id in names else b"") for item in found]
        )
        for id in ended:
            self._close_row(id)
        if ended:
            logger.error("%d tasks were not started in time and are dead letters now", len(ended))
        return 0.0 if ended else _LOOK_SECONDS

    def _named(self, found: Sequence[Delivery]) -> Iterator[tuple[str, str]]:
        """The ids of those that are tasks, and their classes; a worker quarantines the others."""
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
        except NonetError:  # one has values that the database refuses
            for letter in letters:
                await write(letter, store)
            return
        for letter in letters:
            if letter.resubmitted_from is not None:
                await store.mark_failed(letter.resubmitted_from, letter.task_id)


def _letter(delivery: Delivery) -> NewDeadLetter:
    # Without its class: this process need not know it, and runs no code of its author.
    name, text = TaskExpired.__name__, delivery.detail
    document = ErrorDocument(Reason.CAPACITY, name, text, "", delivery.used, 0.0)
    return dead_letter(delivery, document, [], Registry(), None)


def _result(delivery: Delivery, name: str) -> bytes:
    """What is kept of the end of one that never ran, as a worker keeps it."""
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

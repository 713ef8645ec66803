"""Dead letters of rows: `Letters` writes them, `resume_row` makes their rows due again."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

from nonet.base.errors import ConfigurationError, NotFoundError, ServerUnreachableError
from nonet.base.messages.message import encode, pack
from nonet.client.client import Client
from nonet.operate.new_letters import write
from nonet.pipelines.lease import Exhausted
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.rows import Rows
from nonet.pipelines.table_keys import key_from_text, text_of_key
from nonet.rules.letters import NewDeadLetter
from nonet.rules.outcomes import ErrorSummary, Settlement
from nonet.rules.pipelines import row_letter_class, row_letter_id
from nonet.rules.reasons import Reason

logger = logging.getLogger(__name__)

# How long the database of dead letters may take for one letter.
_ANSWER_SECONDS = 5.0
_RETRY_SECONDS = 5.0


class Letters:
    """Writes the dead letters of the rows that this process processes.

    While the database of dead letters fails, one row at a time tries it; the others are put off, so
    that they keep no worker busy.

    Attributes:
        problem: why the last letter was not written, or empty.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._retry_at = 0.0
        self.problem: str = ""

    async def write(
        self, pipeline: str, key: Any, exhausted: Exhausted, last: Settlement | None
    ) -> float | None:
        """Write the letter of a row; writing it again changes nothing.

        Args:
            last: how its last attempt ended; None: with the death of its process, or unknown.

        Returns:
            None, or in how many seconds to try again.
        """
        again = _RETRY_SECONDS * random.uniform(1, 2)
        if self.problem and time.monotonic() < self._retry_at:
            return again
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        letter = letter_of(pipeline, key, exhausted, last, datetime.now(UTC))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                number = await write(letter, await self._client.stores.dead_letters())
        except (ServerUnreachableError, ConfigurationError, TimeoutError) as error:
            self.problem = str(error) or f"no answer within {_ANSWER_SECONDS:g} s"
            logger.error(
                "dead letter of a row waits: pipeline=%s key=%s error=%s",
                pipeline,
                key,
                self.problem,
            )
            return again
        self.problem = ""
        logger.info("row is a dead letter: pipeline=%s key=%s letter=%d", pipeline, key, number)
        return None


def letter_of(
    pipeline: str, key: Any, exhausted: Exhausted, last: Settlement | None, now: datetime
) -> NewDeadLetter:
    """Create the letter of a row."""
    text = text_of_key(key)
    lost = ErrorSummary(
        "RowLost",
        f"its process died, or its error was lost: {exhausted.attempts} attempts in a row",
    )
    error = lost if last is None else last.error
    reason = Reason.WORKER_LOST if last is None else last.reason or Reason.RETRIES
    return NewDeadLetter(
        task_id=row_letter_id(pipeline, text, exhausted.series),
        generation=0,
        task_class=row_letter_class(pipeline),
        task_args=encode(pack({"key": text})),
        submitted_at=datetime.fromtimestamp(exhausted.series / 1e6, UTC),
        reason=reason,
        retry_count=max(0, exhausted.attempts - 1),
        last_attempted_at=now,
        error_type=error.type,
        error_message=error.text,
        traceback=error.traceback,
    )


async def resume_row(cls: type[Pipeline[Any]], key: str, at_time: datetime | None) -> None:
    """Make the row of a dead letter due again.

    Args:
        at_time: when it is due; None: now.

    Raises:
        NotFoundError: the row does not exist.
        ServerUnreachableError: the database of the row does not answer.
    """
    rows = Rows(cls.model)
    async with cls.database.transaction() as session:
        found = await rows.resume(session, [key_from_text(rows.table, key)], at_time)
    if not found:
        raise NotFoundError(f"row {key} of pipeline {cls.name} does not exist any more")

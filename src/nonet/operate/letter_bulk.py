"""Submit many dead letters again, at a rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.client.client import Client
from nonet.operate.dead_letters import resubmit

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import DeadLetters

# Letters that are resubmitted at the same time; each takes one connection to SQL.
_AT_ONCE = 4


class Pace:
    """The start times of tasks that run at a rate.

    All of them can be submitted at once: those after the first wait in the delayed set, so no
    process has to stay until the last one starts.

    Args:
        rate: tasks per second; None: all start at once.
        start: when the first one starts.

    Example:
        >>> pace = Pace(2, datetime(2026, 1, 2, tzinfo=UTC))
        >>> [at and at.isoformat()[17:] for at in (pace.next(), pace.next(), pace.next())]
        [None, '00.500000+00:00', '01+00:00']
    """

    def __init__(self, rate: float | None, start: datetime | None = None) -> None:
        self._rate = rate
        self._start = start or datetime.now(UTC)
        self._number = 0

    def next(self) -> datetime | None:
        """Return when the next task starts; None: at once."""
        number, self._number = self._number, self._number + 1
        if self._rate is None or not number:
            return None
        return self._start + timedelta(seconds=number / self._rate)

    def give_back(self) -> None:
        """Use the last time again: its task was not submitted."""
        self._number = max(0, self._number - 1)


class Outcome(NamedTuple):
    """What became of one letter.

    Attributes:
        row: its number.
        id: the task that repeats it; empty on an error, or if the letter was deleted.
        created: whether this call submitted that task.
        error: why nothing was done.
    """

    row: int
    id: str = ""
    created: bool = True
    error: NonetError | None = None


async def resubmit_many(
    letters: DeadLetters,
    client: Client,
    pages: AsyncIterator[Sequence[int]],
    *,
    rate: float | None = None,
    again: bool = False,
) -> AsyncIterator[list[Outcome]]:
    """Submit letters again, in about the order of their rows, and yield what became of some.

    A caller that ends between two steps leaves no letter half done.

    A caller that dies leaves the rest of them ``PENDING``; a second call with the same selection
    continues. See `operate.dead_letters.resubmit` for what happens to the letter in between.

    Args:
        pages: the rows, from `DeadLetters.pages`.
        rate: how many of them start in a second; None: as fast as workers take them.
        again: see `operate.dead_letters.resubmit`.

    Raises:
        ServerUnreachableError: Redis or SQL does not answer; other errors concern one letter.
    """
    pace = Pace(rate)

    async def one(row: int) -> Outcome:
        at_time = pace.next()
        try:
            handle = await resubmit(row, client, letters, again=again, at_time=at_time)
        except ServerUnreachableError:
            raise
        except NonetError as error:
            pace.give_back()
            return Outcome(row, error=error)
        return Outcome(row, str(handle), handle.created)

    async for outcomes in _some_at_once(pages, one):
        yield outcomes


async def _some_at_once(
    pages: AsyncIterator[Sequence[int]], act: Callable[[int], Awaitable[Outcome]]
) -> AsyncIterator[list[Outcome]]:
    """Act on rows, and yield the outcomes, even if an error ends the whole."""
    async for page in pages:
        rows = iter(page)
        while some := list(islice(rows, _AT_ONCE)):
            found = await asyncio.gather(*map(act, some), return_exceptions=True)
            yield [item for item in found if isinstance(item, Outcome)]
            for item in found:
                if isinstance(item, BaseException):
                    raise item


def in_words(number: int, last: int, note: str = "") -> str:
    """Describe changed rows for the event stream.

    >>> in_words(1, 7), in_words(2, 9, "fixed in 2.4")
    ('row 7', '2 rows, the last 9: fixed in 2.4')
    """
    text = f"row {last}" if number == 1 else f"{number} rows, the last {last}"
    return f"{text}: {note}" if note else text

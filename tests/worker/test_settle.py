"""A settle that Redis refuses: it is repeated while the lease lasts, whatever the words are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from redis._parsers import BaseParser
from worker.attempts import attempt_at, tools_for

from nonet import BaseTask
from nonet.base.errors import NonetError
from nonet.rules.outcomes import DONE, End
from nonet.stores.connection.replies import translated
from nonet.worker.attempt import settle
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.settle import Settler

REFUSALS = (
    "ERR max number of clients reached",
    "ERR TOO_MANY_REQUESTS",
    "ERR unknown command 'EVALSHA'",
    "QUOTA of this plan is used up",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
)


class Ended(BaseTask):
    async def execute(self) -> None: ...


class Refusing:
    """A broker that refuses some settles, then performs them."""

    def __init__(self, *replies: str) -> None:
        self.replies: Iterator[str] = iter(replies)
        self.calls = 0

    async def settle(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        if reply := next(self.replies, ""):
            raise translated(BaseParser.parse_error(reply), "redis://db.example:6379/0", "settle")
        return "OK"


@pytest.fixture
async def attempt(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Attempt]:
    """Its code has ended; refused settles are repeated without a pause."""
    monkeypatch.setattr(settle, "_RESETTLE_PAUSE", 0.0)
    async with tools_for(Ended) as tools:
        yield attempt_at(Ended(), tools)


async def settled(attempt: Attempt, broker: Refusing) -> End:
    return await Settler(cast("Any", broker), cast("Any", None)).settle(attempt, Conclusion(DONE))


@pytest.mark.parametrize("reply", REFUSALS)
async def test_a_refused_settle_is_repeated(attempt: Attempt, reply: str) -> None:
    """The work has ended: words that are not known do not let it be done again."""
    broker = Refusing(reply, reply)
    assert await settled(attempt, broker) is End.DONE
    assert broker.calls == 3


async def test_a_refused_settle_ends_with_the_lease(attempt: Attempt) -> None:
    """Another worker may have the task by then."""
    attempt.lose("as the test wants")
    broker = Refusing(REFUSALS[0])
    assert await settled(attempt, broker) is End.LOST
    assert broker.calls == 1


async def test_a_settle_that_fails_each_time_is_not_repeated(attempt: Attempt) -> None:
    """A damaged key, which the doctor names, must not occupy the worker."""
    broker = Refusing("WRONGTYPE Operation against a key holding the wrong kind of value")
    with pytest.raises(NonetError, match="WRONGTYPE"):
        await settled(attempt, broker)

"""The figures of classes in Redis: what workers report, and what is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from redis import exceptions
from servers import RedisServer

from nonet.base.errors import ServerUnreachableError
from nonet.rules.figures import RESOLUTIONS
from nonet.stores.connection.redis import script
from nonet.stores.namespace.history import History
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Counted, Leases

WORKER = "small-a"
Row = dict[str, dict[int, int]]


class Counts:
    """What a worker will report next."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.offset = -1.0

    def take(self) -> Counted:
        return Counted(self.rows.pop(0) if self.rows else {})

    def note(self, offset: float) -> None:
        self.offset = offset


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def leases(redis_url: str, counts: Counts) -> Iterator[Leases]:
    times = {"worker_ttl": 30, "lock_ttl": 30, "timeout_seconds": 5}
    made = Leases(redis_url, "test", WORKER, "{}", **times)
    made.count(counts.take, counts.note)
    yield made
    made.close()


@pytest.fixture
async def history(broker: Broker) -> AsyncIterator[History]:
    yield History(broker.client, "test")


async def test_reports_of_workers_add_up(
    leases: Leases, counts: Counts, history: History, redis_server: RedisServer
) -> None:
    """By minutes and by ten minutes; each slot expires."""
    counts.rows = [{"m:A": {0: 300, 3: 300}}, {"m:A": {0: 1, 1: 1, 24: 1}, "m:B": {2: 70_000}}]
    leases.add_figures()
    leases.add_figures()
    leases.add_figures()  # nothing new
    for since in (timedelta(minutes=30), timedelta(hours=5)):
        one, other = await history.figures(since=since)
        assert (one.name, one.total.ended, one.total.failed) == ("m:A", 301, 1)
        assert one.total.wait.p50 == pytest.approx(0.0005) and one.total.run.p50 is not None
        assert (other.name, other.total.retried, other.total.wait.p50) == ("m:B", 70_000, None)
        assert sum(item.figures.ended for item in one.series) == 301
        (found,) = await history.figures(since=since, task="B")
        assert found.total == other.total
    assert counts.offset == 0.0
    with redis_server.client() as client:
        left = {key: client.ttl(key) for key in client.keys("{test}:figures:*")}
    assert len(left) == 3 and all(0 < seconds <= 173_400 for seconds in left.values())


async def test_a_report_counts_once(
    leases: Leases, counts: Counts, history: History, redis_server: RedisServer
) -> None:
    """A beat whose reply was lost sends it again; what was counted meanwhile comes after it."""
    counts.rows = [{"m:A": {0: 5}}, {"m:A": {0: 2}}]
    real, lost = leases._client, iter([True])

    class Deaf:
        connection_pool = real.connection_pool

        def evalsha(self, *args: object) -> object:
            answer = real.evalsha(*args)
            if next(lost, False):
                raise exceptions.ConnectionError("the reply was lost")
            return answer

        eval = real.eval

    real.script_load(script("add_figures")[0])
    leases._client = Deaf()
    with pytest.raises(ServerUnreachableError):
        leases.add_figures()
    leases.add_figures()
    leases.add_figures()
    (found,) = await history.figures()
    assert found.total.ended == 7
    leases._client = real


async def test_classes_are_bounded(leases: Leases, counts: Counts, history: History) -> None:
    """Beyond 200 in a slot they share one name, so that generated names fill no memory."""
    counts.rows = [{f"m:C{n}": {0: 1} for n in range(250)}, {"m:C1": {0: 1}, "m:New": {0: 1}}]
    leases.add_figures()
    leases.add_figures()
    found = {item.name: item.total.ended for item in await history.figures()}
    assert len(found) == 201
    assert (found["m:C1"], found["others"]) == (2, 51)


def test_lua_and_python_agree_on_the_slots() -> None:
    """Their lengths, and how long they are kept."""
    pairs = ", ".join(f"{{{slot}, {kept}}}" for slot, kept in RESOLUTIONS)
    assert f"RESOLUTIONS = {{{pairs}}}" in script("add_figures")[0]

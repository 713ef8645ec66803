"""`NONET_CONFIRM_REPLICAS`: what counts only when replicas have it, and what happens when not."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import records
from clients import broker_at
from servers import RedisServer
from topologies.valkey import ValkeyServer
from waits import wait_until

from nonet import Nonet
from nonet.base.errors import NotConfirmedError
from nonet.contrib.canary import Canary
from nonet.stores.connection import redis as redis_store
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks

# A busy machine may take its time.
_PATIENCE_MS = 20_000
MUTEX = encode_locks([MutexLock("job", 1)])


@dataclass
class Pair:
    """A master, and its replica, which can be frozen."""

    master: RedisServer
    replica: RedisServer

    def freeze(self) -> None:
        redis_store._CONFIRM_MS = 300
        os.kill(self.replica.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        redis_store._CONFIRM_MS = _PATIENCE_MS
        os.kill(self.replica.pid, signal.SIGCONT)
        wait_until(self.is_in_step, "the replica has all that the master has")

    def is_in_step(self) -> bool:
        with self.master.client() as client:
            client.set("another", 1)
            return bool(client.execute_command("WAIT", 1, 1000))


@pytest.fixture(
    scope="module", params=[RedisServer, pytest.param(ValkeyServer, marks=pytest.mark.soak)]
)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    make = request.param
    with make("--repl-diskless-sync-delay", "0") as master, make() as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
        pair = Pair(master, replica)
        wait_until(pair.is_in_step, "the replica follows")
        yield pair


@pytest.fixture
async def broker(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Of an empty namespace that has been in use, which wants one replica to confirm."""
    monkeypatch.setattr(redis_store, "_CONFIRM_MS", _PATIENCE_MS)
    with pair.master.client() as client:
        client.flushall()
        client.hset("{test}:epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1})
    opened = broker_at(pair.master.url, confirm_replicas=1)
    await opened.ping()
    yield opened
    pair.thaw()
    await opened.aclose()


def task(id: str, locks: str = "") -> Submission:
    return Submission(id, "probe:Task", "normal:small", b"{}", locks=locks)


async def test_an_unconfirmed_submit_fails_and_may_be_repeated(pair: Pair, broker: Broker) -> None:
    pair.freeze()
    for _ in range(2):
        with pytest.raises(NotConfirmedError, match=r"by 1 replica .* the same id \(a\)"):
            await broker.submit([task("a")])
        broker.client.lane.reset()  # a new connection has written nothing
    pair.thaw()
    assert await broker.submit([task("a")]) == [False]
    assert len((await broker.fetch("w", "small", 9))[0]) == 1


async def test_unconfirmed_locks_are_not_granted(pair: Pair, broker: Broker) -> None:
    """A fetch gets no task with a mutex, a hold fails, an admit refuses."""
    await broker.submit([task("a", MUTEX), task("b")])
    (plain,) = [one for one in (await broker.fetch("w", "small", 2))[0] if one.id == "b"]
    assert len(await broker.disown("w", "small", [plain])) == 1
    pair.freeze()
    assert (await broker.fetch("w", "small", 2))[0] == []
    put_back = await records.hmget(broker.client, "{test}:t:a", "state", "blocker", "attempt")
    assert put_back == [b"waiting", b"too few replicas of Redis confirm its locks", None]
    assert not await broker.client.keys("{test}:lock:*")
    with pytest.raises(NotConfirmedError, match="locks"):
        await broker.hold("hold-1", MUTEX)
    admitted, why = await broker.admit(plain, MUTEX)
    assert not admitted and "too few replicas" in why
    assert await broker.settle(plain, "back") == "OK"
    pair.thaw()
    await broker.client.zadd("{test}:tasks:delayed", {"a": 0})
    await broker.promote()
    ended = []
    for _ in range(2):  # they need the same mutex now
        ((one,), _) = await broker.fetch("w", "small", 2)
        assert await broker.settle(one, "done", b"{}") == "OK"
        ended.append((one.id, one.used))
    assert sorted(ended) == [("a", 0), ("b", 0)]


async def test_tasks_without_locks_need_no_replica(pair: Pair, broker: Broker) -> None:
    await broker.submit([task("a"), task("locked", MUTEX)])
    pair.freeze()
    ((delivery,), _) = await broker.fetch("w", "small", 2)
    assert delivery.id == "a"
    assert await broker.settle(delivery, "done", b"{}") == "OK"


async def test_an_application_waits_for_the_replicas_of_its_setting(
    pair: Pair, tmp_path: Path
) -> None:
    pair.freeze()
    try:
        options = {"namespace": "test", "state_dir": tmp_path, "confirm_replicas": 1}
        options["tasks"] = ("nonet.contrib.canary",)
        async with Nonet.from_settings(redis_url=pair.master.url, **options) as app:
            with pytest.raises(NotConfirmedError, match="by 1 replica"):
                await app.submit(Canary())
    finally:
        pair.thaw()


async def test_a_script_that_writes_nothing_needs_confirmation_too(
    pair: Pair, broker: Broker
) -> None:
    """It has found its work done, by a call whose reply was lost and which no replica has."""
    pair.freeze()
    await broker.client.set("{test}:other", 1)
    broker.client.lane.reset()
    answer, is_safe = await broker.scripts.run_confirmed("presence", "", 30_000, "", "a")
    assert (answer[4], is_safe) == (0, False)

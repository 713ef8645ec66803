"""What a real cluster does with our scripts while the slot of the namespace is on two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import broker_at
from redis import exceptions
from servers import RedisServer
from topologies.cluster import Cluster
from topologies.valkey import ValkeyServer
from waits import wait_until

import nonet.stores
from nonet.base.keys import prefix
from nonet.stores.connection.redis import script
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

NAMESPACE = "test"
PREFIX = prefix(NAMESPACE)
SCRIPTS = sorted(path.stem for path in (Path(nonet.stores.__path__[0]) / "scripts").glob("*.lua"))


OF_SOAK = pytest.param(ValkeyServer, marks=pytest.mark.soak, id="Valkey")


@pytest.fixture(scope="module", params=[pytest.param(RedisServer, id="Redis"), OF_SOAK])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(NAMESPACE, make=request.param) as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: Cluster) -> Iterator[Broker]:
    with cluster.client() as client:
        client.flushall()
    yield broker_at(cluster.url, namespace=NAMESPACE)


def contents(server: RedisServer) -> dict[str, bytes]:
    """Every key of one node, and its value."""
    found = {}
    with server.client(single_connection_client=True) as client:
        for key in client.scan_iter(count=1000):
            client.execute_command("ASKING")  # or a node would not tell what it has already
            found[key] = client.dump(key)
    return found


async def submit(broker: Broker, *ids: str) -> None:
    await broker.submit([Submission(id, "m:Task", "normal:small", b"e") for id in ids])


async def test_no_script_is_begun_while_the_slot_moves(cluster: Cluster, broker: Broker) -> None:
    """With any part of the keys moved each script is refused as a whole, and changes nothing."""
    await submit(broker, *(f"task-{n}" for n in range(10)))
    await broker.aclose()
    move = cluster.begin_move()
    try:
        with move.source.client() as old, move.target.client() as new:
            for _ in range(3):
                before = contents(move.source), contents(move.target)
                for name in SCRIPTS:
                    with pytest.raises(exceptions.AskError, match=str(move.target.port)):
                        old.eval(script(name)[0], 1, PREFIX)
                    with pytest.raises(exceptions.MovedError, match=str(move.source.port)):
                        new.eval(script(name)[0], 1, PREFIX)
                assert (contents(move.source), contents(move.target)) == before
                move.keys(8)
    finally:
        sum(move.batches(100))
        move.end()


async def test_a_call_waits_until_the_slot_has_moved(cluster: Cluster, broker: Broker) -> None:
    """Half of the keys have moved; the new node answers, with all that the old one had."""
    await submit(broker, *(f"before-{n}" for n in range(20)))
    move = cluster.begin_move()
    try:
        move.keys(10)
        moved = set(contents(move.target))
        submitted = asyncio.create_task(submit(broker, "meanwhile", "before-1"))
        assert await asyncio.to_thread(refused, move.source)
        assert set(contents(move.target)) == moved
        assert not submitted.done()
    finally:
        sum(move.batches(100))
        move.end()
    await submitted
    assert cluster.home is move.target
    keys = set(contents(move.target))
    assert {f"{PREFIX}t:before-1", f"{PREFIX}t:meanwhile"} <= keys
    with cluster.client() as client:
        assert client.xlen(f"{PREFIX}tasks:normal:small") == 21
    await broker.aclose()


def refused(source: RedisServer) -> bool:
    """Wait until a call was answered with ASK more than once: it is tried again."""
    with source.client() as client:

        def answers() -> int:
            return int(client.info("errorstats").get("errorstat_ASK", {}).get("count", 0))

        before = answers()
        return wait_until(lambda: answers() > before + 2, "the call is tried again")


@pytest.mark.parametrize("cluster", [ValkeyServer], ids=["Valkey"], indirect=True)
async def test_calls_are_answered_while_valkey_moves_a_slot_as_a_whole(
    cluster: Cluster, broker: Broker
) -> None:
    moving = asyncio.create_task(asyncio.to_thread(cluster.move_at_once))
    count = 0
    while not moving.done():
        await submit(broker, f"task-{count}")
        count += 1
    home = await moving
    assert cluster.home is home
    with home.client() as client:
        assert client.xlen(f"{PREFIX}tasks:normal:small") == count > 0
    await broker.aclose()

"""Threads and servers that end, hang, move or cut connections."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from servers import RedisServer
from sync.conftest import settings_of
from sync.sync_tasks import Add, Kept
from topologies.cluster import Cluster
from topologies.sentinel import Sentinels
from waits import wait_until

import nonet
from nonet import ServerUnreachableError
from nonet.base.synchronous import complete, timeout
from nonet.stores.connection.redis import TIMEOUT_SECONDS
from nonet.stores.connection.sync_client import connect

pytestmark = pytest.mark.server

Environment = dict[str, str]


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A Redis that a test may kill."""
    with RedisServer() as server:
        yield server


@contextmanager
def opened(environment: Environment, url: str, **more: str) -> Iterator[nonet.SyncNonet]:
    """An application on a server of its own."""
    changed = {**environment, "NONET_REDIS_URL": url, **more}
    with nonet.SyncNonet(settings_of(changed)) as app:
        yield app


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def submitted(client: Any) -> int:
    """How many tasks have been created."""
    return len(list(client.scan_iter("{test}:t:*")))


def test_a_call_replaces_a_cut_connection(app: nonet.SyncNonet, redis_server: RedisServer) -> None:
    """The next call opens another one: no error and no second task."""
    Add(1).schedule_sync()
    with redis_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        handle = Add(1).schedule_sync()
        assert handle.created and submitted(client) == 2


def test_threads_have_connections_of_their_own(
    app: nonet.SyncNonet, redis_server: RedisServer
) -> None:
    """No more than threads that call at a time, and they are used again."""

    def submit() -> None:
        started.wait()
        for n in range(25):
            assert app.submit(Add(n)).created

    started = threading.Barrier(8)
    for _ in range(3):
        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with redis_server.client() as client:
        assert submitted(client) == 3 * 8 * 25
        # One more is for single commands: the version of the configuration.
        assert len(client.client_list(_type="normal")) <= 8 + 8 + 1


def test_a_missing_server_is_an_error_until_it_is_back(
    environment: Environment, own_server: RedisServer
) -> None:
    """The error says so; afterwards all works again by itself."""
    with opened(environment, own_server.url) as app:
        app.submit(Add(1))
        own_server.kill()
        with pytest.raises(ServerUnreachableError, match="does not answer"):
            app.submit(Add(2))
        with pytest.raises(ServerUnreachableError):
            app.status("x")
        assert app.submit(Kept(3), id="kept").created  # SQL has it, the relay submits it
        own_server.start()
        assert app.submit(Add(4)).status().state == "queued"


def test_a_timeout_ends_a_wait_for_a_hanging_server(
    environment: Environment, own_server: RedisServer
) -> None:
    """A time limit ends a wait while the server still hangs."""
    with opened(environment, own_server.url) as app:
        handle = app.submit(Add(1))
        with frozen(own_server.pid), pytest.raises(TimeoutError):
            handle.result(timeout=0.1)
        assert handle.status().state == "queued"


def test_a_limit_ends_with_its_call(app: nonet.SyncNonet) -> None:
    """The next call over the same connection waits for as long as usual."""
    lane: Any = app._client().stores.broker.scripts.lane

    async def limited() -> None:
        async with timeout(1.0):
            await lane.call("PING")

    complete(limited())
    (wire,) = lane._idle
    assert wire._socket.gettimeout() <= 1.0
    complete(lane.call("PING"))
    assert lane._idle[0] is wire and wire._socket.gettimeout() == TIMEOUT_SECONDS


def test_an_interrupted_call_gives_up_its_connection(app: nonet.SyncNonet) -> None:
    """A signal that raises gives up the connection: the next call gets no foreign reply."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = app.submit(Add(1))
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after in (0.05, 0.4):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, after)
                handle.result()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert handle.status().state == "queued"
    assert app.submit(Add(2)).created


def test_single_commands_end_with_their_limit(own_server: RedisServer) -> None:
    """On redis-py's own connections, too; a late reply is dropped."""
    client = connect(own_server.url, "{test}:")

    async def get(key: str, seconds: float | None) -> Any:
        async with timeout(seconds):
            return await client.get(key)

    assert complete(get("a", None)) is None
    with frozen(own_server.pid), pytest.raises(TimeoutError):
        complete(get("a", 0.2))
    complete(client.set("b", 1))
    assert complete(get("b", None)) == b"1"
    complete(client.aclose())


def test_calls_follow_a_replaced_master(environment: Environment) -> None:
    """By a command, so that the old one keeps its connections open."""
    with Sentinels() as sentinels, opened(environment, sentinels.url) as app:
        first, old = app.submit(Add(1)), sentinels.port
        wait_until(lambda: _obeys(sentinels), "the sentinels know a replica to promote")
        with sentinels.promoted(old).client() as new:
            wait_until(lambda: new.exists(f"{{test}}:t:{app.submit(Add(2))}"), "it is followed")
            wait_until(lambda: app.status(first).state == "queued", "single commands, too")
            lane = app._client().stores.broker.client.lane
            assert {wire._connection.port for wire in lane._idle} == {sentinels.port}


def _obeys(sentinels: Sentinels) -> bool:
    try:
        sentinels.fail_over()
    except redis.ResponseError:
        return False
    return True


def test_a_submission_waits_for_the_next_master(environment: Environment) -> None:
    """A submission waits for the next one."""
    with Sentinels() as sentinels, opened(environment, sentinels.url) as app:
        app.submit(Add(1))
        old = sentinels.kill().port
        handle = app.submit(Add(2))
        assert sentinels.promoted(old).port != old
        assert handle.status().state == "queued"


def test_calls_follow_a_moved_slot(environment: Environment) -> None:
    """The client finds the node that has the namespace now."""
    with Cluster("test") as cluster, opened(environment, cluster.url) as app:
        handles = [app.submit(Add(1))]
        move = cluster.begin_move()
        for _ in move.batches(100):
            pass
        move.end()
        handles.append(app.submit(Add(2)))
        assert [handle.status().state for handle in handles] == ["queued", "queued"]

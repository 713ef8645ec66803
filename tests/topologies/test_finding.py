"""Which server a process talks to: what the URL says, and who answers for the namespace now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clients import broker_at
from redis import exceptions
from servers import RedisServer
from topologies.cluster import Cluster
from topologies.sentinel import SERVICE, Sentinels
from waits import until

from nonet import Nonet
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.stores.connection import redis as redis_store, topology
from nonet.stores.connection.redis import connect, connect_blocking, connect_sync, run_sync
from nonet.stores.connection.topology import Address, read_place
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

PREFIX = "{test}:"
STREAM = f"{PREFIX}tasks:normal:small"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("test") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels() as sentinels:
        yield sentinels


@asynccontextmanager
async def open_broker(url: str, **options: Any) -> AsyncIterator[Broker]:
    broker = broker_at(url, **options)
    try:
        yield broker
    finally:
        await broker.aclose()


async def slow_failovers(url: str, home: Path) -> dict[str, str]:
    """What the doctor says of the settings of failovers."""
    async with Nonet.from_settings(redis_url=url, namespace="test", state_dir=home) as app:
        hints = (await app.doctor(wait=0)).hints
    wanted = {"repl-diskless-sync-delay", "down-after-milliseconds", "failover-timeout"}
    return {hint.what: hint.problem for hint in hints if hint.what in wanted}


async def test_the_doctor_reads_the_settings_of_failovers(
    sentinels: Sentinels, tmp_path: Path
) -> None:
    url = sentinels.url
    told = await slow_failovers(url, tmp_path)
    assert set(told) == {"down-after-milliseconds"} and "is 1000:" in told.popitem()[1]
    set_service = ("SENTINEL", "SET", SERVICE)
    with sentinels.client() as master, sentinels.sentinels[1].client() as sentinel:
        master.config_set("repl-diskless-sync-delay", 5)
        master.execute_command(
            *["ACL", "SETUSER", "limited", "on", ">s3cret", "~*", "&*", "+@all", "-config"]
        )
        sentinel.execute_command(*set_service, "failover-timeout", 180_000)
        try:
            told = await slow_failovers(url, tmp_path)
            assert "is 5: " in told["repl-diskless-sync-delay"]
            assert "is 180000: " in told["failover-timeout"]
            told = await slow_failovers(url.replace("//", "//limited:s3cret@"), tmp_path)
            assert "was not checked" in told["repl-diskless-sync-delay"]
            assert len(told) == 3
        finally:
            sentinel.execute_command(*set_service, "failover-timeout", 6_000)
            master.config_set("repl-diskless-sync-delay", 0)
            master.acl_deluser("limited")


def task(id: str) -> Submission:
    return Submission(id, "probe:Task", "normal:small", b"{}")


@pytest.mark.parametrize(
    ("url", "plain", "shown"),
    [
        ("redis://h/3", "redis://h/3", "None"),
        (
            "redis+sentinel://u:p%40@a,b:1/svc/2",
            "redis://u:p%40@a:26379/2",
            "the Sentinels a:26379, b:1, service 'svc'",
        ),
        (
            "rediss+sentinel://a/svc?ssl_ca_certs=ca.pem&sentinel_password=x",
            "rediss://a:26379/0?ssl_ca_certs=ca.pem",
            "the Sentinels a:26379, service 'svc'",
        ),
        (
            "redis+cluster://:p@[::1]:7,b",
            "redis://:p@[::1]:7/0",
            "the cluster [::1]:7, b:6379, slot",
        ),
    ],
)
def test_a_url_names_a_server_or_where_to_ask_for_it(url: str, plain: str, shown: str) -> None:
    place = read_place(url, PREFIX)
    assert place.url == plain
    assert str(place.finder).startswith(shown)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://a,b", "HOST:PORT/SERVICE/DATABASE"),
        ("redis+sentinel://a/svc/x", "HOST:PORT/SERVICE/DATABASE"),
        ("redis+cluster://a/1", "a cluster has one database"),
        ("redis+magic://a", "redis+cluster://"),
        ("http+cluster://a", "rediss+sentinel://"),
        ("redis+cluster://,", "names no server"),
        ("redis://h/0?nonsense=1", "parameter 'nonsense' is not known"),
        ("redis+sentinel://h/s?passwort=secret", "is not known"),
        ("redis://h?ssl_ca_certs=x", "TLS needs rediss://"),
        ("redis+cluster://a:x", "percent-encode"),
        ("redis+cluster://:se@cret@a,b", "percent-encode"),
        ("redis+cluster://:secret@a?socket_timeout=x", "Invalid value"),
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str, said: str) -> None:
    for make in (connect, connect_blocking, connect_sync):
        with pytest.raises(ConfigurationError, match="NONET_REDIS_URL") as caught:
            make(url, PREFIX)
        assert said in str(caught.value) and "cret" not in str(caught.value)


async def test_any_node_leads_to_the_node_of_the_namespace(cluster: Cluster) -> None:
    (other, *_) = [node for node in cluster.nodes if node is not cluster.home]
    async with open_broker(f"redis+cluster://127.0.0.1:{other.port}") as broker:
        await broker.ping()
        assert await broker.submit([task("from-another")]) == [True]
    with cluster.client() as client:
        assert client.exists(f"{PREFIX}t:from-another")


async def test_a_url_that_leads_nowhere_is_refused_with_the_reason(
    cluster: Cluster, sentinels: Sentinels, redis_server: RedisServer
) -> None:
    (other, *_) = [node for node in cluster.nodes if node is not cluster.home]
    wrong = ConfigurationError
    for url, error, reason in (
        (other.url, wrong, r"write redis\+cluster://"),
        (f"redis+cluster://127.0.0.1:{redis_server.port}", wrong, "not a node .*: write redis://"),
        (sentinels.url.replace("/nonet/", "/other/"), wrong, "no service 'other'; it knows nonet"),
        ("redis+sentinel://127.0.0.1:1/nonet", ServerUnreachableError, r"127\.0\.0\.1:1: .*refus"),
    ):
        async with open_broker(url) as broker:
            with pytest.raises(error, match=reason):
                await broker.ping()


async def test_a_submit_waits_for_the_new_master(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is killed: a submit a moment later succeeds, by a script called again."""
    monkeypatch.setattr(redis_store, "_CONFIRM_MS", 20_000)  # a busy machine may take its time
    async with open_broker(sentinels.url, confirm_replicas=2) as broker:
        of_others = await broker.client.xlen(STREAM)
        await broker.submit([task("before")])
        old = sentinels.kill().port
        broker.scripts.replicas = 0  # two replicas are no more
        assert await broker.submit([task("before"), task("after")]) == [False, True]
        assert sentinels.promoted(old).port != old
        assert await broker.client.xlen(STREAM) == of_others + 2


async def test_an_application_listens_to_all_sentinels(
    sentinels: Sentinels, tmp_path: Path
) -> None:
    def heard_by() -> list[int]:
        counts = []
        for sentinel in sentinels.sentinels:
            with sentinel.client() as client:
                counts.append(sum(one["sub"] != "0" for one in client.client_list()))
        return counts

    before = heard_by()
    settings = {"namespace": "test", "state_dir": tmp_path}
    async with Nonet.from_settings(redis_url=sentinels.url, **settings):
        await until(lambda: heard_by() == [n + 1 for n in before], "all have a listener more")


def test_each_beat_of_the_watchdog_has_a_new_connection(sentinels: Sentinels) -> None:
    with connect_sync(sentinels.url, PREFIX) as client:
        ids = set()
        for _ in range(2):
            run_sync(client, PREFIX, "presence", "", 30_000, "")
            ids.add(client.client_id())
    assert len(ids) == 2


class Told:
    """A finder whose address a test sets; it fails without one."""

    is_announced = True

    def __init__(self) -> None:
        self.address: Address | None = ("a", 1)
        self.asked = 0
        self.heard = asyncio.Event()

    async def listen(self, heard: asyncio.Event) -> None:
        self.heard = heard
        await asyncio.Event().wait()

    def find(self) -> Address:
        self.asked += 1
        if self.address is None:
            raise exceptions.ConnectionError("no address is known")
        return self.address


async def test_another_master_is_followed_once_for_each_change() -> None:
    finder, moves = Told(), []

    async def moved() -> None:
        moves.append(finder.address)

    async def asked_again() -> None:
        so_far = finder.asked
        finder.heard.set()
        await until(lambda: finder.asked > so_far, "it is asked again")
        finder.heard.set()
        await until(lambda: finder.asked > so_far + 1, "it has been looked at")

    following = asyncio.create_task(topology.follow(finder, moved))
    await until(lambda: finder.asked > 0, "it is asked")
    await asked_again()
    finder.address = None
    await asked_again()
    assert moves == []
    finder.address = ("b", 1)
    await asked_again()
    assert moves == [("b", 1)]
    following.cancel()

"""What the doctor sees of a real namespace, and on which servers daemons start."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nonet import keys
from nonet.diagnosis import Finding, examine
from nonet.doctor import diagnose
from nonet.errors import ConfigurationError
from nonet.locks import ConcurrencyLimiter, MutexLock, RateLimiter, SharedRWLock, encode_locks
from nonet.stores.broker import Broker, Submission
from nonet.stores.groups import Groups
from nonet.stores.inspection import Inspection
from nonet.stores.leases import Leases
from nonet.stores.redis import script

LOCKS = encode_locks(
    [
        MutexLock("job", 7),
        SharedRWLock("job", 8),
        ConcurrencyLimiter("job", 9, limit=1),
        RateLimiter("job", 10, limit=5, window_seconds=60),
    ]
)
SCRIPTS = Path(__file__).parents[2] / "src" / "nonet" / "stores" / "scripts"


def task(id: str, locks: str = "", **fields: object) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", locks, **fields)  # type: ignore[arg-type]


async def findings(broker: Broker) -> list[Finding]:
    rows = [row async for row in Inspection(broker, "test").rows()]
    return [found for row in rows if (found := examine(row, lease=45)) is not None]


async def busy(broker: Broker, redis_url: str) -> None:
    """A namespace in which something of everything is alive."""
    leases = Leases(
        redis_url, "test", "small-a", "{}", worker_ttl=30, lock_ttl=30, timeout_seconds=5
    )
    leases.renew([])
    leases.close()
    groups = Groups(broker.client, "test")
    await groups.open(
        "g", "", policy="all_done", ttl_seconds=60, total=1, callback=task("cb"), on_failure=None
    )
    await broker.submit([task("child", group="g")])
    await groups.seal("g", "")
    await broker.submit([task("r", LOCKS), task("w", LOCKS), task("d", due_us=2**52), task("bad")])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    for delivery in deliveries:
        if delivery.id == "bad":
            await broker.settle(delivery, "dying", b"doc")
    await broker.submit([task("done"), task("retried"), task("queued")])
    (done, retried), _ = await broker.fetch("small-a", "small", 2)
    await broker.settle(done, "done", b"result")
    await broker.settle(retried, "retry", b"error")
    await broker.hold("hold-1", encode_locks([MutexLock("job", 11)]))
    await broker.hold("hold-2", LOCKS, wait=True)


async def test_a_busy_namespace_is_healthy(broker: Broker, redis_url: str) -> None:
    """Tasks of every state, locks, groups and holds: no finding."""
    await busy(broker, redis_url)
    assert await findings(broker) == []


async def drop(broker: Broker, *keys: str) -> None:
    assert await broker.client.delete(*(f"{{test}}:{key}" for key in keys)) > 0


DAMAGE: dict[str, Callable[[Broker], Awaitable[object]]] = {
    "task": lambda b: drop(b, "tasks:normal:small"),
    "lock": lambda b: drop(b, "t:r"),
    "queue": lambda b: b.client.zadd("{test}:queue:lock:mutex:job:7", {"ghost": 1}),
    "group": lambda b: drop(b, "t:child"),
    "worker": lambda b: drop(b, "workers"),
    "stream": lambda b: drop(b, "t:queued"),
    "key": lambda b: b.client.set("{test}:odd", 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damage_is_found(broker: Broker, redis_url: str, kind: str) -> None:
    """What was deleted or added by a foreign hand is told, of its kind."""
    await busy(broker, redis_url)
    await DAMAGE[kind](broker)
    assert kind in {finding.kind for finding in await findings(broker)}


async def test_only_what_lasts_counts(broker: Broker) -> None:
    """A problem that is gone at the second look is none; one that stays is, after the wait."""
    inspection = Inspection(broker, "test")
    await broker.client.set("{test}:odd", 1, px=300)
    await broker.client.set("{test}:other", 1)
    diagnosis = await diagnose(inspection, lease=45, wait_seconds=1.2)
    assert [finding.what for finding in diagnosis.problems] == ["{test}:other"]
    await broker.client.delete("{test}:other")
    healthy = await diagnose(inspection, lease=45, wait_seconds=60)
    assert healthy.is_healthy and healthy.seconds < 30


async def test_what_was_looked_at_has_names_that_people_know(broker: Broker) -> None:
    """Tasks and stream entries, not the rows of a script."""
    await broker.submit([task("a"), task("b")])
    diagnosis = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=0)
    assert diagnosis.looked_at == {"tasks": 2, "stream entries": 2}


@pytest.mark.parametrize("lasts", [True, False])
async def test_durable_tasks_count_if_they_stay(broker: Broker, lasts: bool) -> None:
    """Rows that a relay takes meanwhile are no problem; rows that stay are, once."""
    left = iter([(3, 60.0), (2, 60.0), (2, 61.0)] if lasts else [(3, 60.0), (0, 0.0)])

    async def overdue() -> tuple[int, float]:
        return next(left, (2, 62.0) if lasts else (0, 0.0))

    diagnosis = await diagnose(
        Inspection(broker, "test"), lease=45, wait_seconds=1.5, overdue=overdue
    )
    assert [finding.what for finding in diagnosis.problems] == ["durable tasks"] * lasts


async def test_long_streams_are_walked_to_the_end(broker: Broker) -> None:
    """Also the last of thousands of entries and due tasks is looked at."""
    await broker.submit([task(f"t{i:04}") for i in range(2500)])
    await broker.submit([task(f"d{i:04}", due_us=2**52) for i in range(2500)])
    await drop(broker, "t:t2499", "b:t2499", "t:d2499", "b:d2499")
    found = await findings(broker)
    assert sorted(finding.kind for finding in found) == ["stream", "task"]


def test_every_key_of_the_table_is_known_to_the_doctor() -> None:
    """A kind of key that somebody adds is inspected, or said to need none."""
    types = "STREAM|ZSET|HASH|STRING|LIST|SET"
    heads = re.findall(rf"^    ([a-z]+)\S* +(?:{types}) ", keys.__doc__ or "", re.M)
    known = set(re.findall(r"\b(\w+) = \{(?:false|'\w+'), ", script("inspect")[0]))
    assert set(heads) <= known | {"tasks", "lock", "limiter"}


def test_every_command_of_the_scripts_is_probed() -> None:
    """A permission that a script needs is asked for before a daemon starts."""
    used = set()
    for path in SCRIPTS.rglob("*.lua"):
        if path.stem != "probe":
            used |= set(re.findall(r"\bcall\('([A-Z]+)'", path.read_text()))
    probed = set(re.findall(r"\btry(?:_without_key)?\('([A-Z]+)'", script("probe")[0]))
    assert used <= probed | {"TIME"}


async def test_probing_leaves_nothing(broker: Broker) -> None:
    """Whoever may do everything is denied nothing, and no key stays."""
    await Inspection(broker, "test").check(allow_eviction=False)
    keys = [key async for key in broker.client.scan_iter()]
    assert keys == []


@pytest.mark.parametrize("command", ["xclaim", "blpop", "zpopmax", "info", "hset", "xgroup"])
async def test_a_missing_permission_is_named(broker: Broker, command: str) -> None:
    """A daemon does not start without a command that it needs; INFO it can do without."""
    admin = broker.client
    await admin.acl_setuser(
        "limited",
        enabled=True,
        nopass=True,
        keys=["*"],
        commands=["+@all", f"-{command}"],
        reset=True,
    )
    host = admin.connection_pool.connection_kwargs
    url = f"redis://limited:x@{host['host']}:{host['port']}/0"
    limited = Broker(url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    try:
        if command == "info":
            await Inspection(limited, "test").check(allow_eviction=False)
        else:
            with pytest.raises(ConfigurationError, match=command):
                await Inspection(limited, "test").check(allow_eviction=False)
    finally:
        await limited.aclose()
        await admin.acl_deluser("limited")


async def test_an_evicting_server_is_refused_unless_allowed(broker: Broker) -> None:
    """Redis must not drop tasks to make room; who knows better can say so."""
    await broker.client.config_set("maxmemory-policy", "volatile-lru")
    try:
        with pytest.raises(ConfigurationError, match=r"volatile-lru.*NONET_ALLOW_EVICTION"):
            await Inspection(broker, "test").check(allow_eviction=False)
        await Inspection(broker, "test").check(allow_eviction=True)
    finally:
        await broker.client.config_set("maxmemory-policy", "noeviction")

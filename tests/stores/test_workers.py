"""What is known of workers: who lives, what they know and have in hand, and who is forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from nonet.explanation import explain
from nonet.message import VERSION, Envelope, encode
from nonet.stores.broker import Broker, new_cursors
from nonet.stores.deliveries import Delivery
from nonet.stores.leadership import Leadership
from nonet.stores.leases import Leases, Said
from nonet.stores.lock_board import LockBoard
from nonet.stores.redis import Scripts
from nonet.stores.results import Results
from nonet.stores.submissions import Submission
from nonet.stores.workers import registered as told
from nonet.worker.about import knowledge

LEASE = 5.0
# Since when a registration must be over before it is forgotten; the tests move it, not the clock.
LONG_AGO = 1
KNOWN = {"files:Audit": "1.4"}
NEWER = {"files:Audit": "2.0", "files:Remove": "2.0"}
FIRST = timedelta(seconds=5)


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    opened = Broker(redis_url, "test", lock_ttl=3, lease=LEASE, result_ttl=60, dedup_ttl=60)
    yield opened
    await opened.aclose()


class Crew:
    """Workers that only beat."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def beating(self, worker: str, say: Said) -> Iterator[Leases]:
        """The leases of one, to beat with."""
        leases = Leases(self._url, "test", worker, "", worker_ttl=9, lock_ttl=3, timeout_seconds=2)
        leases.ask(lambda: say)
        try:
            yield leases
        finally:
            leases.close()

    def beat(
        self,
        worker: str,
        versions: dict[str, str] | None = None,
        *,
        name: str = "7@pod",
        off: str = "",
        **counts: int,
    ) -> None:
        """One beat, with all that is said after it."""
        info = json.dumps({"name": name, "size": worker.partition("-")[0], "concurrency": 4})
        known = KNOWN if versions is None else versions
        with self.beating(worker, Said(info, off, known, knowledge(known), counts)) as leases:
            leases.renew([])
            leases.advertise()


@pytest.fixture
def crew(redis_url: str) -> Crew:
    return Crew(redis_url)


def submission(id: str, name: str = "files:Audit", min_version: str = "") -> Submission:
    envelope = Envelope(VERSION, id, name, {}, {}, 0.0, min_version=min_version)
    return Submission(id, name, "normal:small", encode(envelope))


async def take(broker: Broker, worker: str, free: int = 1) -> list[Delivery]:
    return (await broker.fetch(worker, "small", free))[0]


async def end_registration(broker: Broker, worker: str) -> None:
    """As if it had died long ago."""
    await broker.client.zadd("{test}:workers", {worker: LONG_AGO})


async def registered(broker: Broker) -> set[str]:
    return {worker.decode() for worker in await broker.client.zrange("{test}:workers", 0, -1)}


async def explained(broker: Broker, id: str) -> tuple[str, str]:
    found = explain(await LockBoard(broker.client, "test").facts(id))
    return found.cause, found.text


# --- who lives ------------------------------------------------------------------------------------


async def test_a_name_that_is_used_again_is_another_worker(broker: Broker, crew: Crew) -> None:
    """A pod comes back with the same pid and host: only the dead one loses what it held."""
    crew.beat("small-old")
    await broker.submit([submission("a"), submission("b")])
    (held_by_old,) = await take(broker, "small-old")
    crew.beat("small-new")
    (held_by_new,) = await take(broker, "small-new")
    results = Results(broker.client, broker.scripts, broker.url, "test")
    both = await results.workers()
    assert {item.worker for item in both} == {"small-old", "small-new"}
    assert {item.name for item in both} == {"7@pod"}
    assert {item.worker: [task.id for task in item.tasks] for item in both} == {
        "small-old": [held_by_old.id],
        "small-new": [held_by_new.id],
    }
    await end_registration(broker, "small-old")
    stream = "{test}:" + held_by_old.stream_key
    await broker.client.execute_command(
        *("XCLAIM", stream, "workers", "small-old", 0, held_by_old.entry, "IDLE", 3_600_000)
    )
    taken, _ = await broker.reclaim("small-new", "small", new_cursors())
    assert taken == 1
    assert await broker.settle(held_by_old, "done") == "STALE"
    assert await broker.settle(held_by_new, "done") == "OK"
    await broker.leave("small-old", "small")
    assert await registered(broker) == {"small-new"}
    await results.aclose()


async def test_a_lost_worker_is_forgotten_by_one_of_any_size(broker: Broker, crew: Crew) -> None:
    """It had nothing in hand; nothing of it is left."""
    crew.beat("small-gone")
    assert await take(broker, "small-gone") == []
    await end_registration(broker, "small-gone")
    crew.beat("large-alive")
    await broker.reclaim("large-alive", "large", new_cursors())
    assert await registered(broker) == {"large-alive"}
    assert await broker.client.exists("{test}:w:small-gone", "{test}:wake:small-gone") == 0
    assert await broker.client.zcard("{test}:idle:small") == 0
    (group,) = await broker.client.xinfo_groups("{test}:tasks:normal:small")
    assert group["consumers"] == 0


async def test_the_leader_forgets_where_no_worker_lives(broker: Broker, crew: Crew) -> None:
    """Not one with deliveries, which only a worker of its size can take; nor if deposed."""
    for worker in ("small-idle", "small-busy", "medium-idle"):
        crew.beat(worker)
    await broker.submit([submission("a")])
    await take(broker, "small-busy")
    term = await Leadership(broker, "test").lead("me", 30, "{}")
    assert term is not None
    assert await broker.forget_workers(term) == 0  # all of them live
    just_now = round((await broker.logical_now()).timestamp() * 1e6) - 1
    await broker.client.zadd("{test}:workers", {"small-idle": just_now})
    assert await broker.forget_workers(term) == 0  # not for a lease
    for worker in ("small-idle", "small-busy", "medium-idle"):
        await end_registration(broker, worker)
    assert await broker.forget_workers(str(int(term) - 1)) is None
    assert await broker.forget_workers(term) == 2
    assert await registered(broker) == {"small-busy"}


async def test_those_that_cannot_be_forgotten_hide_no_others(broker: Broker, crew: Crew) -> None:
    """However many dead workers have deliveries that nobody of their size takes over."""
    await broker.submit([replace(submission(f"t-{n}"), stream="normal:large") for n in range(210)])
    stuck = {f"large-{n:03}" for n in range(210)}
    for worker in sorted(stuck):
        assert len((await broker.fetch(worker, "large", 1))[0]) == 1
    await broker.client.zadd("{test}:workers", dict.fromkeys(stuck, LONG_AGO))
    gone = {f"small-{n:03}": LONG_AGO + 1 for n in range(15)}
    await broker.client.zadd("{test}:workers", gone)
    term = await Leadership(broker, "test").lead("me", 30, "{}")
    assert term is not None
    forgotten = [await broker.forget_workers(term) for _ in range(50)]
    assert sum(number or 0 for number in forgotten) == 15
    assert await registered(broker) == stuck


async def test_workers_that_beat_meanwhile_are_told_once_each(broker: Broker, crew: Crew) -> None:
    """A beat moves a registration, one that ends removes it: no page misses another one."""
    for number in range(45):
        crew.beat(f"small-{number:02}")

    class Meanwhile(Scripts):
        async def run(self, name: str, *args: Any) -> Any:
            answer = await super().run(name, *args)
            for worker in ("small-00", "small-01"):
                crew.beat(worker)
            await broker.client.zrem("{test}:workers", "small-44")
            return answer

    found = [item.worker for item in await told(Meanwhile(broker.client, "{test}:"))]
    assert found == [f"small-{number:02}" for number in range(44)]


async def test_of_many_workers_and_tasks_some_are_named_and_all_counted(
    broker: Broker, crew: Crew
) -> None:
    """However many there are, a script looks at a few, and each is told once."""
    for number in range(45):
        crew.beat(f"small-{number:02}")
    await broker.submit([submission(f"t-{number}") for number in range(30)])
    assert len(await take(broker, "small-07", 30)) == 30
    results = Results(broker.client, broker.scripts, broker.url, "test")
    found = {item.worker: item for item in await results.workers()}
    await results.aclose()
    assert len(found) == 45
    busy = found.pop("small-07")
    assert (busy.running, len(busy.tasks), busy.state) == (30, 20, "working")
    assert {(task.task, task.since is not None) for task in busy.tasks} == {("files:Audit", True)}
    assert {item.state for item in found.values()} == {"idle"}


# --- what they say --------------------------------------------------------------------------------


async def test_what_a_worker_knows_is_kept_once(broker: Broker, crew: Crew) -> None:
    """Workers of one release share a list, which ends some time after the last of them."""
    crew.beat("small-a")
    crew.beat("small-b")
    crew.beat("small-c", NEWER)
    keys = await broker.client.keys("{test}:names:*")
    assert len(keys) == 2
    assert {await broker.client.hlen(key) for key in keys} == {1, 2}
    assert all([0 < await broker.client.ttl(key) <= 90 for key in keys])


async def test_what_redis_has_lost_is_said_again(
    broker: Broker, crew: Crew, redis_url: str
) -> None:
    """With the next beat, by every worker; one that has left says nothing more."""
    said = Said("{}", "", KNOWN, knowledge(KNOWN))
    with crew.beating("small-a", said) as leases:
        for _ in range(2):
            leases.renew([])
            leases.advertise()
            assert await broker.client.hgetall(f"{{test}}:names:{said.knows}") == {
                b"files:Audit": b"1.4"
            }
            await broker.client.flushall()
        leases.advertise()
    assert await broker.client.exists("{test}:w:small-a") == 0


async def test_counts_are_added_and_their_names_are_few(broker: Broker, crew: Crew) -> None:
    """Classes come and go; beyond a thousand counters the rest share one."""
    crew.beat("small-a", **{"loop:blocked": 2, "blocked:files:Audit": 2})
    crew.beat("small-a", **{"loop:blocked": 1, "blocked:files:Audit": 1})
    await broker.client.hset("{test}:counters", mapping={f"n{n}": 1 for n in range(1000)})
    crew.beat("small-a", **{"loop:blocked": 1, "blocked:files:Remove": 1})
    names = ("loop:blocked", "blocked:files:Audit", "blocked:files:Remove", "blocked:others")
    counted = await broker.client.hmget("{test}:counters", *names)
    assert counted == [b"4", b"3", None, b"1"]


async def test_who_declines_passes_its_wake_up_on(broker: Broker, crew: Crew) -> None:
    """And is not woken again before it has fetched."""
    for worker in ("small-a", "small-b"):
        crew.beat(worker)
        await take(broker, worker)
    await broker.submit([submission("1")])
    assert await broker.client.llen("{test}:wake:small-b") == 1
    await broker.decline("small-b", "small")
    assert await broker.client.llen("{test}:wake:small-b") == 0
    assert await broker.client.llen("{test}:wake:small-a") == 1
    await broker.submit([submission("2")])
    assert await broker.client.llen("{test}:wake:small-b") == 0


# --- what nobody knows ----------------------------------------------------------------------------


async def rests(broker: Broker, times: int) -> list[int]:
    """For how many seconds one task rests each time that it is handed on by ``small-a``."""
    found = []
    for _ in range(times):
        (delivery,) = await take(broker, "small-a")
        assert await broker.settle(delivery, "on", text="no worker knows it", delay=FIRST) == "OK"
        due = await broker.client.zscore("{test}:tasks:delayed", delivery.id)
        found.append(round(due / 1e6 - (await broker.logical_now()).timestamp()))
        await broker.client.zadd("{test}:tasks:delayed", {delivery.id: 1})
        await broker.promote()
    return found


async def test_what_nobody_knows_rests_longer_each_time(broker: Broker, crew: Crew) -> None:
    """Up to a minute, and without using an attempt; a worker of another size changes nothing."""
    crew.beat("small-a")
    crew.beat("large-b", NEWER)
    await broker.submit([submission("a", "files:Remove")])
    assert await rests(broker, 9) == [5, 5, 5, 10, 20, 40, 60, 60, 60]
    (delivery,) = await take(broker, "small-a")
    assert (delivery.used, delivery.deaths) == (0, 0)


@pytest.mark.parametrize("name", ["files:Remove", "files:Audit"])
async def test_what_another_worker_may_know_is_soon_looked_at_again(
    broker: Broker, crew: Crew, name: str
) -> None:
    """One that is alive, and knows the class or has another version of it."""
    crew.beat("small-a")
    crew.beat("small-b", NEWER)
    await broker.submit([submission("a", name)])
    assert await rests(broker, 5) == [5, 5, 5, 5, 5]
    await end_registration(broker, "small-b")
    assert await rests(broker, 1) == [40]


async def test_one_worker_among_many_that_knows_it_is_found(broker: Broker, crew: Crew) -> None:
    """However many there are, of whatever size."""
    crew.beat("small-a")
    soon = round((await broker.logical_now()).timestamp() * 1e6) + 5_000_000
    others = {f"{size}-{n:03}": soon for size in ("large", "small") for n in range(150)}
    await broker.client.zadd("{test}:workers", others)
    crew.beat("small-b", NEWER)
    await broker.submit([submission("a", "files:Remove")])
    assert await rests(broker, 5) == [5, 5, 5, 5, 5]


OLDER = {"files:Audit": "1.2"}
REMOVE = "files:Remove"


async def idle(broker: Broker, crew: Crew, **known: dict[str, str]) -> None:
    """Let workers ``small-NAME`` become idle, the last of them at the top of the stack."""
    for name, versions in known.items():
        crew.beat(f"small-{name}", versions)
        assert await take(broker, f"small-{name}") == []


async def woken(broker: Broker) -> set[str]:
    """Who was woken, by the name after the size; from now on nobody is."""
    keys = await broker.client.keys("{test}:wake:small-*")
    if keys:
        await broker.client.delete(*keys)
    return {key.decode().rpartition("-")[2] for key in keys}


async def hand_on(broker: Broker, worker: str, *ids: str) -> None:
    """Let a worker take tasks that it cannot run; wake whoever is to look at them next."""
    taken = await take(broker, f"small-{worker}", len(ids) + 1)
    assert {delivery.id for delivery in taken} == set(ids)
    for delivery in taken:
        assert await broker.settle(delivery, "on", text="not here", delay=FIRST) == "OK"
    await woken(broker)
    await broker.client.zadd("{test}:tasks:delayed", dict.fromkeys(ids, 1))
    await broker.promote()


async def test_who_knows_it_is_woken_for_what_was_handed_on(broker: Broker, crew: Crew) -> None:
    """And not who has handed it on, however many such workers became idle later."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN, c=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    assert await woken(broker) == {"c"}
    await hand_on(broker, "c", "t")
    assert await woken(broker) == {"new"}
    assert await broker.client.zscore("{test}:idle:small", "small-new") is None


async def test_who_has_another_version_is_woken_for_it(broker: Broker, crew: Crew) -> None:
    """Also where all know the class, but those at the top of the stack are too old."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN)
    await broker.submit([submission("t")])
    await hand_on(broker, "b", "t")
    assert await woken(broker) == {"new"}


async def test_of_those_who_may_know_it_each_has_its_turn(broker: Broker, crew: Crew) -> None:
    """Two old releases do not hand a task to each other for ever while a new one is idle."""
    await idle(broker, crew, new=NEWER, older=OLDER, old=KNOWN)
    await broker.submit([submission("t")])
    found = []
    last = "old"
    for _ in range(2):
        await hand_on(broker, last, "t")
        (last,) = await woken(broker)
        found.append(last)
        if last == "new":
            break
    assert found[-1] == "new", found


async def test_who_knows_it_is_woken_for_many_at_once(broker: Broker, crew: Crew) -> None:
    """It goes on taking them; nobody else is woken to hand them on once more."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN)
    ids = [f"t-{number}" for number in range(5)]
    await broker.submit([submission(id, REMOVE) for id in ids])
    # All were woken, and those that came too late are idle again.
    await broker.client.zadd("{test}:idle:small", {"small-new": 1, "small-a": 2})
    await hand_on(broker, "b", *ids)
    assert await woken(broker) == {"new"}


async def test_while_nobody_who_knows_it_is_idle_all_is_as_ever(broker: Broker, crew: Crew) -> None:
    """The last idle one is woken, also if who knows it is dead."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    await end_registration(broker, "small-new")
    await hand_on(broker, "b", "t")
    assert await woken(broker) == {"b"}
    crew.beat("small-new", NEWER)  # alive, and busy
    await broker.client.zrem("{test}:idle:small", "small-new")
    await hand_on(broker, "b", "t")
    assert await woken(broker) == {"b"}


async def test_who_knows_it_is_woken_for_its_next_attempt(broker: Broker, crew: Crew) -> None:
    """After a failure it is not offered first to those who cannot run it."""
    await idle(broker, crew, new=NEWER, a=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    await hand_on(broker, "a", "t")
    (delivery,) = await take(broker, "small-new")
    assert await broker.settle(delivery, "retry", b"{}", text="E", delay=FIRST) == "OK"
    await idle(broker, crew, new=NEWER, a=KNOWN)
    await woken(broker)
    await broker.client.zadd("{test}:tasks:delayed", {"t": 1})
    await broker.promote()
    assert await woken(broker) == {"new"}


async def test_who_reads_a_newer_record_is_woken_for_it(broker: Broker, crew: Crew) -> None:
    """Also by a promotion of the old release, which moves it as it is."""
    await idle(broker, crew, a=KNOWN, b=KNOWN)
    newer = Said("{}", "", KNOWN, "9" + knowledge(KNOWN))
    with crew.beating("small-new", newer) as leases:
        leases.renew([])
        leases.advertise()
    await broker.client.zadd("{test}:idle:small", {"small-new": 1})
    await broker.submit([submission("t")])
    await broker.client.hset("{test}:t:t", "v", 9)
    assert await take(broker, "small-b") == []
    await woken(broker)
    await broker.client.zadd("{test}:tasks:delayed", {"t": 1})
    await broker.promote()
    assert await woken(broker) == {"new"}


async def test_explain_names_who_could_run_it(broker: Broker, crew: Crew) -> None:
    """Before any worker has looked at the task, and after it was handed on."""
    crew.beat("small-a", name="1@old")
    await broker.submit([submission("a", "files:Remove")])
    unknown = "no live worker of size small knows files:Remove (1 worker)"
    assert await explained(broker, "a") == ("unknown", f"queued: {unknown}")
    (delivery,) = await take(broker, "small-a")
    await broker.settle(delivery, "on", text="a worker does not know files:Remove", delay=FIRST)
    cause, text = await explained(broker, "a")
    assert (cause, text.partition(";")[0]) == ("unknown", f"waiting: handed back: {unknown}")
    crew.beat("small-b", NEWER, name="2@new")
    cause, text = await explained(broker, "a")
    assert cause == "hand-back"
    assert "a worker does not know files:Remove; 2@new can run it and is alive; looked at" in text


async def test_explain_names_the_version_that_is_missing(broker: Broker, crew: Crew) -> None:
    """As the envelope asks for it, and as live workers say that they have it."""
    crew.beat("small-a")
    await broker.submit([submission("a", min_version="2.0.dev0")])
    assert await explained(broker, "a") == (
        "unknown",
        "queued: files:Audit needs version 2.0.dev0, and no live worker of size small has it "
        "(1 worker: 1.4)",
    )
    crew.beat("small-b", NEWER)
    assert (await explained(broker, "a"))[0] == "queue"


async def test_explain_names_who_takes_nothing(broker: Broker, crew: Crew) -> None:
    """With the reason of the first; a task is stuck only if nobody takes any."""
    crew.beat("small-a", off="memory: 1 MiB free, below the floor of 1 GiB", name="1@a")
    crew.beat("small-b", name="2@b")
    await broker.submit([submission("a")])
    cause, text = await explained(broker, "a")
    why = "takes nothing: memory: 1 MiB free, below the floor of 1 GiB (1@a)"
    assert (cause, text) == ("queue", f"queued: next in line; 1 of 2 workers of size small {why}")
    crew.beat("small-b", off="load: 9", name="2@b")
    cause, text = await explained(broker, "a")
    assert cause == "veto" and "2 of 2 workers of size small take nothing: " in text

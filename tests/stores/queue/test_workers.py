"""What is known of workers: who lives, what they know and have in hand, and who is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from nonet.messages.formats import FORMAT
from nonet.messages.message import Envelope, encode
from nonet.rules.explanation import explain
from nonet.stores.connection.redis import Scripts
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Leases, Said
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workers import registered as told
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
    envelope = Envelope(FORMAT, id, name, {}, {}, 0.0, min_version=min_version)
    return Submission(id, name, "normal:small", encode(envelope))


async def take(broker: Broker, worker: str, free: int = 1) -> list[Delivery]:
    return (await broker.fetch(worker, "small", free))[0]


async def end_registration(broker: Broker, worker: str) -> None:
    """As if it had died long ago."""
    await broker.client.zadd("{test}:workers", {worker: LONG_AGO})


async def registered(broker: Broker) -> set[str]:
    return {worker.decode() for worker in await broker.client.zrange("{test}:workers", 0, -1)}


async def explained(broker: Broker, id: str) -> tuple[str, str]:
    found = explain(await TaskFacts(broker.client, "test").read(id))
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


async def test_the_death_of_a_worker_is_one_event_with_its_tasks(
    broker: Broker, crew: Crew
) -> None:
    """The first ten are named; another beat and another death are another event."""
    events = Events(broker.client, "test")
    crew.beat("small-gone", name="7@gone")
    await broker.submit([submission(f"t-{n:02}") for n in range(12)])
    assert len(await take(broker, "small-gone", 12)) == 12
    crew.beat("small-alive", name="8@alive")
    await broker.reclaim("small-alive", "small", new_cursors())
    assert await events.last(5, kind="worker-lost") == []
    for _ in range(2):
        await end_registration(broker, "small-gone")
        await broker.reclaim("small-alive", "small", new_cursors())
        await broker.reclaim("small-alive", "small", new_cursors())
    (event,) = await events.last(5, kind="worker-lost")
    named = ", ".join(f"t-{n:02}" for n in range(10))
    assert (event.who, event.text) == ("8@alive", f"7@gone died with 12 tasks: {named} and 2 more")
    crew.beat("small-gone", name="7@gone")
    await broker.client.zadd("{test}:workers", {"small-gone": LONG_AGO + 1})
    await broker.reclaim("small-alive", "small", new_cursors())
    assert len(await events.last(5, kind="worker-lost")) == 2


async def test_no_worker_is_reported_by_one_that_was_cut_off_itself(
    broker: Broker, crew: Crew
) -> None:
    """After an outage of Redis all registrations have ended, and nobody died."""
    for worker in ("small-one", "small-other"):
        crew.beat(worker)
        await end_registration(broker, worker)
    await broker.reclaim("small-one", "small", new_cursors())
    assert await Events(broker.client, "test").last(5, kind="worker-lost") == []


async def test_the_leader_reports_a_death_where_no_worker_lives(broker: Broker, crew: Crew) -> None:
    """A lease after the registration ended."""
    crew.beat("small-gone", name="7@gone")
    term = await Leadership(broker, "test").lead("9@leader/x", 30, "{}")
    await end_registration(broker, "small-gone")
    await broker.forget_workers(term or "")
    (event,) = await Events(broker.client, "test").last(5, kind="worker-lost")
    assert (event.who, event.text) == ("9@leader", "7@gone died without tasks")


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


OLDER = {"files:Audit": "1.2"}
REMOVE = "files:Remove"
DELAYED = "{test}:tasks:delayed"


async def rests(broker: Broker, id: str) -> int:
    """For how many seconds a task rests from now on, if no worker takes it."""
    due = await broker.client.zscore(DELAYED, id)
    return round(due / 1e6 - (await broker.logical_now()).timestamp())


async def come_due(broker: Broker, *ids: str) -> None:
    """Let their rest be over."""
    await broker.client.zadd(DELAYED, dict.fromkeys(ids, 1))
    await broker.promote()


async def state(broker: Broker, id: str) -> str:
    return (await broker.client.hget(f"{{test}}:t:{id}", "state")).decode()


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
    """Let a worker take tasks and hand them on, as it cannot run them."""
    await woken(broker)
    taken = await take(broker, f"small-{worker}", len(ids) + 1)
    assert {delivery.id for delivery in taken} == set(ids)
    for delivery in taken:
        options = {"text": "not here", "delay": FIRST, "started": False}
        assert await broker.settle(delivery, "on", **options) == "OK"


async def handed_on(broker: Broker, crew: Crew, *ids: str) -> None:
    """Tasks of a class that the one live worker, ``small-old``, does not know and has handed on."""
    crew.beat("small-old")
    await broker.submit([submission(id, REMOVE) for id in ids])
    await hand_on(broker, "old", *ids)


async def test_what_nobody_knows_costs_no_delivery_while_it_waits(
    broker: Broker, crew: Crew
) -> None:
    """When it is due it is looked at, and not queued; a worker of another size changes nothing."""
    crew.beat("large-b", NEWER)
    await handed_on(broker, crew, "t")
    assert await rests(broker, "t") == 5
    for _ in range(5):
        await come_due(broker, "t")
        assert (await state(broker, "t"), await rests(broker, "t")) == ("waiting", 60)
        assert await take(broker, "small-old") == []
    assert await broker.client.hget("{test}:t:t", "handed") == b"1"


async def test_a_registration_wakes_what_waits_for_it(broker: Broker, crew: Crew) -> None:
    """An idle worker whose classes are told from now on takes it, without an attempt used."""
    await handed_on(broker, crew, "t")
    assert await take(broker, "small-new") == []
    crew.beat("small-new", NEWER)
    assert await woken(broker) == {"new"}
    (delivery,) = await take(broker, "small-new")
    assert (delivery.id, delivery.used, delivery.deaths) == ("t", 0, 0)
    assert await broker.settle(delivery, "done", b"{}") == "OK"
    assert await take(broker, "small-new") == []
    assert await broker.client.keys("{test}:*t") == [b"{test}:r:t"]
    assert await broker.client.keys("{test}:handed:*") == []


async def test_a_worker_takes_no_more_of_it_than_it_has_slots_for(
    broker: Broker, crew: Crew
) -> None:
    """The oldest first, and the rest stays for others that know it."""
    await handed_on(broker, crew, "a", "b", "c")
    crew.beat("small-new", NEWER)
    assert [item.id for item in await take(broker, "small-new", 2)] == ["a", "b"]
    assert [await state(broker, id) for id in "abc"] == ["running", "running", "waiting"]
    crew.beat("small-newer", NEWER)
    assert [item.id for item in await take(broker, "small-newer", 2)] == ["c"]


async def test_what_was_handed_on_keeps_its_priority(broker: Broker, crew: Crew) -> None:
    """It comes before what was submitted later, and after what is more urgent."""
    await handed_on(broker, crew, "t")
    await broker.submit(
        [submission("later"), replace(submission("urgent"), stream="realtime:small")]
    )
    crew.beat("small-new", NEWER)
    taken = await take(broker, "small-new", 3)
    assert [item.id for item in taken] == ["urgent", "t", "later"]


async def test_a_flood_is_taken_in_pages(broker: Broker, crew: Crew) -> None:
    """Neither a registration nor a fetch does more the more tasks wait."""

    async def commands() -> int:
        found = await broker.client.info("commandstats")
        return sum(item["calls"] for item in found.values())

    spent = []
    for number in range(2):
        ids = [f"{number}-{n:04}" for n in range(10 + 3000 * number)]
        await broker.submit([submission(id, REMOVE) for id in ids])
        crew.beat("small-old")
        while taken := await take(broker, "small-old", 500):
            settling = [broker.settle(item, "on", text="not here", delay=FIRST) for item in taken]
            assert set(await asyncio.gather(*settling)) == {"OK"}
        before = await commands()
        crew.beat("small-new", NEWER)
        assert len(await take(broker, "small-new", 10)) == 10
        spent.append(await commands() - before)
        await broker.client.zrem("{test}:workers", "small-new")
        await broker.client.delete("{test}:w:small-new")
    assert spent[1] <= spent[0] + 5, spent


async def test_what_a_woken_worker_did_not_take_waits_for_the_next(
    broker: Broker, crew: Crew
) -> None:
    """It died after it was woken, or its fetch was lost: nothing is lost with it."""
    await handed_on(broker, crew, "t")
    assert await take(broker, "small-new") == []
    crew.beat("small-new", NEWER)
    assert await woken(broker) == {"new"}
    await end_registration(broker, "small-new")
    crew.beat("small-newer", NEWER)
    assert [item.id for item in await take(broker, "small-newer")] == ["t"]
    await broker.disown("small-newer", "small", [])
    await hand_on(broker, "old", "t")
    assert [item.id for item in await take(broker, "small-newer")] == ["t"]


async def test_who_knows_it_is_woken_for_what_is_handed_on(broker: Broker, crew: Crew) -> None:
    """At once, and not who has handed it on, however many such workers became idle later."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN, c=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    assert await woken(broker) == {"c"}
    await hand_on(broker, "c", "t")
    assert await woken(broker) == {"new"}
    assert await broker.client.zscore("{test}:idle:small", "small-new") is None
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_two_old_releases_do_not_hand_a_task_to_each_other(
    broker: Broker, crew: Crew
) -> None:
    """Each version of a class gets it once; then it waits for another one."""
    await idle(broker, crew, older=OLDER, old=KNOWN)
    await broker.submit([submission("t")])
    await hand_on(broker, "old", "t")
    assert await woken(broker) == {"older"}
    await hand_on(broker, "older", "t")
    assert await woken(broker) == set()
    await come_due(broker, "t")
    for name in ("old", "older"):
        assert await take(broker, f"small-{name}") == []
    crew.beat("small-new", NEWER)
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_who_knows_it_is_woken_for_many_at_once(broker: Broker, crew: Crew) -> None:
    """It goes on taking them; nobody else is woken to hand them on once more."""
    await idle(broker, crew, new=NEWER, a=KNOWN, b=KNOWN)
    ids = [f"t-{number}" for number in range(5)]
    await broker.submit([submission(id, REMOVE) for id in ids])
    # All were woken, and those that came too late are idle again.
    await broker.client.zadd("{test}:idle:small", {"small-new": 1, "small-a": 2})
    await hand_on(broker, "b", *ids)
    assert await woken(broker) == {"new"}
    assert len(await take(broker, "small-new", 9)) == 5


async def test_who_is_busy_takes_it_with_its_next_free_slot(broker: Broker, crew: Crew) -> None:
    """Nobody is woken meanwhile, and nobody else gets it."""
    crew.beat("small-new", NEWER)
    await idle(broker, crew, a=KNOWN, b=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    await hand_on(broker, "b", "t")
    await come_due(broker, "t")
    assert await woken(broker) == set()
    assert await take(broker, "small-a") == []
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_who_knows_it_is_woken_for_its_next_attempt(broker: Broker, crew: Crew) -> None:
    """After a failure it is not offered first to those who cannot run it."""
    await idle(broker, crew, new=NEWER, a=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    await hand_on(broker, "a", "t")
    (delivery,) = await take(broker, "small-new")
    assert await broker.settle(delivery, "retry", b"{}", text="E", delay=FIRST) == "OK"
    await idle(broker, crew, new=NEWER, a=KNOWN)
    await woken(broker)
    await come_due(broker, "t")
    assert await woken(broker) == {"new"}


async def test_a_suspect_that_was_handed_on_stays_one(broker: Broker, crew: Crew) -> None:
    """Whoever knows it takes it beside its slots, not in one of them."""
    crew.beat("small-old")
    await broker.submit([submission("t", REMOVE)])
    await broker.client.hset("{test}:t:t", "suspect", 1)
    await hand_on(broker, "old", "t")
    crew.beat("small-new", NEWER)
    assert await take(broker, "small-new") == []
    ((delivery,), _) = await broker.fetch("small-new", "small", 1, room=1)
    assert (delivery.id, delivery.stream_key) == ("t", "suspects:normal:small")


async def test_who_reads_a_newer_record_is_woken_for_it(broker: Broker, crew: Crew) -> None:
    """Also by the fetch of a worker that cannot read it."""
    await idle(broker, crew, a=KNOWN, b=KNOWN)
    newer = Said("{}", "", KNOWN, "9" + knowledge(KNOWN))
    with crew.beating("small-new", newer) as leases:
        leases.renew([])
        leases.advertise()
    await broker.client.zadd("{test}:idle:small", {"small-new": 1})
    await broker.submit([submission("t")])
    await broker.client.hset("{test}:t:t", "v", 9)
    await woken(broker)
    assert await take(broker, "small-b") == []
    assert await woken(broker) == {"new"}
    await come_due(broker, "t")
    assert await take(broker, "small-a") == []
    await broker.client.hdel("{test}:t:t", "v")  # who can read it
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_an_idle_worker_does_not_retire_while_it_could_run_it(
    broker: Broker, crew: Crew
) -> None:
    """It was handed on just now; those that do not know it may go."""
    await idle(broker, crew, new=NEWER)
    await handed_on(broker, crew, "t")
    await woken(broker)
    demands = Demands(broker.client, "test", 3000)
    assert not await demands.retire("small-new", "small")
    assert await demands.retire("small-old", "small")


# --- handed on, and something else happens --------------------------------------------------------


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_what_ends_while_it_waits_is_found_no_more(
    broker: Broker, crew: Crew, end: str
) -> None:
    """By an operator, or as its time is over; a worker that would have known it gets nothing."""
    crew.beat("small-old")
    await broker.submit([replace(submission("t", REMOVE), terms="start_by|+3600000000|")])
    await hand_on(broker, "old", "t")
    if end == "cancelled":
        assert await broker.cancel(["t"], "by a test") == ["cancelled"]
    else:
        await broker.client.zadd("{test}:deadlines", {"t": 1})
        await broker.promote()
    assert (await broker.client.get("{test}:r:t")).startswith(end.encode())
    for kind in ("handed", "unfit"):
        assert await broker.client.keys(f"{{test}}:{kind}:*") == []
    crew.beat("small-new", NEWER)
    assert await take(broker, "small-new") == []


async def test_where_workers_do_not_say_what_they_know_it_rests_longer_each_time(
    broker: Broker,
) -> None:
    """It is queued for whoever comes, at most once a minute."""
    await broker.submit([submission("t", REMOVE)])
    found = []
    for _ in range(9):
        await hand_on(broker, "old", "t")
        found.append(await rests(broker, "t"))
        await come_due(broker, "t")
    assert found == [5, 5, 5, 10, 20, 40, 60, 60, 60]


async def test_what_is_left_over_starts_nothing(broker: Broker, crew: Crew) -> None:
    """A script was cut after it had queued or ended the task."""
    await handed_on(broker, crew, "gone", "queued", "parked")
    await broker.client.delete("{test}:t:gone")
    await broker.client.hset("{test}:t:queued", "state", "queued")
    await broker.client.hset("{test}:t:parked", "places", "x")
    crew.beat("small-new", NEWER)
    assert await take(broker, "small-new") == []
    assert await broker.client.keys("{test}:unfit:*") == []


async def test_explain_names_who_could_run_it(broker: Broker, crew: Crew) -> None:
    """Before any worker has looked at the task, and after it was handed on."""
    crew.beat("small-a", name="1@old")
    await broker.submit([submission("a", "files:Remove")])
    unknown = "no live small worker knows files:Remove (1 worker). Deploy its package there"
    assert await explained(broker, "a") == ("unknown", f"queued: {unknown}")
    (delivery,) = await take(broker, "small-a")
    await broker.settle(delivery, "on", text="a worker does not know files:Remove", delay=FIRST)
    cause, text = await explained(broker, "a")
    assert (cause, text) == ("unknown", f"waiting, handed back: {unknown}")
    crew.beat("small-b", NEWER, name="2@new")
    cause, text = await explained(broker, "a")
    assert cause == "hand-back"
    assert "files:Remove. 2@new can run it as soon as a slot is free" in text


async def test_explain_names_the_version_that_is_missing(broker: Broker, crew: Crew) -> None:
    """As the envelope asks for it, and as live workers say that they have it."""
    crew.beat("small-a")
    await broker.submit([submission("a", min_version="2.0.dev0")])
    assert await explained(broker, "a") == (
        "unknown",
        "queued: files:Audit needs version 2.0.dev0, and no live small worker has it "
        "(1 worker: 1.4). Upgrade its package there",
    )
    crew.beat("small-b", NEWER)
    assert (await explained(broker, "a"))[0] == "queue"


async def test_explain_names_who_takes_nothing(broker: Broker, crew: Crew) -> None:
    """With the reason of the first; a task is stuck only if nobody takes any."""
    crew.beat("small-a", off="memory: 1 MiB free, below the floor of 1 GiB", name="1@a")
    crew.beat("small-b", name="2@b")
    await broker.submit([submission("a")])
    cause, text = await explained(broker, "a")
    why = "takes no tasks: memory: 1 MiB free, below the floor of 1 GiB (1@a)"
    assert (cause, text) == ("queue", f"queued, first in its stream. 1 of 2 small workers {why}")
    crew.beat("small-b", off="load: 9", name="2@b")
    cause, text = await explained(broker, "a")
    assert cause == "veto" and "2 of 2 small workers take no tasks: " in text

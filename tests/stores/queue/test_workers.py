"""What is known of workers: who lives, what they know and have in hand, and who is forgotten."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import records
from msgspec.structs import replace
from stores.beats import leases_of
from stores.queue.test_broker import lapse

from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.rules.findings.explanation import explain
from nonet.stores.connection.redis import Scripts
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.figures import Measures
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import BeatReport, Leases
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workers import registered as told
from nonet.worker.about import knowledge

# Since when a registration must be over before it is forgotten; the tests move it, not the clock.
LONG_AGO = 1
KNOWN = {"files:Audit": "1.4"}
NEWER = {"files:Audit": "2.0", "files:Remove": "2.0"}
FIRST = timedelta(seconds=5)


@contextmanager
def beating(broker: Broker, worker: str, say: BeatReport) -> Iterator[Leases]:
    """The leases of a worker that only beats."""
    leases = leases_of(broker.url, worker, "", worker_ttl=9)
    leases.ask(lambda: say)
    try:
        yield leases
    finally:
        leases.close()


def beat(
    broker: Broker,
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
    with beating(broker, worker, BeatReport(info, off, known, knowledge(known), counts)) as leases:
        leases.renew([])
        leases.advertise()


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


async def test_a_reused_name_is_another_worker(broker: Broker, results: Results) -> None:
    """A pod comes back with the same pid and host: each of the two has its own tasks."""
    await broker.submit([submission("a"), submission("b")])
    held = {}
    for worker in ("small-old", "small-new"):
        beat(broker, worker)
        held[worker] = [item.id for item in await take(broker, worker)]
    both = await results.workers()
    assert {item.name for item in both} == {"7@pod"}
    assert {item.worker: [task.id for task in item.tasks] for item in both} == held


async def test_a_death_is_one_event_with_the_tasks(broker: Broker) -> None:
    """The first ten are named; another beat and another death are another event."""
    events = Events(broker.client, "test")
    beat(broker, "small-gone", name="7@gone")
    await broker.submit([submission(f"t-{n:02}") for n in range(12)])
    assert len(await take(broker, "small-gone", 12)) == 12
    beat(broker, "small-alive", name="8@alive")
    await broker.reclaim("small-alive", "small", new_cursors())
    assert await events.last(5, kind="worker-lost") == []
    for _ in range(2):
        await end_registration(broker, "small-gone")
        await broker.reclaim("small-alive", "small", new_cursors())
        await broker.reclaim("small-alive", "small", new_cursors())
    (event,) = await events.last(5, kind="worker-lost")
    named = ", ".join(f"t-{n:02}" for n in range(10))
    assert (event.who, event.text) == ("8@alive", f"7@gone died with 12 tasks: {named} and 2 more")
    beat(broker, "small-gone", name="7@gone")
    await broker.client.zadd("{test}:workers", {"small-gone": LONG_AGO + 1})
    await broker.reclaim("small-alive", "small", new_cursors())
    assert len(await events.last(5, kind="worker-lost")) == 2


async def test_a_worker_that_was_cut_off_reclaims_nothing(broker: Broker) -> None:
    """After an outage of Redis all registrations have ended, and no worker died."""
    await broker.submit([submission("a")])
    for worker in ("small-one", "small-other"):
        beat(broker, worker)
        await end_registration(broker, worker)
    (held,) = await take(broker, "small-other")
    await lapse(broker, held)
    assert (await broker.reclaim("small-one", "small", new_cursors()))[0] == 0
    assert await Events(broker.client, "test").last(5, kind="worker-lost") == []
    beat(broker, "small-one")
    assert (await broker.reclaim("small-one", "small", new_cursors()))[0] == 1


async def test_a_worker_of_any_size_forgets_a_lost_one(broker: Broker) -> None:
    """It had no task; nothing of it is left."""
    beat(broker, "small-gone")
    assert await take(broker, "small-gone") == []
    await end_registration(broker, "small-gone")
    beat(broker, "large-alive")
    await broker.reclaim("large-alive", "large", new_cursors())
    assert await registered(broker) == {"large-alive"}
    assert await broker.client.exists("{test}:w:small-gone", "{test}:wake:small-gone") == 0
    assert await broker.client.zcard("{test}:idle:small") == 0
    (group,) = await broker.client.xinfo_groups("{test}:tasks:normal:small")
    assert group["consumers"] == 0


async def test_the_leader_forgets_workers_if_none_lives(broker: Broker, term: str) -> None:
    """And reports them; only a worker of its size can forget one with deliveries."""
    for worker in ("small-idle", "small-busy", "medium-idle"):
        beat(broker, worker)
    await broker.submit([submission("a")])
    await take(broker, "small-busy")
    assert await broker.forget_workers(term) == 0  # all of them live
    just_now = round((await broker.logical_now()).timestamp() * 1e6) - 1
    await broker.client.zadd("{test}:workers", {"small-idle": just_now})
    assert await broker.forget_workers(term) == 0  # not for a lease
    for worker in ("small-idle", "small-busy", "medium-idle"):
        await end_registration(broker, worker)
    assert await broker.forget_workers(term) == 2
    assert await registered(broker) == {"small-busy"}
    told = await Events(broker.client, "test").last(5, kind="worker-lost")
    assert {event.who for event in told} == {"a"}
    assert {event.text for event in told} == {
        *("7@pod died without tasks", "7@pod died with 1 task: a")
    }


async def test_workers_that_cannot_be_forgotten_hide_no_others(broker: Broker, term: str) -> None:
    """Dead workers keep deliveries that no worker of their size takes over."""
    await broker.submit([replace(submission(f"t-{n}"), stream="normal:large") for n in range(210)])
    stuck = {f"large-{n:03}" for n in range(210)}
    for worker in sorted(stuck):
        assert len((await broker.fetch(worker, "large", 1))[0]) == 1
    await broker.client.zadd("{test}:workers", dict.fromkeys(stuck, LONG_AGO))
    gone = {f"small-{n:03}": LONG_AGO + 1 for n in range(15)}
    await broker.client.zadd("{test}:workers", gone)
    forgotten = [await broker.forget_workers(term) for _ in range(50)]
    assert sum(number or 0 for number in forgotten) == 15
    assert await registered(broker) == stuck


async def test_a_worker_that_beats_meanwhile_is_listed_once(broker: Broker) -> None:
    """A beat moves a registration, an end removes it: no page misses another one."""
    for number in range(45):
        beat(broker, f"small-{number:02}")

    class Meanwhile(Scripts):
        async def run(self, name: str, *args: Any) -> Any:
            answer = await super().run(name, *args)
            for worker in ("small-00", "small-01"):
                beat(broker, worker)
            await broker.client.zrem("{test}:workers", "small-44")
            return answer

    found = [item.worker for item in await told(Meanwhile(broker.client, "{test}:"))]
    assert found == [f"small-{number:02}" for number in range(44)]


async def test_a_worker_is_listed_with_its_first_tasks(broker: Broker, results: Results) -> None:
    """Of a busy one at most 20."""
    beat(broker, "small-busy")
    beat(broker, "small-idle")
    await broker.submit([submission(f"t-{number}") for number in range(30)])
    assert len(await take(broker, "small-busy", 30)) == 30
    busy, idle = await results.workers()
    assert (busy.running, len(busy.tasks), busy.state, idle.state) == (30, 20, "working", "idle")
    assert {(task.task, task.since is not None) for task in busy.tasks} == {("files:Audit", True)}


async def test_workers_of_a_release_share_a_list_of_classes(broker: Broker) -> None:
    """The list ends some time after the last of them."""
    beat(broker, "small-a")
    beat(broker, "small-b")
    beat(broker, "small-c", NEWER)
    keys = await broker.client.keys("{test}:names:*")
    assert len(keys) == 2
    assert {await broker.client.hlen(key) for key in keys} == {1, 2}
    assert all([0 < await broker.client.ttl(key) <= 90 for key in keys])


async def test_a_loss_is_advertised_again(broker: Broker, redis_url: str) -> None:
    """With its next beat; a worker that has left says nothing more."""
    said = BeatReport("{}", "", KNOWN, knowledge(KNOWN))
    with beating(broker, "small-a", said) as leases:
        for _ in range(2):
            leases.renew([])
            leases.advertise()
            assert await broker.client.hgetall(f"{{test}}:names:{said.knows}") == {
                b"files:Audit": b"1.4"
            }
            await broker.client.flushall()
        leases.advertise()
    assert await broker.client.exists("{test}:w:small-a") == 0


async def test_counters_of_classes_are_bounded(broker: Broker) -> None:
    """Classes come and go; beyond a thousand counters the rest share one."""
    beat(broker, "small-a", **{"loop:blocked": 2, "blocked:files:Audit": 2})
    beat(broker, "small-a", **{"loop:blocked": 1, "blocked:files:Audit": 1})
    await broker.client.hset("{test}:counters", mapping={f"n{n}": 1 for n in range(1000)})
    beat(broker, "small-a", **{"loop:blocked": 1, "blocked:files:Remove": 1})
    names = ("loop:blocked", "blocked:files:Audit", "blocked:files:Remove", "blocked:others")
    counted = await broker.client.hmget("{test}:counters", *names)
    assert counted == [b"4", b"3", None, b"1"]


async def test_a_worker_that_declines_passes_its_wake_up_on(broker: Broker) -> None:
    """It is not woken again before it has fetched."""
    for worker in ("small-a", "small-b"):
        beat(broker, worker)
        await take(broker, worker)
    await broker.submit([submission("1")])
    assert await broker.client.llen("{test}:wake:small-b") == 1
    await broker.decline("small-b", "small")
    assert await broker.client.llen("{test}:wake:small-b") == 0
    assert await broker.client.llen("{test}:wake:small-a") == 1
    await broker.submit([submission("2")])
    assert await broker.client.llen("{test}:wake:small-b") == 0


OLDER = {"files:Audit": "1.2"}
REMOVE = "files:Remove"
DELAYED = "{test}:tasks:delayed"


async def rests(broker: Broker, id: str) -> int:
    """In how many seconds a task is due, as a multiple of five, rounded up."""
    due = await broker.client.zscore(DELAYED, id)
    return 5 * math.ceil((due / 1e6 - (await broker.logical_now()).timestamp()) / 5)


async def come_due(broker: Broker, *ids: str) -> None:
    """Let their rest be over."""
    await broker.client.zadd(DELAYED, dict.fromkeys(ids, 1))
    await broker.promote()


async def state(broker: Broker, id: str) -> str:
    return (await records.hget(broker.client, f"{{test}}:t:{id}", "state")).decode()


async def idle(broker: Broker, **known: dict[str, str]) -> None:
    """Let workers ``small-NAME`` become idle, the last of them at the top of the stack."""
    for name, versions in known.items():
        beat(broker, f"small-{name}", versions)
        assert await take(broker, f"small-{name}") == []


async def woken(broker: Broker) -> set[str]:
    """The workers that were woken since the last call, by the name after the size."""
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


async def handed_on(broker: Broker, *ids: str) -> None:
    """Tasks of a class that the one live worker, ``small-old``, does not know and has handed on."""
    beat(broker, "small-old")
    await broker.submit([submission(id, REMOVE) for id in ids])
    await hand_on(broker, "old", *ids)


async def test_an_unknown_class_costs_no_deliveries(broker: Broker) -> None:
    """A due task is checked, not queued; a worker of another size changes nothing."""
    beat(broker, "large-b", NEWER)
    await handed_on(broker, "t")
    assert await rests(broker, "t") == 5
    for _ in range(5):
        await come_due(broker, "t")
        assert (await state(broker, "t"), await rests(broker, "t")) == ("waiting", 60)
        assert await take(broker, "small-old") == []
    assert await records.hget(broker.client, "{test}:t:t", "handed") == b"1"


async def test_a_registration_wakes_tasks_of_its_classes(broker: Broker) -> None:
    """An idle worker that advertises the class takes the oldest, the next worker the others."""
    await handed_on(broker, "a", "b", "c")
    assert await take(broker, "small-new") == []
    beat(broker, "small-new", NEWER)
    assert await woken(broker) == {"new"}
    taken = await take(broker, "small-new", 2)
    assert [(item.id, item.used, item.deaths) for item in taken] == [("a", 0, 0), ("b", 0, 0)]
    assert [await state(broker, id) for id in "abc"] == ["running", "running", "waiting"]
    beat(broker, "small-newer", NEWER)
    taken += await take(broker, "small-newer", 2)
    for delivery in taken:
        assert await broker.settle(delivery, "done", b"{}") == "OK"
    assert {key[-1:] for key in await broker.client.keys("{test}:r:*")} == {b"a", b"b", b"c"}
    assert await broker.client.keys("{test}:handed:*") == []


async def test_a_task_handed_on_keeps_its_priority(broker: Broker) -> None:
    """It comes before what was submitted later, and after what is more urgent."""
    await handed_on(broker, "t")
    await broker.submit(
        [submission("later"), replace(submission("urgent"), stream="realtime:small")]
    )
    beat(broker, "small-new", NEWER)
    taken = await take(broker, "small-new", 3)
    assert [item.id for item in taken] == ["urgent", "t", "later"]


async def test_a_flood_is_taken_in_pages(broker: Broker) -> None:
    """Neither a registration nor a fetch does more the more tasks wait."""

    async def commands() -> int:
        found = await broker.client.info("commandstats")
        return sum(item["calls"] for item in found.values())

    spent = []
    for number in range(2):
        ids = [f"{number}-{n:04}" for n in range(10 + 3000 * number)]
        await broker.submit([submission(id, REMOVE) for id in ids])
        beat(broker, "small-old")
        while taken := await take(broker, "small-old", 500):
            settling = [broker.settle(item, "on", text="not here", delay=FIRST) for item in taken]
            assert set(await asyncio.gather(*settling)) == {"OK"}
        before = await commands()
        beat(broker, "small-new", NEWER)
        assert len(await take(broker, "small-new", 10)) == 10
        spent.append(await commands() - before)
        await broker.client.zrem("{test}:workers", "small-new")
        await broker.client.delete("{test}:w:small-new")
    assert spent[1] <= spent[0] + 5, spent


async def test_a_task_that_a_woken_worker_left_is_taken(broker: Broker) -> None:
    """The worker died after it was woken, or its fetch was lost."""
    await handed_on(broker, "t")
    assert await take(broker, "small-new") == []
    beat(broker, "small-new", NEWER)
    assert await woken(broker) == {"new"}
    await end_registration(broker, "small-new")
    beat(broker, "small-newer", NEWER)
    assert [item.id for item in await take(broker, "small-newer")] == ["t"]
    await broker.disown("small-newer", "small", [])
    await hand_on(broker, "old", "t")
    assert [item.id for item in await take(broker, "small-newer")] == ["t"]


async def test_a_task_handed_on_wakes_a_worker_that_knows_it(broker: Broker) -> None:
    """For this attempt and the next, although other workers became idle later."""
    await idle(broker, new=NEWER, a=KNOWN, b=KNOWN, c=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    assert await woken(broker) == {"c"}
    await hand_on(broker, "c", "t")
    assert await woken(broker) == {"new"}
    assert await broker.client.zscore("{test}:idle:small", "small-new") is None
    (delivery,) = await take(broker, "small-new")
    assert await broker.settle(delivery, "retry", b"{}", text="E", delay=FIRST) == "OK"
    await idle(broker, new=NEWER, a=KNOWN)
    await woken(broker)
    await come_due(broker, "t")
    assert await woken(broker) == {"new"}


async def test_old_releases_do_not_exchange_a_task(broker: Broker) -> None:
    """Each version of a class gets it once; then it waits for another one."""
    await idle(broker, older=OLDER, old=KNOWN)
    await broker.submit([submission("t")])
    await hand_on(broker, "old", "t")
    assert await woken(broker) == {"older"}
    await hand_on(broker, "older", "t")
    assert await woken(broker) == set()
    await come_due(broker, "t")
    for name in ("old", "older"):
        assert await take(broker, f"small-{name}") == []
    beat(broker, "small-new", NEWER)
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_a_busy_worker_takes_it_with_its_next_slot(broker: Broker) -> None:
    """No other worker is woken meanwhile, or gets it."""
    beat(broker, "small-new", NEWER)
    await idle(broker, a=KNOWN, b=KNOWN)
    await broker.submit([submission("t", REMOVE)])
    await hand_on(broker, "b", "t")
    await come_due(broker, "t")
    assert await woken(broker) == set()
    assert await take(broker, "small-a") == []
    measures = Measures(broker.client, "test", 0.0)
    assert await measures.handed_on(["small-a", "small-b"]) == ({(REMOVE, "small"): 1}, {})
    assert await measures.handed_on(["small-a", "small-new"]) == ({}, {})  # it lacks no worker
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_a_suspect_handed_on_stays_a_suspect(broker: Broker) -> None:
    """The worker that knows it takes it beside its slots, not in one of them."""
    beat(broker, "small-old")
    await broker.submit([submission("t", REMOVE)])
    await records.hset(broker.client, "{test}:t:t", "suspect", 1)
    await hand_on(broker, "old", "t")
    beat(broker, "small-new", NEWER)
    assert await take(broker, "small-new") == []
    ((delivery,), _) = await broker.fetch("small-new", "small", 1, room=1)
    assert (delivery.id, delivery.stream_key) == ("t", "suspects:normal:small")


async def test_a_newer_record_wakes_a_worker_that_reads_it(broker: Broker) -> None:
    """Also by the fetch of a worker that cannot read it."""
    await idle(broker, a=KNOWN, b=KNOWN)
    newer = BeatReport("{}", "", KNOWN, "9" + knowledge(KNOWN))
    with beating(broker, "small-new", newer) as leases:
        leases.renew([])
        leases.advertise()
    await broker.client.zadd("{test}:idle:small", {"small-new": 1})
    await broker.submit([submission("t")])
    await records.hset(broker.client, "{test}:t:t", "v", 9)
    await woken(broker)
    assert await take(broker, "small-b") == []
    assert await woken(broker) == {"new"}
    await come_due(broker, "t")
    assert await take(broker, "small-a") == []
    await records.hdel(broker.client, "{test}:t:t", "v")  # a worker of the newer release
    assert [item.id for item in await take(broker, "small-new")] == ["t"]


async def test_a_worker_that_could_run_it_does_not_retire(broker: Broker) -> None:
    """Workers that do not know the class may retire."""
    await idle(broker, new=NEWER)
    await handed_on(broker, "t")
    await woken(broker)
    demands = Demands(broker.client, "test", 3000)
    assert not await demands.retire("small-new", "small")
    assert await demands.retire("small-old", "small")


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_a_waiting_task_that_ends_is_gone(broker: Broker, end: str) -> None:
    """By a cancellation or its deadline; a worker that would have known it gets nothing."""
    beat(broker, "small-old")
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
    beat(broker, "small-new", NEWER)
    assert await take(broker, "small-new") == []


async def test_without_advertisements_the_pause_grows(broker: Broker) -> None:
    """The task is queued for any worker, at most once a minute."""
    await broker.submit([submission("t", REMOVE)])
    found = []
    for _ in range(9):
        await hand_on(broker, "old", "t")
        found.append(await rests(broker, "t"))
        await come_due(broker, "t")
    assert found == [5, 5, 5, 10, 20, 40, 60, 60, 60]


async def test_left_over_entries_start_nothing(broker: Broker) -> None:
    """A script was cut after it had queued or ended the task."""
    await handed_on(broker, "gone", "queued", "parked")
    await broker.client.delete("{test}:t:gone")
    await records.hset(broker.client, "{test}:t:queued", "state", "queued")
    await records.hset(broker.client, "{test}:t:parked", "places", "x")
    beat(broker, "small-new", NEWER)
    assert await take(broker, "small-new") == []
    assert await broker.client.keys("{test}:unfit:*") == []


async def test_explain_names_a_worker_that_could_run_it(broker: Broker) -> None:
    """Before any worker has read the task, and after it was handed on."""
    beat(broker, "small-a", name="1@old")
    await broker.submit([submission("a", "files:Remove")])
    unknown = (
        "no live small worker takes files:Remove (1 worker). Deploy its package there, or see "
        "their --only and --except"
    )
    assert await explained(broker, "a") == ("unknown", f"queued: {unknown}")
    (delivery,) = await take(broker, "small-a")
    await broker.settle(delivery, "on", text="a worker does not know files:Remove", delay=FIRST)
    cause, text = await explained(broker, "a")
    assert (cause, text) == ("unknown", f"waiting, handed back: {unknown}")
    beat(broker, "small-b", NEWER, name="2@new")
    cause, text = await explained(broker, "a")
    assert cause == "hand-back"
    assert "files:Remove. 2@new can run it as soon as a slot is free" in text
    await broker.submit([submission("b", "tasks:Remove")])
    assert "(2 workers). They take files:Remove: is" in (await explained(broker, "b"))[1]


async def test_explain_names_the_missing_version(broker: Broker) -> None:
    """As the envelope asks for it, and as live workers say that they have it."""
    beat(broker, "small-a")
    await broker.submit([submission("a", min_version="2.0.dev0")])
    assert await explained(broker, "a") == (
        "unknown",
        "queued: files:Audit needs version 2.0.dev0, and no live small worker has it "
        "(1 worker: 1.4). Upgrade its package there",
    )
    beat(broker, "small-b", NEWER)
    assert (await explained(broker, "a"))[0] == "queue"


async def test_explain_names_workers_that_take_no_tasks(broker: Broker) -> None:
    """With the reason of the first; a task is stuck only if no worker takes any."""
    beat(broker, "small-a", off="memory: 1 MiB free, below the floor of 1 GiB", name="1@a")
    beat(broker, "small-b", name="2@b")
    await broker.submit([submission("a")])
    cause, text = await explained(broker, "a")
    why = "takes no tasks: memory: 1 MiB free, below the floor of 1 GiB (1@a)"
    assert (cause, text) == ("queue", f"queued, first in its stream. 1 of 2 small workers {why}")
    beat(broker, "small-b", off="load: 9", name="2@b")
    cause, text = await explained(broker, "a")
    assert cause == "veto" and "2 of 2 small workers take no tasks: " in text

"""What a foreign hand, or a long silence, left in Redis does not undo what is right."""

from __future__ import annotations

import pytest

from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.periodic import Periodic
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks


def task(id: str, **fields: object) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["waiters", "group"])
async def test_a_foreign_key_does_not_undo_the_end_of_a_task(broker: Broker, what: str) -> None:
    """A task ends once, although those who wait for it, or its group, cannot be told."""
    groups = Groups(broker.client, "test")
    callback = task("callback")
    await groups.open(
        "g", "", policy="all_done", ttl_seconds=60, total=1, callback=callback, on_failure=None
    )
    await broker.submit([task("a", group="g", locks=encode_locks([MutexLock("job", 1)]))])
    await groups.seal("g", "")
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.client.hset("{test}:t:a", "waited", 1)
    key = "{test}:waiters:a" if what == "waiters" else "{test}:g:g:results"
    await broker.client.set(key, "foreign")
    assert await broker.settle(delivery, "done", b"result") == "OK"
    assert not await broker.client.exists("{test}:t:a", "{test}:b:a", "{test}:lock:mutex:job:1")
    assert (await broker.client.get("{test}:r:a")).startswith(b"done|")
    assert await broker.client.hget("{test}:counters", "finish:broken") == b"1"
    assert await broker.settle(delivery, "done", b"result") == "OK"


async def test_a_checkpoint_longer_than_any_is_not_handed_over(redis_url: str) -> None:
    """Whatever stands in its place, no worker gets more than an attempt may save."""
    ttls = {"lock_ttl": 30, "lease": 45, "result_ttl": 60, "dedup_ttl": 60}
    broker = Broker(redis_url, "test", **ttls, message_limit=1000)
    await broker.submit([task("long"), task("fine")])
    for id, size in (("long", 5000), ("fine", 1000)):
        await broker.client.set(f"{{test}}:c:{id}", bytes(size))
        await broker.client.hset(f"{{test}}:t:{id}", "saved", 1)
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    assert {item.id: len(item.saved) for item in deliveries} == {"long": 0, "fine": 1000}
    await broker.aclose()


@pytest.mark.parametrize("value", ["abc", "", "-"])
async def test_words_where_numbers_belong_stop_nothing(broker: Broker, value: str) -> None:
    """Fence, epoch, term, leader and promotion are made anew where they are no numbers."""
    await broker.client.hset("{test}:epoch", mapping={"since": value, "seq": value})
    leader = {"owner": "x", "term": value, "expiry": value}
    await broker.client.hset("{test}:leader", mapping=leader)
    for name in ("fence", "term", "promoted"):
        await broker.client.set(f"{{test}}:{name}", value)
    await broker.client.set("{test}:idle:small", "of another type")
    await broker.submit([task("now"), task("later", due_us=1)])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    assert sorted(item.id for item in deliveries) == ["later", "now"]
    assert (await broker.promote()).allowed
    term = await Leadership(broker, "test").lead("me", 30, "{}")
    assert term and (await broker.promote(term)).allowed


async def test_who_was_not_heard_itself_takes_nothing(broker: Broker) -> None:
    """After a stand-still of Redis a sweep waits for the beats of those who live."""
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    entry = (delivery.entry,)
    key = "{test}:" + delivery.stream_key
    await broker.client.xclaim(key, "workers", "small-a", 0, entry, idle=90_000, justid=True)
    await broker.client.zadd("{test}:workers", {"small-b": 1})
    assert (await broker.reclaim("small-b", "small", new_cursors()))[0] == 0
    await broker.client.zadd("{test}:workers", {"small-b": 2**52})
    assert (await broker.reclaim("small-b", "small", new_cursors()))[0] == 1


async def test_a_lease_of_no_term_is_taken_anew(broker: Broker) -> None:
    """The leader whose term somebody overwrote leads in a new one."""
    leadership = Leadership(broker, "test")
    await leadership.lead("me", 30, "{}")
    await broker.client.hset("{test}:leader", "term", "abc")
    term = await leadership.lead("me", 30, "{}")
    assert term and (await broker.promote(term)).allowed


@pytest.mark.parametrize("call", ["pause", "resume", "load", "look", "restore", "entries"])
async def test_pauses_of_another_type_are_taken_away(broker: Broker, call: str) -> None:
    """Whoever asks for what is paused, or changes it, goes on; the leader has to look again."""
    controls = Controls(broker.client, "test")
    term = await Leadership(broker, "test").lead("me", 30, "{}") or ""
    epoch = (await controls.look()).epoch
    assert await controls.restore(term, epoch, 0, {}) == (0, 0)
    await broker.client.set("{test}:paused", "foreign")
    await broker.client.rpush("{test}:periodic:paused", "foreign")
    calls = {
        "pause": lambda: controls.pause(["all"], "me"),
        "resume": lambda: controls.resume(["all"], "me"),
        "load": controls.load,
        "look": controls.look,
        "restore": lambda: controls.restore(term, epoch, 0, {"all": "1|me|"}),
        "entries": lambda: Periodic(broker, "test").pause(["p:T||a"], "me", ""),
    }
    await calls[call]()
    seen = await controls.look()
    assert (seen.restored_in == epoch) is (call == "restore")
    names = {"pause": {"all"}, "restore": {"all"}, "entries": {"entry:p:T||a"}}
    assert set(seen.pauses) == names.get(call, set())

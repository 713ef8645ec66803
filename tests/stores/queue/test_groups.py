"""Callback groups as the scripts keep them, on a real server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from stores.queue.test_broker import make_broker

from nonet.base.errors import NotFoundError
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.groups import Groups, child_id
from nonet.stores.queue.submissions import Submission


def task(id: str, group: str = "") -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", group=group)


CALLBACK = Submission("g.callback", "p:Callback", "realtime:small", b"callback")
FAILURE = Submission("g.failure", "p:Failure", "realtime:small", b"failure")


async def open_group(
    broker: Broker,
    total: int,
    *,
    id: str = "g",
    parent: str = "",
    policy: str = "all_success",
    on_failure: Submission | None = FAILURE,
) -> Groups:
    groups = Groups(broker.client, "test")
    submits = {"callback": CALLBACK, "on_failure": on_failure}
    await groups.open(id, parent, policy=policy, ttl_seconds=60, total=total, **submits)
    await broker.submit([task(child_id(id, i), id) for i in range(total)])
    return groups


async def fetch(broker: Broker) -> dict[str, Delivery]:
    deliveries, _ = await broker.fetch("small-a", "small", 100)
    return {delivery.id: delivery for delivery in deliveries}


async def fired(broker: Broker) -> list[str]:
    """Ids among callback and failure that were submitted."""
    return [
        id for id in ("g.callback", "g.failure") if await broker.client.exists(f"{{test}}:t:{id}")
    ]


@pytest.mark.parametrize(
    ("policy", "on_failure", "ends", "submitted", "outcome"),
    [
        ("all_success", FAILURE, ["done", "dead"], ["g.failure"], "failed"),
        ("all_success", None, ["done", "dead"], [], "failed"),
        ("all_done", FAILURE, ["done", "dead"], ["g.callback"], "partial"),
        ("all_done", FAILURE, ["done"], ["g.callback"], "done"),
        ("all_done", FAILURE, ["dead"], ["g.callback"], "failed"),
        ("all_done", FAILURE, ["cancelled"], ["g.callback"], "failed"),
    ],
)
async def test_ends_and_policy_decide_what_is_submitted(
    broker: Broker,
    policy: str,
    on_failure: Submission | None,
    ends: list[str],
    submitted: list[str],
    outcome: str,
) -> None:
    """The callback or `on_failure`; a group without one success has failed, whatever it submits."""
    groups = await open_group(broker, len(ends), policy=policy, on_failure=on_failure)
    await groups.seal("g", "")
    assert (await groups.status("g")).outcome == ""
    for delivery, end in zip((await fetch(broker)).values(), ends, strict=True):
        await broker.settle(delivery, end, b"")
    assert await fired(broker) == submitted
    status = await groups.status("g")
    failed = len(ends) - ends.count("done")
    assert (status.state, status.failed, status.pending) == ("fired", failed, 0)
    assert status.outcome == outcome
    if submitted:
        assert status.callback_id == submitted[0]
        assert status.callback == ("p:Failure" if "g.failure" in submitted else "p:Callback")


async def test_results_come_in_the_order_of_spawning(broker: Broker) -> None:
    """Not in the order in which the children ended."""
    groups = await open_group(broker, 5)
    await groups.seal("g", "")
    deliveries = await fetch(broker)
    for index in (3, 0, 4, 1, 2):
        await broker.settle(deliveries[child_id("g", index)], "done", b"")
    assert [id for id, _ in await groups.results("g")] == [child_id("g", i) for i in range(5)]
    with pytest.raises(NotFoundError, match="group 'other'"):
        await groups.results("other")


@pytest.mark.parametrize("seen", range(4), ids=lambda seen: f"{seen} have ended")
async def test_children_of_a_lost_group_belong_to_it_again(broker: Broker, seen: int) -> None:
    """Redis lost its data while the parent spawned; the walk does not fail the group."""
    ends = ("done", "dead", "done")
    children = [task(child_id("g", i), "g") for i in range(3)]
    await broker.submit(children)
    deliveries = list((await fetch(broker)).values())
    for delivery, end in zip(deliveries[:seen], ends, strict=False):
        await broker.settle(delivery, end, b"")
    await broker.mend(timedelta(0))
    groups = await open_group(broker, 3)
    await groups.seal("g", "")
    for delivery, end in zip(deliveries[seen:], ends[seen:], strict=False):
        assert await fired(broker) == []
        await broker.settle(delivery, end, b"")
    assert await fired(broker) == ["g.failure"]
    status = await groups.status("g")
    assert (status.outcome, status.failed, status.error) == ("failed", 1, "")
    found = [ended and ended.state for _, ended in await groups.results("g")]
    assert found == list(ends)


async def keys_of(broker: Broker) -> dict[str, float]:
    """Every key of the group, with the seconds that it has left (-0.001: for good)."""
    names = [key.decode() async for key in broker.client.scan_iter("{test}:g:g*")]
    return {name: await broker.client.pttl(name) / 1000 for name in names}


async def test_a_fired_group_expires_and_leaves_the_list(broker: Broker) -> None:
    """Every key of the group has a TTL; the index forgets what is gone."""
    groups = await open_group(broker, 1)
    await groups.seal("g", "")
    await broker.settle((await fetch(broker))["g.0"], "done", b"")
    assert all(50 < left <= 60 for left in (await keys_of(broker)).values())
    forgotten = await broker.client.zscore("{test}:groups", "g") / 1e6
    assert 50 < forgotten - (await broker.now()).timestamp() <= 60
    await broker.client.delete(*await keys_of(broker))
    assert await groups.list(10) == []
    await broker.client.zadd("{test}:groups", {"g": (await broker.now()).timestamp() * 1e6})
    await open_group(broker, 0, id="h")
    assert await broker.client.zrange("{test}:groups", 0, -1) == [b"h"]


async def test_a_program_has_a_day_to_seal(broker: Broker) -> None:
    """However short results live; what it leaves expires then."""
    day = 24 * 3600
    groups = await open_group(broker, 2)
    await broker.settle((await fetch(broker))["g.0"], "done", b"")
    left = await keys_of(broker)
    assert {"{test}:g:g:results", "{test}:g:g:pending"} < set(left)
    assert all(day - 10 < seconds <= day for seconds in left.values()), left
    forgotten = await broker.client.zscore("{test}:groups", "g") / 1e6
    assert day - 10 < forgotten - (await broker.now()).timestamp() <= day
    assert await groups.seal("g", "") == "sealed"
    assert all(seconds < 0 for seconds in (await keys_of(broker)).values())


@pytest.mark.parametrize("parent", ["parent", ""])
async def test_a_group_under_way_stays_listed(broker: Broker, parent: str) -> None:
    """A group of a parent, and any sealed one, neither expires nor is forgotten."""
    await broker.submit([task("parent")])
    groups = await open_group(broker, 1, parent=parent)
    if not parent:
        await groups.seal("g", parent)
    assert all(seconds < 0 for seconds in (await keys_of(broker)).values())
    forgotten = await broker.client.zscore("{test}:groups", "g") / 1e6
    assert forgotten - (await broker.now()).timestamp() > 9 * 365 * 24 * 3600


async def test_the_newest_group_is_listed_first(broker: Broker) -> None:
    """Ordered by when it was opened."""
    await broker.submit([task("parent")])
    groups = await open_group(broker, 0, parent="parent")
    for group in ("h", "i", "j"):
        await open_group(broker, 0, id=group)
    await groups.seal("i", "")
    assert [status.id for status in await groups.list(10)] == ["j", "i", "h", "g"]
    assert [status.id for status in await groups.list(2)] == ["j", "i"]


async def test_a_parent_that_ends_before_sealing_fails_the_group(broker: Broker) -> None:
    """The callback is never submitted, on_failure is, whatever the policy."""
    await broker.submit([task("parent")])
    parent = (await fetch(broker))["parent"]
    groups = await open_group(broker, 1, parent="parent", policy="all_done")
    await broker.settle(parent, "dead", b"")
    assert await fired(broker) == []
    await broker.settle((await fetch(broker))["g.0"], "done", b"")
    assert await fired(broker) == ["g.failure"]
    assert "parent" in (await groups.status("g")).error
    assert await broker.client.exists("{test}:open:parent") == 0


@given(data=st.data(), total=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_a_group_fires_once_in_any_order(redis_server: Any, data: Any, total: int) -> None:
    """Not before its seal: children end in any order, settles are repeated: one firing."""
    ends = [data.draw(st.sampled_from(["done", "dead"])) for _ in range(total)]
    order = data.draw(st.permutations([*range(total), "seal"]))
    doubled = data.draw(st.booleans())

    async def play() -> None:
        with redis_server.client() as client:
            client.flushall()
        broker = make_broker(redis_server.url)
        groups = await open_group(broker, total)
        deliveries = await fetch(broker)
        submitted: list[str] = []
        for n, step in enumerate(order):
            for _ in range(1 + doubled):
                if step == "seal":
                    await groups.seal("g", "")
                else:
                    await broker.settle(deliveries[child_id("g", step)], ends[step], b"")
            submitted += await fetch(broker)
            assert not submitted or "seal" in order[: n + 1]
        assert submitted == ["g.failure" if "dead" in ends else "g.callback"]
        await broker.aclose()

    asyncio.run(play())


async def test_no_children_fire_at_once(broker: Broker) -> None:
    """An empty group fires when it is sealed."""
    groups = await open_group(broker, 0)
    assert await fired(broker) == []
    assert await groups.seal("g", "") == "fired"
    assert await fired(broker) == ["g.callback"]


async def test_a_parent_that_is_run_again_finds_its_group(broker: Broker) -> None:
    """Opening and spawning again doubles nothing, also after children have been forgotten."""
    await broker.submit([task("parent")])
    groups = await open_group(broker, 2, parent="parent")
    deliveries = await fetch(broker)
    await broker.settle(deliveries["g.0"], "done", b"")
    await broker.client.delete("{test}:r:g.0")
    await open_group(broker, 2, parent="parent")
    await groups.seal("g", "parent")
    await broker.settle(deliveries["g.1"], "done", b"")
    assert await fired(broker) == ["g.callback"]
    await broker.settle((await fetch(broker))["g.callback"], "done", b"")
    # Even once the callback's id is forgotten.
    await broker.client.delete("{test}:r:g.callback")
    await open_group(broker, 2, parent="parent")
    assert await groups.seal("g", "parent") == "fired"
    assert list(await fetch(broker)) == []

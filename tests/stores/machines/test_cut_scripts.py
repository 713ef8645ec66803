"""Each script cut after each of its calls: what is repeated and swept afterwards loses nothing.

Redis executes a script as a whole, but a slot that moves to another node may leave only its first
calls. The scripts write first and remove last, so that a task is in two places then, or in none
with its record whole, and never gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from acceptance.contention import scales
from servers import RedisServer
from stores.machines.cutting import LEASE, MEND, PROMOTE, WORKER, Call, Fleet, History, cuts
from stores.machines.faults import REMOVES_FIRST
from stores.machines.machine import findings
from stores.machines.queue_machine import KEEPING, LOCK_TTL
from stores.machines.site import PREFIX, Site

from nonet.tasks.locks import ConcurrencyLimiter, MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
SLOT = encode_locks([ConcurrencyLimiter("job", 1, limit=1)])
Prepared = tuple[Call, set[str]]
"""The call that is cut, and the ids of all tasks, each of which must end."""


def a_submit(fleet: Fleet) -> Prepared:
    return fleet.submit("a", MUTEX), {"a"}


def a_delayed_submit(fleet: Fleet) -> Prepared:
    return fleet.submit("a", due=1_000_000), {"a"}


def a_fetch(fleet: Fleet) -> Prepared:
    for id in "abc":
        fleet.run(*fleet.submit(id, MUTEX if id != "c" else ""))
    return fleet.fetch_call(), {"a", "b", "c"}


def running(fleet: Fleet, lines: str = MUTEX) -> list[str]:
    for id in "ab":
        fleet.run(*fleet.submit(id, lines))
    return fleet.fetch()[0]


def a_done(fleet: Fleet) -> Prepared:
    return fleet.settle_call(running(fleet), "done", 0, "c"), {"a", "b", "c"}


def a_fetch_at_a_limiter(fleet: Fleet) -> Prepared:
    for id in "abc":
        fleet.run(*fleet.submit(id, SLOT))
    return fleet.fetch_call(), {"a", "b", "c"}


def a_done_at_a_limiter(fleet: Fleet) -> Prepared:
    return fleet.settle_call(running(fleet, SLOT), "done", 0, "c"), {"a", "b", "c"}


def a_retry(fleet: Fleet) -> Prepared:
    return fleet.settle_call(running(fleet), "retry"), {"a", "b"}


def a_delayed_retry(fleet: Fleet) -> Prepared:
    return fleet.settle_call(running(fleet), "retry", 5_000_000), {"a", "b"}


def a_death(fleet: Fleet) -> Prepared:
    return fleet.settle_call(running(fleet), "dying"), {"a", "b"}


def a_promotion(fleet: Fleet) -> Prepared:
    for id in "ab":
        fleet.run(*fleet.submit(id, due=10_000))
    fleet.now += 1_000_000
    return PROMOTE, {"a", "b"}


def a_reclaim(fleet: Fleet) -> Prepared:
    row = running(fleet, "")
    return fleet.forgotten(row), {"a", "b"}


def a_walk(fleet: Fleet) -> Prepared:
    for id in "ab":
        fleet.run(*fleet.submit(id))
    fleet.site.client.delete(f"{PREFIX}tasks:normal:small")
    return MEND, {"a", "b"}


def a_disown(fleet: Fleet) -> Prepared:
    running(fleet)
    return ("disown", KEEPING, WORKER, "small", LOCK_TTL // 1000, 0), {"a", "b"}


def a_disown_aside(fleet: Fleet) -> Prepared:
    (*disown, _), ids = a_disown(fleet)
    return (*disown, 1), ids


def opened(fleet: Fleet) -> None:
    callback = ("g.callback", "m:Callback", "normal:small", 0, "", "e", "", "")
    failure = ("g.failure", "m:Failure", "normal:small", 0, "", "e", "", "")
    fleet.run("group_open", "g", "", "all_success", 3_600_000, 1, *callback, *failure)


def a_seal(fleet: Fleet) -> Prepared:
    opened(fleet)
    return ("group_seal", "g", ""), {"g.callback"}


def a_last_child(fleet: Fleet) -> Prepared:
    opened(fleet)
    fleet.run(*fleet.submit("a", group="g"))
    fleet.run("group_seal", "g", "")
    return fleet.settle_call(fleet.fetch()[0], "done"), {"a", "g.callback"}


def a_cancel(fleet: Fleet) -> Prepared:
    row = running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c", MUTEX))
    fleet.run(*fleet.submit("d", due=1_000_000))
    opened(fleet)
    fleet.run(*fleet.submit("e", group="g"))
    fleet.run("group_seal", "g", "")
    assert fleet.run(*fleet.settle_call(row, "done")) == "OK"  # b is woken
    ids = {"a", "b", "c", "d", "e", "g.failure"}
    return fleet.cancel_call("", "b", "d", "e"), ids


def an_order(fleet: Fleet) -> Prepared:
    running(fleet)
    return fleet.cancel_call("by somebody", "a"), {"a", "b"}


def an_obeyed_order(fleet: Fleet) -> Prepared:
    row = running(fleet)
    fleet.run(*fleet.cancel_call("by somebody", "a"))
    return fleet.settle_call(row, "retry", 5_000_000), {"a", "b"}


def a_reclaim_of_what_is_cancelled(fleet: Fleet) -> Prepared:
    row = running(fleet, "")
    fleet.run(*fleet.cancel_call("by somebody", "a"))
    return fleet.forgotten(row), {"a", "b"}


def a_submit_with_a_deadline(fleet: Fleet) -> Prepared:
    return fleet.submit("a", MUTEX, terms="start_by|+1000000|"), {"a"}


def an_expiry(fleet: Fleet) -> Prepared:
    running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c", MUTEX, terms="start_by|+1000000|"))
    fleet.run(*fleet.submit("d", MUTEX, terms="start_by|+1000000|1"))
    fleet.run(*fleet.submit("e", due=3_600_000_000, terms="start_by|+1000000|1"))
    fleet.run(*fleet.submit("f", due=3_600_000_000, terms="start_by|+1000000|"))
    assert fleet.fetch() == []
    fleet.now += 1_000_000
    return PROMOTE, set("abcdef")


def a_late_fetch(fleet: Fleet) -> Prepared:
    fleet.run(*fleet.submit("a", terms="start_by|+1000000|"))
    fleet.run(*fleet.submit("b", terms="start_by|+1000000|1"))
    fleet.now += 1_000_000
    return fleet.fetch_call(), {"a", "b"}


def a_paused_fetch(fleet: Fleet) -> Prepared:
    running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c"))
    fleet.run("pause", "who", "", "task:Task")
    fleet.afterwards = [("resume", "who", "task:Task")]
    return fleet.fetch_call(), {"a", "b", "c"}


def a_resume(fleet: Fleet) -> Prepared:
    fleet.run("pause", "who", "", "task:Task", "stream:normal:small")
    for id in "ab":
        fleet.run(*fleet.submit(id, MUTEX))
    fleet.run("resume", "who", "stream:normal:small")
    assert fleet.fetch() == []
    return ("resume", "who", "task:Task"), {"a", "b"}


def a_hastening(fleet: Fleet) -> Prepared:
    for id in "ab":
        fleet.run(*fleet.submit(id, due=3_600_000_000))
    return ("hasten", "a", "b"), {"a", "b"}


HISTORIES: tuple[History[set[str]], ...] = (
    *(a_fetch_at_a_limiter, a_done_at_a_limiter),
    *(a_submit, a_delayed_submit, a_fetch, a_done, a_retry, a_delayed_retry, a_death),
    *(a_promotion, a_reclaim, a_walk, a_disown, a_disown_aside, a_seal, a_last_child, a_cancel),
    *(a_paused_fetch, a_resume, a_hastening),
    *(an_order, an_obeyed_order, a_reclaim_of_what_is_cancelled),
    *(a_submit_with_a_deadline, an_expiry, a_late_fetch),
)


def problems_of(fleet: Fleet, ids: set[str]) -> Iterator[str]:
    for _ in range(2):  # a count that was cut off is put right by two walks
        fleet.walk()
    facts = fleet.site.look()
    if facts.active or facts.tenants:
        yield f"{facts.active} {facts.tenants} are counted"
    if set(facts.results) != ids:
        yield f"ended are {sorted(facts.results)}, not {sorted(ids)}"
    if any(facts.ranks.values()):
        yield f"tenants still take part: {facts.ranks}"
    if any(facts.streams.values()) or facts.delayed:
        yield f"pointers are left: {facts.streams} {facts.delayed}"
    for finding in findings(fleet.site, fleet.now, LEASE):
        yield f"the doctor finds {finding}"


@scales(6, 1)
@pytest.mark.parametrize("is_shared", [False, True], ids=["", "of tenants"])
@pytest.mark.parametrize("history", HISTORIES, ids=[each.__name__ for each in HISTORIES])
def test_a_cut_script_loses_nothing(
    redis_server: RedisServer, history: History[set[str]], is_shared: bool, scale: int
) -> None:
    """After a cut at any call, a repetition and a sweep each task ends, and nothing is left."""
    with redis_server.client() as client:
        site = Site(client)
        assert list(cuts(site, history, problems_of, stride=scale, is_shared=is_shared)) == []


def test_removing_first_would_lose_a_task(redis_server: RedisServer) -> None:
    """A promotion that removes a task before it adds it to its stream fails the test above."""
    with redis_server.client() as client:
        site = Site(client, [REMOVES_FIRST])
        assert list(cuts(site, a_promotion, problems_of))

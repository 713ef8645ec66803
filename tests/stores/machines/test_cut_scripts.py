"""Each script cut after each of its calls: what is repeated and swept afterwards loses nothing.

Redis executes a script as a whole, but a slot that moves to another node may leave only its first
calls. The scripts write first and remove last, so that a task is in two places then, or in none
with its record whole, and never gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from calls import ENTRY, ID, STATE, STREAM, settle_args, whole_row
from servers import RedisServer
from stores.machines.lock_machine import START
from stores.machines.lock_site import PREFIX, Fault
from stores.machines.queue_machine import KEEPING, LEASE, LOCK_TTL, STREAMS, WAITS
from stores.machines.queue_site import QueueSite

from nonet.rules.diagnosis import examine
from nonet.tasks.locks import MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
MOST_CALLS = 300
# By their callers, if there is no answer.
REPEATED = ("submit", "settle", "group_seal", "cancel", "resume", "hasten")
WORKER = "small-a1"
Call = tuple[Any, ...]


@dataclass
class Fleet:
    """One worker on an emptied database, under a clock of its own.

    Attributes:
        is_shared: each task has a tenant of its own, and tenants take turns.
    """

    site: QueueSite
    is_shared: bool = False
    now: int = START
    executed: list[str] = field(default_factory=list)
    afterwards: list[Call] = field(default_factory=list)  # after the cut and its repetition

    def __post_init__(self) -> None:
        self.site.client.flushdb()
        self.site.client.hset(f"{PREFIX}epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        if self.is_shared:
            self.site.client.set(f"{PREFIX}fair", " normal:small ")

    def run(self, name: str, *args: Any) -> Any:
        self.now += 2_000
        return self.site.run(name, self.now, *args)

    def submit(
        self, id: str, lines: str = "", due: int = 0, group: str = "", terms: str = ""
    ) -> Call:
        due = self.now + due if due else 0
        if self.is_shared:
            terms = "\n".join(filter(None, (f"tenant|{id}", terms)))
        args = (1, "m:Task", "normal:small", due, group, lines, terms, id, "e")
        return ("submit", KEEPING, *args)

    def fetch_call(self) -> Call:
        return (
            "fetch",
            KEEPING,
            WORKER,
            "small",
            50,
            200,
            LOCK_TTL // 1000,
            *WAITS,
            0,
            4096,
            "",
            50,
            50,
        )

    def fetch(self) -> list[list[str]]:
        rows = [whole_row(row) for row in self.run(*self.fetch_call())[4:]]
        self.executed += [row[ID] for row in rows if row[STATE] == "running"]
        return rows

    def settle_call(self, row: list[str], outcome: str, delay: int = 0, *children: str) -> Call:
        fields = ("m:Task", "normal:small", 0, "", "e", "", "")
        specs = [part for id in children for part in (id, *fields)]
        about = ("document", "text", delay, 1, len(children), *specs)
        return ("settle", KEEPING, LOCK_TTL // 1000, *settle_args(row[:5], outcome, *about))

    def sweep(self) -> None:
        """A lease later: everything that a worker does by itself."""
        self.now += LEASE
        self.run("renew", WORKER, 3_600_000, LOCK_TTL // 1000, "{}", 0, "", "")
        for key, rows in self.site.look().streams.items():
            for entry, _, _, consumer in rows:
                if consumer:
                    self.site.let_idle(PREFIX + key, consumer, entry)
        cursors = ["0-0"] * 12
        self.run("reclaim", KEEPING, WORKER, "small", LEASE // 1000, 1000, 10, "", *cursors)
        self.walk()
        self.run("promote", KEEPING, "", 500, 0, *WAITS, "")

    def walk(self) -> None:
        """Look at all records once."""
        while self.run("mend", KEEPING, 1000, 10, 0, LEASE)[1]:
            pass

    def drain(self) -> None:
        """Until nothing is left to execute."""
        for _ in range(20):
            self.sweep()
            for row in self.fetch():
                outcome = "done" if row[STATE] == "running" else "dead"
                assert self.run(*self.settle_call(row, outcome)) == "OK"
            if not self.site.look().records:
                return
        raise AssertionError(f"never ended: {self.site.look().records}")


def a_submit(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.submit("a", MUTEX), {"a"}


def a_delayed_submit(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.submit("a", due=1_000_000), {"a"}


def a_fetch(fleet: Fleet) -> tuple[Call, set[str]]:
    for id in "abc":
        fleet.run(*fleet.submit(id, MUTEX if id != "c" else ""))
    return fleet.fetch_call(), {"a", "b", "c"}


def running(fleet: Fleet, lines: str = MUTEX) -> list[str]:
    for id in "ab":
        fleet.run(*fleet.submit(id, lines))
    return fleet.fetch()[0]


def a_done(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.settle_call(running(fleet), "done", 0, "c"), {"a", "b", "c"}


def a_retry(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.settle_call(running(fleet), "retry"), {"a", "b"}


def a_delayed_retry(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.settle_call(running(fleet), "retry", 5_000_000), {"a", "b"}


def a_death(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.settle_call(running(fleet), "dying"), {"a", "b"}


def a_promotion(fleet: Fleet) -> tuple[Call, set[str]]:
    for id in "ab":
        fleet.run(*fleet.submit(id, due=10_000))
    fleet.now += 1_000_000
    return ("promote", KEEPING, "", 500, 0, *WAITS), {"a", "b"}


def a_reclaim(fleet: Fleet) -> tuple[Call, set[str]]:
    row = running(fleet, "")
    fleet.site.let_idle(PREFIX + row[STREAM], WORKER, row[ENTRY])
    args = (KEEPING, WORKER, "small", LEASE // 1000, 1000, 10, "", *["0-0"] * 12)
    return ("reclaim", *args), {"a", "b"}


def a_walk(fleet: Fleet) -> tuple[Call, set[str]]:
    for id in "ab":
        fleet.run(*fleet.submit(id))
    fleet.site.client.delete(f"{PREFIX}tasks:normal:small")
    return ("mend", KEEPING, 1000, 10, 0, LEASE), {"a", "b"}


def a_disown(fleet: Fleet) -> tuple[Call, set[str]]:
    running(fleet)
    return ("disown", KEEPING, WORKER, "small", LOCK_TTL // 1000), {"a", "b"}


def opened(fleet: Fleet) -> None:
    callback = ("g.callback", "m:Callback", "normal:small", "e", "", "")
    failure = ("g.failure", "m:Failure", "normal:small", "e", "", "")
    fleet.run("group_open", "g", "", "all_success", 3_600_000, 1, *callback, *failure)


def a_seal(fleet: Fleet) -> tuple[Call, set[str]]:
    opened(fleet)
    return ("group_seal", "g", ""), {"g.callback"}


def a_last_child(fleet: Fleet) -> tuple[Call, set[str]]:
    opened(fleet)
    fleet.run(*fleet.submit("a", group="g"))
    fleet.run("group_seal", "g", "")
    return fleet.settle_call(fleet.fetch()[0], "done"), {"a", "g.callback"}


def a_cancel(fleet: Fleet) -> tuple[Call, set[str]]:
    row = running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c", MUTEX))
    fleet.run(*fleet.submit("d", due=1_000_000))
    opened(fleet)
    fleet.run(*fleet.submit("e", group="g"))
    fleet.run("group_seal", "g", "")
    assert fleet.run(*fleet.settle_call(row, "done")) == "OK"  # b is woken
    ids = {"a", "b", "c", "d", "e", "g.failure"}
    return ("cancel", KEEPING, 0, "", "by somebody", "b", "", "d", "", "e", ""), ids


def an_order(fleet: Fleet) -> tuple[Call, set[str]]:
    running(fleet)
    return ("cancel", KEEPING, 0, "by somebody", "by somebody", "a", ""), {"a", "b"}


def an_obeyed_order(fleet: Fleet) -> tuple[Call, set[str]]:
    row = running(fleet)
    fleet.run("cancel", KEEPING, 0, "by somebody", "by somebody", "a", "")
    return fleet.settle_call(row, "retry", 5_000_000), {"a", "b"}


def a_reclaim_of_what_is_cancelled(fleet: Fleet) -> tuple[Call, set[str]]:
    row = running(fleet, "")
    fleet.run("cancel", KEEPING, 0, "by somebody", "by somebody", "a", "")
    fleet.site.let_idle(PREFIX + row[STREAM], WORKER, row[ENTRY])
    args = (KEEPING, WORKER, "small", LEASE // 1000, 1000, 10, "", *["0-0"] * 12)
    return ("reclaim", *args), {"a", "b"}


def a_submit_with_a_deadline(fleet: Fleet) -> tuple[Call, set[str]]:
    return fleet.submit("a", MUTEX, terms="start_by|+1000000|"), {"a"}


def an_expiry(fleet: Fleet) -> tuple[Call, set[str]]:
    running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c", MUTEX, terms="start_by|+1000000|"))
    fleet.run(*fleet.submit("d", MUTEX, terms="start_by|+1000000|1"))
    fleet.run(*fleet.submit("e", due=3_600_000_000, terms="start_by|+1000000|1"))
    fleet.run(*fleet.submit("f", due=3_600_000_000, terms="start_by|+1000000|"))
    assert fleet.fetch() == []
    fleet.now += 1_000_000
    return ("promote", KEEPING, "", 500, 0, *WAITS, ""), set("abcdef")


def a_late_fetch(fleet: Fleet) -> tuple[Call, set[str]]:
    fleet.run(*fleet.submit("a", terms="start_by|+1000000|"))
    fleet.run(*fleet.submit("b", terms="start_by|+1000000|1"))
    fleet.now += 1_000_000
    return fleet.fetch_call(), {"a", "b"}


def a_paused_fetch(fleet: Fleet) -> tuple[Call, set[str]]:
    running(fleet)  # b waits for the lock of a
    fleet.run(*fleet.submit("c"))
    fleet.run("pause", "who", "", "task:Task")
    fleet.afterwards = [("resume", "who", "task:Task")]
    return fleet.fetch_call(), {"a", "b", "c"}


def a_resume(fleet: Fleet) -> tuple[Call, set[str]]:
    fleet.run("pause", "who", "", "task:Task", "stream:normal:small")
    for id in "ab":
        fleet.run(*fleet.submit(id, MUTEX))
    fleet.run("resume", "who", "stream:normal:small")
    assert fleet.fetch() == []
    return ("resume", "who", "task:Task"), {"a", "b"}


def a_hastening(fleet: Fleet) -> tuple[Call, set[str]]:
    for id in "ab":
        fleet.run(*fleet.submit(id, due=3_600_000_000))
    return ("hasten", "a", "b"), {"a", "b"}


HISTORIES: tuple[Callable[[Fleet], tuple[Call, set[str]]], ...] = (
    *(a_submit, a_delayed_submit, a_fetch, a_done, a_retry, a_delayed_retry, a_death),
    *(a_promotion, a_reclaim, a_walk, a_disown, a_seal, a_last_child, a_cancel),
    *(a_paused_fetch, a_resume, a_hastening),
    *(an_order, an_obeyed_order, a_reclaim_of_what_is_cancelled),
    *(a_submit_with_a_deadline, an_expiry, a_late_fetch),
)


def problems(
    client: redis.Redis, history: Any, *faults: Fault, is_shared: bool = False
) -> Iterator[str]:
    """Cut a script after each of its calls, repeat it, sweep; what is wrong afterwards."""
    site = QueueSite(client, faults)
    for calls in range(MOST_CALLS):
        fleet = Fleet(site, is_shared)
        call, ids = history(fleet)
        is_whole = site.run_cut(call[0], fleet.now + 1_000, calls, *call[1:])
        if call[0] in REPEATED:
            fleet.run(*call)
        for other in fleet.afterwards:
            fleet.run(*other)
        try:
            fleet.drain()
        except AssertionError as error:
            yield f"after {calls} calls: {error}"
            continue
        for _ in range(2):  # a count that was cut off is put right by two walks
            fleet.walk()
        facts = site.look()
        if facts.active or facts.tenants:
            yield f"after {calls} calls: {facts.active} {facts.tenants} are counted"
        if set(facts.results) != ids:
            yield f"after {calls} calls: ended are {sorted(facts.results)}, not {sorted(ids)}"
        if any(facts.streams.values()) or facts.delayed:
            yield f"after {calls} calls: pointers are left: {facts.streams} {facts.delayed}"
        for what in ("keys", "due", "deadlines", *STREAMS):
            for row in site.run("inspect", fleet.now, what, "0", 10_000)[1:]:
                if finding := examine(row, lease=LEASE / 1e6):
                    yield f"after {calls} calls: the doctor finds {finding}"
        if is_whole:
            return
    yield "the script never came to its end"


@pytest.mark.parametrize("is_shared", [False, True], ids=["", "of tenants"])
@pytest.mark.parametrize("history", HISTORIES, ids=[each.__name__ for each in HISTORIES])
def test_a_cut_script_loses_nothing(
    redis_server: RedisServer, history: Any, is_shared: bool
) -> None:
    """After a cut at any call, a repetition and a sweep each task ends, and nothing is left."""
    with redis_server.client() as client:
        assert list(problems(client, history, is_shared=is_shared)) == []


def test_removing_first_would_lose_a_task(redis_server: RedisServer) -> None:
    """The test above notices a promotion that removes a task before it is in its stream."""
    removes_first = Fault(
        "removes first",
        "local pointer = enqueue(kind, id, stream, gen)",
        "redis.call('ZREM', due_key, id)\n"
        "  redis.call('DEL', P .. 't:' .. id)\n"
        "  local pointer = enqueue(kind, id, stream, gen)",
    )
    with redis_server.client() as client:
        assert list(problems(client, a_promotion, removes_first))

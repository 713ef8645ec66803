"""The lock scripts under random histories: nothing that must never happen does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from servers import RedisServer
from stores.machines.faults import BUDGET_REST, FIRST_ONLY, LOCKS, THRIFTY
from stores.machines.histories import Histories, Rules, each, step
from stores.machines.lock_machine import CHOICES, SETTINGS, Delivery, LockMachine, Pace
from stores.machines.machine import Violation
from stores.machines.site import Fault, Site

# Noticed soon; `make soak` looks for all faults.
QUICK = ("settle-wakes-none", "readers-pass-writers")
FIRST, MUTEX, WRITER, READER = (CHOICES[n] for n in (0, 2, 3, 5))
MOST_TASKS = 14
LOCK_LISTS = st.lists(st.sampled_from(CHOICES), max_size=3)
SOME_LOCKS = st.lists(st.sampled_from(CHOICES), min_size=1, max_size=3)
WORKER = st.integers(0, 2)
WHICH = st.integers(0, 15)
PACES = (
    Pace(),
    Pace(first=300_000_000, aging=3_600_000_000),
    Pace(first=2_000_000),
    Pace(first=2_000_000, aging=5_000_000),
)
PAUSES = (100_000, 1_000_000, 5_100_000, 10_100_000, 20_000_000, 31_000_000, 61_000_000)


class LockRules(Rules):
    """What can happen, in any order."""

    @initialize(site=st.integers(0, 9), pace=st.sampled_from(PACES))
    def begin(self, site: int, pace: Pace) -> None:
        self.machine = LockMachine(self.sites[site % len(self.sites)], pace=pace)
        self.is_sound = True

    def delivery(self, which: int) -> Delivery:
        live = self.machine.live
        return live[which % len(live)]

    def has_live(self) -> bool:
        return bool(self.machine.live)

    def has_room(self) -> bool:
        return len(self.machine.facts.records) < MOST_TASKS

    submit = precondition(has_room)(
        step(
            "submit",
            priority=st.sampled_from(["normal", "realtime", "background"]),
            locks=LOCK_LISTS,
            task=st.sampled_from(["B", "A"]),
            vo=st.sampled_from(["", "", "v"]),
            delay=st.sampled_from([0, 0, 0, 3_000_000]),
        )
    )

    @precondition(has_room)
    @rule(
        locks=st.lists(st.sampled_from(CHOICES), min_size=1, max_size=2),
        count=st.integers(2, 6),
        task=st.sampled_from(["B", "A"]),
    )
    def submit_rivals(self, locks: Any, count: int, task: str) -> None:
        for _ in range(count):
            self.play(self.machine.submit, "normal", locks, task, "")

    looks = st.sampled_from([200, 200, 200, 3, 1])
    fetch = step("fetch", worker=WORKER, free=st.integers(1, 5), looks=looks)
    fetch_much = step("fetch", worker=WORKER, free=st.integers(3, 20), looks=st.just(200))
    lose_fetch = step("lose_fetch", worker=WORKER, free=st.integers(1, 3))

    @precondition(has_live)
    @rule(which=WHICH)
    def end(self, which: int) -> None:
        self.play(self.machine.settle, self.delivery(which), "done")

    @precondition(has_live)
    @rule(
        which=WHICH,
        outcome=st.sampled_from(["done", "retry", "back", "dead", "dying"]),
        begun=st.sampled_from(["no", "yes", "still runs"]),
        delay=st.sampled_from([0, 0, 1_500_000, 30_000_000]),
    )
    def settle(self, which: int, outcome: str, begun: str, delay: int) -> None:
        delivery, options = (
            self.delivery(which),
            {"delay": delay, "still_runs": begun == "still runs"},
        )
        self.play(self.machine.settle, delivery, outcome, started=begun != "no", **options)

    @precondition(lambda self: bool(self.machine.late))
    @rule(which=WHICH, outcome=st.sampled_from(["done", "retry", "back", "dead", "dying"]))
    def settle_late(self, which: int, outcome: str) -> None:
        late = self.machine.late
        self.play(self.machine.settle_late, late[which % len(late)], outcome)

    @precondition(has_live)
    @rule(workers=st.sampled_from([(0, 1, 2), (0,), (1,), (2,)]))
    def renew(self, workers: tuple[int, ...]) -> None:
        for worker in workers:
            self.play(self.machine.renew, worker)

    @precondition(has_live)
    @rule(which=WHICH, locks=LOCK_LISTS)
    def readmit(self, which: int, locks: Any) -> None:
        self.play(self.machine.readmit, self.delivery(which), locks)

    take_over = precondition(has_live)(step("take_over", worker=WORKER))
    crash = step("crash", worker=WORKER)
    reclaim = step("reclaim", worker=WORKER)
    advance = step("advance", pause=st.sampled_from(PAUSES))
    advance_to_event = step(
        "advance_to_event", which=st.integers(0, 3), by=st.sampled_from([0, 0, -1, 1])
    )
    promote = step("promote", batch=st.sampled_from([500, 500, 2]))
    settle_down = step("settle_down")

    @precondition(has_room)
    @rule(which=st.integers(0, 3), locks=SOME_LOCKS, wait=st.booleans())
    def ask_hold(self, which: int, locks: Any, wait: bool) -> None:
        self.play(self.machine.ask_hold, f"h{which}", locks, wait=wait)

    @precondition(lambda self: bool(self.machine.holds))
    @rule(which=WHICH, verb=st.sampled_from(["ask", "renew", "unhold"]))
    def go_on_with_hold(self, which: int, verb: str) -> None:
        id = sorted(self.machine.holds)[which % len(self.machine.holds)]
        if verb == "ask":
            self.play(self.machine.ask_hold, id, [], wait=True)
        else:
            self.play(self.machine.renew_hold if verb == "renew" else self.machine.unhold, id)

    @rule(setting=st.sampled_from(SETTINGS), which=WHICH)
    def set_limit(self, setting: Any, which: int) -> None:
        name, values = setting
        self.play(self.machine.set_limit, name, values[which % len(values)])

    @precondition(has_room)
    @rule(value=st.sampled_from(["1", "2"]))
    def limit_class_while_it_runs(self, value: str) -> None:
        self.play(self.machine.set_limit, "C||task|A|", value)
        for worker in range(3):
            self.play(self.machine.renew, worker)
        self.play(self.machine.submit, "normal", [], "A", "")

    @precondition(lambda self: bool(self.machine.model.limits))
    @rule()
    def unset_limits(self) -> None:
        for name in list(self.machine.model.limits):
            self.play(self.machine.set_limit, name, None)

    @rule(really=st.integers(0, 19))
    def flush(self, really: int) -> None:
        if really == 19:
            self.play(self.machine.flush)


HISTORIES = Histories(
    LockRules,
    lambda client, faults: (Site(client, faults), Site(client, (*THRIFTY, *faults))),
    length=150,
)


def overtake_behind_the_woken(client: redis.Redis, *faults: Fault) -> None:
    """A writer comes when two readers are woken and a reader with a lower rank waits."""
    machine = LockMachine(Site(client, faults))
    machine.ask_hold("h0", [MUTEX], wait=False)
    machine.ask_hold("h1", [WRITER], wait=False)
    machine.submit("realtime", [READER, MUTEX], "B", "")
    machine.submit("background", [READER], "B", "")
    machine.submit("background", [READER], "B", "")
    machine.fetch(0, 9, 200)
    machine.unhold("h1")
    machine.submit("realtime", [WRITER], "B", "")
    assert machine.fetch(0, 1, 1) == []
    machine.finish()


def end_a_budget_at_the_unlucky(client: redis.Redis, *faults: Fault) -> None:
    """The budget of a tick ends at a waiter that cannot run, in front of one that could."""
    budget = Fault("tick-budget", "offers_left = 3")
    machine = LockMachine(Site(client, [budget, *faults]), pace=PACES[1])
    machine.ask_hold("h0", [FIRST, MUTEX, WRITER], wait=False)
    for locks in ([FIRST], [MUTEX], [FIRST, MUTEX, READER], [READER]):
        machine.submit("normal", locks, "B", "")
    machine.fetch(0, 9, 200)
    machine.advance(30_000_000)  # the hold is gone: three queues are due
    machine.settle_down()
    assert {delivery.job.id for delivery in machine.fetch(0, 9, 200)} == {"t1", "t2", "t4"}
    machine.finish()


@pytest.mark.parametrize(
    ("history", "fault"),
    [(overtake_behind_the_woken, FIRST_ONLY), (end_a_budget_at_the_unlucky, BUDGET_REST)],
)
def test_a_rare_history_goes_well_without_its_fault(
    redis_server: RedisServer, history: Callable[..., None], fault: Fault
) -> None:
    """The history goes well, and does not with the fault; random histories meet it too rarely."""
    with redis_server.client() as client:
        history(client)
        with pytest.raises(Violation):
            history(client, fault)


def test_nothing_forbidden_happens(redis_server: RedisServer) -> None:
    """No history of some hundred steps breaks a promise about locks."""
    HISTORIES.run_seeds(redis_server, [1], 10)


@pytest.mark.soak
def test_nothing_forbidden_happens_for_long(redis_server: RedisServer) -> None:
    """The same for 200,000 steps and more, from twenty seeds."""
    assert HISTORIES.run_seeds(redis_server, range(100, 120), 110) >= 200_000


@each(LOCKS, QUICK)
def test_a_deliberate_fault_is_caught(redis_server: RedisServer, fault: Fault) -> None:
    """Histories notice each error in the lock scripts."""
    assert HISTORIES.steps_to_catch(redis_server, fault, 60_000) is not None

"""The lock scripts under random histories: nothing that must never happen does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from servers import RedisServer
from stores.lock_machine import CHOICES, SETTINGS, Delivery, Fault, LockMachine, Pace, Site

MOST_TASKS = 14
LOCKS = st.lists(st.sampled_from(CHOICES), max_size=3)
SOME_LOCKS = st.lists(st.sampled_from(CHOICES), min_size=1, max_size=3)
WORKER = st.integers(0, 2)
WHICH = st.integers(0, 15)
PACES = (Pace(), Pace(first=300_000_000, aging=3_600_000_000), Pace(first=2_000_000))
PAUSES = (100_000, 1_000_000, 5_100_000, 10_100_000, 20_000_000, 31_000_000, 61_000_000)


class LockRules(RuleBasedStateMachine):
    """What can happen, in any order. Subclasses say where: on which sites."""

    sites: tuple[Site, ...]
    steps = 0

    @initialize(site=st.integers(0, 9), pace=st.sampled_from(PACES))
    def begin(self, site: int, pace: Pace) -> None:
        self.machine = LockMachine(self.sites[site % len(self.sites)], pace)
        self.is_sound = True

    def play(self, step: Callable[..., Any], *args: Any, **options: Any) -> None:
        LockRules.steps += 1
        self.is_sound = False
        step(*args, **options)
        self.is_sound = True

    def delivery(self, which: int) -> Delivery:
        live = self.machine.live
        return live[which % len(live)]

    def has_live(self) -> bool:
        return bool(self.machine.live)

    def has_room(self) -> bool:
        return len(self.machine.state.records) < MOST_TASKS

    @precondition(has_room)
    @rule(
        priority=st.sampled_from(["normal", "realtime", "background"]),
        locks=LOCKS,
        task=st.sampled_from(["B", "A"]),
        vo=st.sampled_from(["", "", "v"]),
        delay=st.sampled_from([0, 0, 0, 3_000_000]),
    )
    def submit(self, priority: str, locks: Any, task: str, vo: str, delay: int) -> None:
        self.play(self.machine.submit, priority, locks, task, vo, delay)

    @precondition(has_room)
    @rule(lock=st.sampled_from(CHOICES[:6]), count=st.integers(2, 4))
    def submit_rivals(self, lock: Any, count: int) -> None:
        for _ in range(count):
            self.play(self.machine.submit, "normal", [lock], "B", "")

    @rule(worker=WORKER, free=st.integers(1, 5), looks=st.sampled_from([200, 200, 200, 3, 1]))
    def fetch(self, worker: int, free: int, looks: int) -> None:
        self.play(self.machine.fetch, worker, free, looks)

    @rule(worker=WORKER, free=st.integers(3, 20))
    def fetch_much(self, worker: int, free: int) -> None:
        self.play(self.machine.fetch, worker, free, 200)

    @rule(worker=WORKER, free=st.integers(1, 3))
    def lose_fetch(self, worker: int, free: int) -> None:
        self.play(self.machine.lose_fetch, worker, free)

    @precondition(has_live)
    @rule(which=WHICH)
    def end(self, which: int) -> None:
        self.play(self.machine.settle, self.delivery(which), "done")

    @precondition(has_live)
    @rule(
        which=WHICH,
        outcome=st.sampled_from(["done", "retry", "back", "dead", "dying"]),
        started=st.booleans(),
        delay=st.sampled_from([0, 0, 1_500_000, 30_000_000]),
    )
    def settle(self, which: int, outcome: str, started: bool, delay: int) -> None:
        delivery = self.delivery(which)
        self.play(self.machine.settle, delivery, outcome, started=started, delay=delay)

    @precondition(lambda self: bool(self.machine.late))
    @rule(which=WHICH, outcome=st.sampled_from(["done", "retry", "back", "dead", "dying"]))
    def settle_late(self, which: int, outcome: str) -> None:
        late = self.machine.late
        self.play(self.machine.settle_late, late[which % len(late)], outcome)

    @precondition(has_live)
    @rule(worker=WORKER)
    def renew(self, worker: int) -> None:
        self.play(self.machine.renew, worker)

    @precondition(has_live)
    @rule(which=WHICH, locks=LOCKS)
    def readmit(self, which: int, locks: Any) -> None:
        self.play(self.machine.readmit, self.delivery(which), locks)

    @precondition(has_live)
    @rule(worker=WORKER)
    def crash(self, worker: int) -> None:
        self.play(self.machine.crash, worker)

    @rule(worker=WORKER)
    def reclaim(self, worker: int) -> None:
        self.play(self.machine.reclaim, worker)

    @rule(pause=st.sampled_from(PAUSES))
    def advance(self, pause: int) -> None:
        self.play(self.machine.advance, pause)

    @rule(which=st.integers(0, 3), by=st.sampled_from([0, 0, -1, 1]))
    def advance_to_event(self, which: int, by: int) -> None:
        self.play(self.machine.advance_to_event, which, by)

    @rule(batch=st.sampled_from([500, 500, 2]))
    def promote(self, batch: int) -> None:
        self.play(self.machine.promote, batch)

    @rule()
    def settle_down(self) -> None:
        self.play(self.machine.settle_down)

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

    @rule(really=st.integers(0, 19))
    def flush(self, really: int) -> None:
        if really == 19:
            self.play(self.machine.flush)

    def teardown(self) -> None:
        if getattr(self, "is_sound", False):
            self.machine.finish()


def run(
    server: RedisServer,
    number: int,
    examples: int,
    length: int,
    *faults: Fault,
    shrink: bool = True,
) -> None:
    """Play random histories on a server; raises what was violated, with the shortest history."""
    with server.client() as client:
        both = (Site(client, faults), Site(client, faults, thrifty=True))
        rules = type("Rules", (LockRules,), {"sites": both})
        seed(number)(rules)
        phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
        run_state_machine_as_test(
            rules,
            settings=settings(
                max_examples=examples,
                stateful_step_count=length,
                deadline=None,
                database=None,
                phases=phases,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_a_queue_that_got_the_rest_of_a_budget_goes_on_at_once(redis_server: RedisServer) -> None:
    """A tick whose budget ended at a waiter that cannot run comes back for those behind it."""
    mutex, other, writer, reader = (CHOICES[n] for n in (0, 2, 3, 5))
    thrifty = Fault(
        "thrifty tick", "offers_left, tick_offers = 200, 200", "tick_offers = 3\noffers_left = 3"
    )
    with redis_server.client() as client:
        machine = LockMachine(
            Site(client, [thrifty]), Pace(300_000_000, 300_000_000, 3_600_000_000)
        )
        machine.ask_hold("h0", [mutex, other, writer], wait=False)
        for locks in ([mutex], [other], [mutex, other, reader], [reader]):
            machine.submit("normal", locks, "B", "")
        machine.fetch(0, 9, 200)
        machine.advance(30_000_000)  # the hold is gone: three queues are due
        machine.settle_down()  # raises if somebody could run and nobody looks
        assert {d.job.id for d in machine.fetch(0, 9, 200)} == {"t1", "t2", "t4"}
        machine.finish()


def test_nothing_forbidden_happens(redis_server: RedisServer) -> None:
    """No history of some hundred steps breaks a promise about locks."""
    start, before = time.monotonic(), LockRules.steps
    run(redis_server, 1, 60, 150)
    print(f"{LockRules.steps - before} steps in {time.monotonic() - start:.1f} s")

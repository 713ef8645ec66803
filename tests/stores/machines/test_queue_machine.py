"""The scripts of the queue under random histories of a fleet: nothing forbidden happens."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from servers import RedisServer
from stores.machines.faults import QUEUE
from stores.machines.histories import Histories, Rules, each, step
from stores.machines.queue_machine import MUTEXES, PRIORITIES, SECOND, Delivery, QueueMachine
from stores.machines.site import Fault, Site

# Noticed soon, each by another judgement; `make soak` looks for all faults.
QUICK = ("known-id live", "plain-end-uncounted", "priority-order", "retry-counts-twice")
MOST_TASKS = 14
WORKER = st.integers(0, 2)
WHICH = st.integers(0, 15)
PRIORITY = st.sampled_from(PRIORITIES)
OUTCOMES = ("done", "retry", "back", "dead", "dying", "crash", "suspect")
OUTCOME = st.sampled_from([*OUTCOMES, "done", "retry", "saved"])
PAUSES = tuple(SECOND * n // 10 for n in (1, 10, 51, 101, 200, 310, 610, 910))


class QueueRules(Rules):
    """What can happen, in any order."""

    @initialize()
    def begin(self) -> None:
        self.machine = QueueMachine(self.sites[0])
        self.is_sound = True

    def delivery(self, which: int) -> Delivery:
        hands = self.machine.hands
        return hands[which % len(hands)]

    def has_hands(self) -> bool:
        return bool(self.machine.hands)

    def has_late(self) -> bool:
        return bool(self.machine.late)

    def has_beliefs(self) -> bool:
        return bool(self.machine.beliefs)

    def has_room(self) -> bool:
        return len(self.machine.model.tasks) < MOST_TASKS

    def knows_ids(self) -> bool:
        return bool(self.machine.model.tasks or self.machine.model.ended)

    submit = precondition(has_room)(
        step(
            "submit",
            priority=PRIORITY,
            lock=st.sampled_from([0, 0, 0, 1, 1, 2]),
            delay=st.sampled_from([0, 0, 0, 3 * SECOND]),
            twice=st.booleans(),
        )
    )

    @precondition(has_room)
    @rule(
        tasks=st.lists(
            st.tuples(PRIORITY, st.sampled_from([0, 0, 1]), st.sampled_from([0, 0, SECOND])),
            min_size=2,
            max_size=6,
        )
    )
    def submit_some(self, tasks: list[tuple[str, int, int]]) -> None:
        for priority, lock, delay in tasks:
            self.play(self.machine.submit, priority, lock, delay)

    @precondition(knows_ids)
    @rule(which=WHICH, ended=st.booleans())
    def submit_again(self, which: int, ended: bool) -> None:
        model = self.machine.model
        ids = sorted(model.ended if ended and model.ended else model.tasks or model.ended)
        self.play(self.machine.submit_again, ids[which % len(ids)])

    @precondition(knows_ids)
    @rule(which=WHICH, ended=st.sampled_from([False, False, False, True]))
    def cancel(self, which: int, ended: bool) -> None:
        model = self.machine.model
        ids = sorted(model.ended if ended else model.tasks) or ["nobody"]
        self.play(self.machine.cancel, ids[which % len(ids)])

    @precondition(has_hands)
    @rule(which=WHICH, then=st.sampled_from(["", "ask", "void"]))
    def cancel_running(self, which: int, then: str) -> None:
        machine, delivery = self.machine, self.delivery(which)
        self.play(machine.cancel, delivery.id, order="by somebody: for a test")
        task = machine.model.tasks.get(delivery.id)
        if then == "ask":
            self.play(machine.ask_orders, delivery.worker)
        elif then == "void" and task and task.mutex:  # and its lock is taken from it
            names = [lock.redis_key for lock in MUTEXES]
            self.play(machine.break_lock, names.index(task.mutex))
            self.play(machine.fetch, 0, 3)

    @rule(priority=PRIORITY, which=st.integers(0, 20))
    def foreign_entry(self, priority: str, which: int) -> None:
        ids = ["", "nobody", *sorted(self.machine.model.tasks)]
        self.play(self.machine.foreign_entry, priority, ids[which % len(ids)])

    looks = st.sampled_from([200, 200, 200, 2])
    fetch = step("fetch", which=WORKER, free=st.integers(1, 6), looks=looks)
    lose_fetch = step("lose_fetch", which=WORKER, free=st.integers(1, 3))

    @rule(worker=WORKER, free=st.integers(2, 9), outcomes=st.lists(OUTCOME, max_size=6))
    def work(self, worker: int, free: int, outcomes: list[str]) -> None:
        """A worker fetches and settles, as most of the time."""
        self.play(self.machine.fetch, worker, free)
        process = self.machine.workers[worker]
        if process.is_frozen:
            return
        mine = [d for d in self.machine.hands if d.worker == process.name]
        for delivery, outcome in zip(mine, outcomes, strict=False):
            if outcome == "saved":
                self.play(self.machine.checkpoint, delivery)
            else:
                self.play(self.machine.settle, delivery, outcome, after=outcome == "dead")

    @rule(pause=st.sampled_from([SECOND, 31 * SECOND]))
    def come_due(self, pause: int) -> None:
        self.play(self.machine.advance, pause)
        for worker in range(3):
            self.play(self.machine.beat, worker)
        self.play(self.machine.promote)

    @precondition(has_hands)
    @rule(which=WHICH, after=st.sampled_from([0, 0, 0, 2]), ttl=st.booleans())
    def end(self, which: int, after: int, ttl: bool) -> None:
        self.play(self.machine.settle, self.delivery(which), "done", ttl=ttl, after=after)

    @precondition(has_hands)
    @rule(
        which=WHICH,
        outcome=st.sampled_from(OUTCOMES),
        delay=st.sampled_from([0, 0, 1_500_000, 30 * SECOND]),
        after=st.sampled_from([0, 1]),
    )
    def settle(self, which: int, outcome: str, delay: int, after: int) -> None:
        self.play(self.machine.settle, self.delivery(which), outcome, delay, after=after)

    @precondition(has_late)
    @rule(which=WHICH, outcome=st.sampled_from(OUTCOMES))
    def settle_late(self, which: int, outcome: str) -> None:
        late = self.machine.late
        self.play(self.machine.settle, late[which % len(late)], outcome)

    @precondition(lambda self: self.has_hands() or self.has_late())
    @rule(which=WHICH)
    def checkpoint(self, which: int) -> None:
        every = [*self.machine.hands, *self.machine.late]
        self.play(self.machine.checkpoint, every[which % len(every)])

    @precondition(has_room)
    @rule(lock=st.integers(1, 2), outcome=st.sampled_from(OUTCOMES))
    def hand_a_lock_on(self, lock: int, outcome: str) -> None:
        """The next task gets what was given back."""
        machine = self.machine
        for _ in range(2):
            self.play(machine.submit, "realtime", lock)
            for delivery in self.play(machine.fetch, 0, 3):
                self.play(machine.settle, delivery, outcome, 3 * SECOND)

    @rule(worker=st.integers(0, 2))
    def oversleep(self, worker: int) -> None:
        """A worker loses what it has, takes it again, and beats with both."""
        machine = self.machine
        if worker:
            return
        self.play(machine.fetch, worker, 2)
        self.play(machine.advance, 46 * SECOND)
        self.play(machine.reclaim, worker)
        self.play(machine.fetch, worker, 3)
        self.play(machine.beat, worker)

    @precondition(has_beliefs)
    @rule(pause=st.sampled_from([11 * SECOND, 31 * SECOND]))
    def outlive_a_lock(self, pause: int) -> None:
        """A worker settles what it held a lock for, after it renewed it the last time."""
        fences = [belief.fence for belief in self.machine.beliefs.values()]
        self.play(self.machine.advance, pause)
        for delivery in [d for d in self.machine.hands if d.fence in fences]:
            self.play(self.machine.settle, delivery, "done")

    @rule(workers=st.sampled_from([(0, 1, 2), (0, 1, 2), (0,), (1,), (2,)]))
    def beat(self, workers: tuple[int, ...]) -> None:
        for worker in workers:
            self.play(self.machine.beat, worker)

    @precondition(has_hands)
    @rule(worker=WORKER, kindly=st.booleans())
    def end_of_a_worker(self, worker: int, kindly: bool) -> None:
        self.play(self.machine.stop if kindly else self.machine.crash, worker)

    @rule(worker=st.integers(1, 2))
    def freeze_or_thaw(self, worker: int) -> None:
        process = self.machine.workers[worker]
        process.is_frozen = not process.is_frozen

    break_lock = precondition(has_beliefs)(step("break_lock", which=st.integers(0, 1)))

    @rule(worker=st.sampled_from([0, 0, 1, 2]), walk=st.booleans())
    def sweep(self, worker: int, walk: bool) -> None:
        if walk:
            self.play(self.machine.mend)
        else:
            self.play(self.machine.reclaim, worker)

    @precondition(has_hands)
    @rule()
    def die_and_reclaim(self) -> None:
        machine = self.machine
        for worker in (1, 2):
            self.play(machine.crash, worker)
        self.play(machine.advance, 46 * SECOND)
        self.play(machine.beat, 0)
        self.play(machine.reclaim, 0)

    @rule(times=st.sampled_from([0, 0, 0, 0, 1, 3]))
    def die_again(self, times: int) -> None:
        """Every worker that takes a task dies with it."""
        machine = self.machine
        for _ in range(times):
            self.play(machine.fetch, 0, 9)
            self.play(machine.crash, 0)
            self.play(machine.advance, 46 * SECOND)
            self.play(machine.reclaim, 0)

    promote = step("promote")

    advance = step("advance", pause=st.sampled_from(PAUSES))

    @rule(
        which=WHICH,
        what=st.sampled_from(["stream", "group", "group", "delayed", "", ""]),
        walk=st.booleans(),
    )
    def foreign_hand(self, which: int, what: str, walk: bool) -> None:
        streams = sorted(key for key, rows in self.machine.facts.streams.items() if rows)
        if what == "delayed":
            self.play(self.machine.delete_delayed)
        elif what and streams:
            key = streams[which % len(streams)]
            self.play(self.machine.delete_stream, key, only_group=what == "group")
        if what and walk:
            self.play(self.machine.mend)

    @precondition(has_hands)
    @rule(which=WHICH, worker=st.integers(0, 5), delay=st.sampled_from([0, 3 * SECOND]))
    def lose_place_of_the_dying(self, which: int, worker: int, delay: int) -> None:
        """In a worker's hands, in the delayed set, or in a stream: where the dying may be."""
        machine, delivery = self.machine, self.delivery(which)
        if worker > 2:
            return
        self.play(machine.settle, delivery, "dying")
        if worker == 0:
            self.play(machine.settle, delivery, "back", delay)
        if delay:
            self.play(machine.delete_delayed)
        elif delivery.stream in machine.facts.streams:
            self.play(machine.delete_stream, delivery.stream, only_group=worker == 1)
        self.play(machine.fetch, 0, 9)
        self.play(machine.settle, delivery, "dead")

    @precondition(has_room)
    @rule(
        lock=st.integers(1, 2),
        pause=st.sampled_from([0, 10 * SECOND, 31 * SECOND]),
        really=st.integers(0, 9),
    )
    def flush_under_a_lock(self, lock: int, pause: int, really: int) -> None:
        machine = self.machine
        if really != 9:
            return
        for _ in range(2):
            self.play(machine.submit, "realtime", lock)
            self.play(machine.fetch, 0, 9)
            self.play(machine.beat, 0)
            if machine.beliefs:
                self.play(machine.flush)
            self.play(machine.beat, 0)
            self.play(machine.advance, pause)

    @rule(really=st.integers(0, 19))
    def lose_data(self, really: int) -> None:
        if really == 19:
            self.play(self.machine.flush)

    @rule(really=st.integers(0, 3))
    def heal(self, really: int) -> None:
        if really == 3:
            self.play(self.machine.heal)


HISTORIES = Histories(QueueRules, lambda client, faults: (Site(client, faults),), length=120)


def test_nothing_forbidden_happens(redis_server: RedisServer) -> None:
    """No history of some hundred steps breaks a promise about tasks."""
    HISTORIES.run_seeds(redis_server, [1], 6)


@pytest.mark.soak
def test_nothing_forbidden_happens_for_long(redis_server: RedisServer) -> None:
    """The same for 200,000 steps and more, from twenty seeds."""
    assert HISTORIES.run_seeds(redis_server, range(100, 120), 80) >= 200_000


@each(QUEUE, QUICK)
def test_a_deliberate_fault_is_caught(redis_server: RedisServer, fault: Fault) -> None:
    """Histories notice each error in the scripts; most need some thousand steps."""
    assert HISTORIES.steps_to_catch(redis_server, fault, 300_000) is not None

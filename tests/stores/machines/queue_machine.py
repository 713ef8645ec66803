"""Drives the scripts of the queue on a real server under a clock of its own; judges every step.

`QueueMachine` has one method for each thing that can happen to a fleet: workers that fetch, settle,
beat, freeze and die; replies that are lost; streams that a foreign hand deletes; a Redis that
forgets. Each runs scripts (`site.Site`), lets `queue_model.Model` follow, and compares what Redis
then contains with what must hold; a difference is a `Violation`:

- each accepted task is in exactly one place, or has exactly one end, which is remembered;
- it is handed over in order of priority, with the attempts, deaths and data that are its own, and
  never after it has ended, nor executed while it is dying;
- a second or late settle changes nothing; a known id is the same task;
- a new epoch begins when, and only when, data were lost; then no lock is granted too early;
- what a foreign hand or a death left is mended by a sweep, and then the doctor finds nothing;
- the count of tasks that have not ended is that of the records;
- in the end every task ends, and no key is left.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import calls
from stores.machines.machine import STEP, STREAMS, Budget, Machine, Violation, findings, must
from stores.machines.queue_model import MOST_ERRORS, Model, Task
from stores.machines.site import PREFIX, Facts

from nonet.tasks.locks import MutexLock, encode_locks

PRIORITIES = ("realtime", "normal", "background")
SECOND = 1_000_000
LOCK_TTL = 30 * SECOND
PROBATION = 2 * SECOND
LEASE = 45 * SECOND
WORKER_TTL = 30 * SECOND
RESULT_TTL = 90 * SECOND
DEDUP_TTL = 60 * SECOND
HISTORY = 1_000_000  # more than one run ends
KEEPING = f"{RESULT_TTL // 1000}|{DEDUP_TTL // 1000}|{HISTORY}"
CRASH_LIMIT = 3
SLACK = 3 * SECOND  # by which the server's clock, which ends TTLs, may be off the virtual one
LONGEST = 4096  # bytes of an envelope that a worker is handed
WAITS = (30 * SECOND, 300 * SECOND, 60 * SECOND)
MUTEXES = (MutexLock("job", 1), MutexLock("job", 2))
TENANTS = ("", "a", "b")
MOST_LATE = 12
# What Redis keeps of an idle namespace.
STRUCTURE = {
    *("fence", "epoch", "counters", "quarantine", "quarantine:bytes", "workers"),
    *("ended:done", "ended:cancelled", "ended:dead", "ended:expired"),
    *("promoted", "mend", "events"),
    *(f"rested:{priority}:small" for priority in PRIORITIES),
    *STREAMS,
}


@dataclass(slots=True)
class Delivery:
    """What a worker was handed."""

    id: str
    gen: str
    fence: str
    worker: str
    stream: str
    entry: str
    dying: bool
    died: str = ""


@dataclass(slots=True)
class Process:
    """A worker or client: what it knows."""

    name: str
    since: int = 0  # latest epoch
    seen: int = 0  # highest sequence
    is_frozen: bool = False

    @property
    def known(self) -> str:
        """As the scripts take it."""
        return f"{self.since}|{self.seen}"


@dataclass(slots=True)
class Belief:
    """A delivery that may believe to hold a mutex, and how long."""

    fence: str
    until: int


@dataclass
class QueueMachine(Machine):
    """One run: an emptied database, its model, and the steps."""

    model: Model = field(default_factory=Model)
    hands: list[Delivery] = field(default_factory=list)  # of the workers that live
    late: list[Delivery] = field(default_factory=list)  # of those that seem dead
    beliefs: dict[str, Belief] = field(default_factory=dict)
    hurt: set[str] = field(default_factory=set)  # what a foreign hand took out of its place
    beats: dict[tuple[str, str], int] = field(default_factory=dict)  # of pending entries

    def __post_init__(self) -> None:
        super().__post_init__()
        self.workers = [Process(f"small-{name}1") for name in "abc"]
        self.client = Process("client")
        self._made = self._top_fence = self._top_epoch = 0
        self._beat_all()

    # Submitting ------------------------------------------------------------------------------

    def submit(self, priority: str, lock: int, delay: int = 0, *, twice: bool = False) -> None:
        """Submit a task; `twice`: the same id two times in one call. lock: which, 0 for none."""
        task, due = self._new(priority, lock), self._in(delay)
        args = self._run_of(task, due, times=2 if twice else 1)
        answer = self._run("submit", KEEPING, *args)
        must(answer == ([1, 0] if twice else 1), task.id, "was not made")
        self.model.submit(task, due, self.now)
        self._judge()

    def submit_again(self, id: str) -> None:
        """The same id is the same task, while it lives and for a while after."""
        end = self.model.ended.get(id)
        if end and abs(end.until - self.now) < 2 * SLACK:
            return  # it is just being forgotten
        task, before = self._new("realtime", 0, id), self.facts
        is_new = not self.model.is_known(id)
        answer = self._run("submit", KEEPING, *self._run_of(task, 0))
        must(answer == (1 if is_new else [0]), id, "answered", answer, "not", is_new)
        if is_new:
            self.model.submit(task, 0, self.now)
        else:
            must(before == self.facts, "submitting", id, "again changed something")
        self._judge()

    def cancel(self, id: str, *, order: str = "") -> None:
        """A user cancels a task: it ends where no worker has it, and nothing else changes.

        Args:
            order: the reason, for the worker of a running task; empty: a running one is left alone.
        """
        end, task = self.model.ended.get(id), self.model.tasks.get(id)
        if end and abs(end.until - self.now) < 2 * SLACK:
            return  # it is just being forgotten
        answer = self._run("cancel", KEEPING, 0, order, "cancelled by somebody", id, "")
        if task is not None and task.state == "running" and order:
            must(answer == ["cancelling"], "cancelling", id, "answered", answer)
            task.is_cancelled = True
            self._judge()
            return self.ask_orders(task.worker, at_least=id)
        if task is not None and task.state in ("ready", "delayed"):
            must(answer == ["cancelled"], "cancelling", id, "answered", answer)
            self._ended_cancelled(task, "0")
        else:
            expected = task.state if task else end.state if end else ""
            must(answer == [expected], "cancelling", id, "answered", answer, "not", expected)
            must(self.before == self.facts, "cancelling", id, "in vain changed something")
        self._judge()
        return None

    def ask_orders(self, worker: str, *, at_least: str = "") -> None:
        """A worker asks what to cancel: tasks that it has, and that a user cancelled."""
        args = (self.client.known, LOCK_TTL // 1000, worker)
        since, sequence, _, orders = self._run("presence", *args)
        self._saw(self.client, since, sequence)
        told = dict(zip(orders[::3], orders[1::3], strict=True))
        tasks = self.model.tasks
        mine = {
            id: tasks[id].gen
            for id in tasks
            if (tasks[id].worker, tasks[id].state) == (worker, "running") and tasks[id].is_cancelled
        }
        must(told.items() <= mine.items(), worker, "is to cancel", told, "but has", mine)
        must(not at_least or at_least in told, worker, "has no order to cancel", at_least)
        self._judge()

    def _ended_cancelled(self, task: Task, fence: str) -> None:
        """A script ended a task that was cancelled while it ran; what it wrote is its end."""
        value = self.facts.results.get(task.id, "")
        head = f"cancelled|{fence}|"
        must(value.startswith(head), task.id, "was cancelled, but ended", value)
        document = value.removeprefix(head)
        must("cancelled by somebody" in document, task.id, "ended with", document)
        ttls = (self.now + RESULT_TTL, self.now + DEDUP_TTL, self.now)
        self.model.end(task, "cancelled", fence, document, ttls)
        self.hurt.discard(task.id)

    def _freed(self, task: Task) -> None:
        """A worker has it no more, which was no fault of it."""
        self._release(task)
        if task.is_cancelled and task.state == "running":
            self._ended_cancelled(task, "0")
        else:
            task.free(0, self.now)

    def _new(self, priority: str, lock: int, id: str = "") -> Task:
        if not id:
            self._made += 1
            id = f"t{self._made}"
        lines = encode_locks([MUTEXES[lock - 1]]) if lock else ""
        tenant = TENANTS[int(id[1:]) % len(TENANTS)] if id[1:].isdigit() else ""
        about = (id, "m:Task", f"{priority}:small", f"envelope {id}", lines)
        return Task(*about, tenant=tenant)

    def _in(self, delay: int) -> int:
        return self.now + STEP + delay if delay else 0

    def _arguments(self, task: Task, due: int) -> tuple[Any, ...]:
        head = (task.id, task.name, task.stream, due, "")
        return (*head, task.envelope, task.lines, task.terms)

    def _run_of(self, task: Task, due: int, times: int = 1) -> tuple[Any, ...]:
        head = (times, task.name, task.stream, due, "", task.lines, task.terms)
        return (*head, *((task.id, task.envelope) * times))

    def foreign_entry(self, priority: str, id: str) -> None:
        """A foreign hand writes garbage, or (id) a pointer to nothing or a void one."""
        fields = {"id": id, "gen": "1"} if id else {"what": "ever"}
        self.site.client.xadd(f"{PREFIX}tasks:{priority}:small", fields)
        self._look()

    # Workers ---------------------------------------------------------------------------------

    def fetch(self, which: int, free: int, looks: int = 200) -> list[Delivery]:
        """Fetch, and compare with what the order of the streams demands."""
        worker = self.workers[which]
        if worker.is_frozen:
            return []
        waits = (LOCK_TTL // 1000, *WAITS)
        args = (KEEPING, worker.name, "small", free, looks, *waits, worker.known, LONGEST)
        _, since, sequence, _, *rows = self._run("fetch", *args, free, free)
        self._saw(worker, since, sequence)
        whole = deque(map(calls.whole_row, rows))
        got = list(self._replay(worker, whole, free, looks))
        self.hands += got
        self._judge()
        suspects = [item.id for item in got if item.stream.startswith("suspects")]
        if suspects:
            self._run("accuse", worker.name, *suspects)
            self.model.accused.setdefault(worker.name, set()).update(suspects)
        return got

    def lose_fetch(self, which: int, free: int) -> None:
        """A fetch whose reply is lost: its worker gives back what it does not know."""
        worker, lost = self.workers[which], self.fetch(which, free)
        if worker.is_frozen:
            return
        mine = [d for d in self.hands if d.worker == worker.name and d not in lost]
        known = [f"{PREFIX}{d.stream} {d.entry}" for d in mine]
        self._run("disown", KEEPING, worker.name, "small", LOCK_TTL // 1000, 0, *known)
        for delivery in lost:
            task = self._current(delivery)
            if task is not None:
                self._freed(task)
        # A worker that was handed what it has, since its group was destroyed, gives that back too.
        for task in list(self.model.tasks.values()):
            pending = self._pending(task, self.before) if task.worker == worker.name else None
            if pending and pending not in known:
                self._freed(task)
        self.hands = [d for d in self.hands if d not in lost]
        self._judge()

    def settle(
        self, delivery: Delivery, outcome: str, delay: int = 0, *, ttl: bool = True, after: int = 0
    ) -> str:
        """Settle, rightly or not. ttl: keep the result; after: tasks to submit when it is done."""
        task = self._current(delivery)
        if delivery.dying:
            outcome = "dead" if outcome in ("done", "dead", "dying") else "back"
        children = [self._new("normal", 0) for _ in range(after)]
        result_ttl = RESULT_TTL if ttl else 0
        args = (
            *(f"{result_ttl // 1000}|{DEDUP_TTL // 1000}|{HISTORY}", LOCK_TTL // 1000),
            *calls.settle_args(
                (delivery.id, delivery.gen, delivery.fence, delivery.stream, delivery.entry),
                *(outcome, f"{outcome} of {delivery.id}", "text", delay, 1, len(children)),
                *(part for child in children for part in self._arguments(child, 0)),
            ),
        )
        if task is None:
            return self._settle_nothing(delivery, args)
        if outcome == "done" and self._has_lost_lock(task, self.now + STEP):
            self.model.lost += 1
            self._refused("LOST", args)
            return "LOST"
        must(self._run("settle", *args) == "OK", "settle of", delivery.id, "was refused")
        self._settled(task, delivery, outcome, delay, result_ttl, children)
        if outcome != "dying":
            self._bury(delivery)
        self._judge()
        return "OK"

    def _settle_nothing(self, delivery: Delivery, args: tuple[Any, ...]) -> str:
        """A worker that has lost the delivery, or repeats what it did."""
        live, end = self.model.tasks.get(delivery.id), self.model.ended.get(delivery.id)
        if end and end.until < self.now + 2 * SLACK:
            return ""  # it is just being forgotten
        is_repeated = bool(
            (live and live.settled == delivery.fence)
            or (end and end.value.split("|")[1] == delivery.fence)
        )
        self.model.stale += not is_repeated
        self._refused("OK" if is_repeated else "STALE", args)
        return "STALE"

    def _refused(self, expected: str, args: tuple[Any, ...]) -> None:
        answer, before = self._run("settle", *args), self.before
        whole = expected if expected == "OK" else [expected]
        must(answer == whole, "settle of", args[3], "answered", answer, "not", expected)
        before.counters = self.facts.counters  # the only thing that may have changed
        must(before == self.facts, "a", expected, "settle of", args[3], "changed something")
        self._judge()

    def _settled(
        self,
        task: Task,
        delivery: Delivery,
        outcome: str,
        delay: int,
        result_ttl: int,
        children: Sequence[Task],
    ) -> None:
        document = f"{outcome} of {task.id}"
        self._release(task)
        self.model.accused.get(delivery.worker, set()).discard(task.id)
        counted, outcome = outcome, {"crash": "retry", "suspect": "back"}.get(outcome, outcome)
        if task.is_cancelled and task.state == "running" and outcome in ("retry", "back"):
            return self._ended_cancelled(task, delivery.fence)
        if outcome == "dying":
            task.state, task.document, task.died = "dying", document, task.gen
            delivery.dying, delivery.died = True, task.gen
        elif outcome in ("retry", "back"):
            if outcome == "retry":
                task.attempt += 1
                task.errors = min(task.errors + 1, MOST_ERRORS)
            task.count(counted)
            task.settled, task.is_back = task.fence, outcome == "back"
            task.free(self.now + delay, self.now)
        else:
            if delivery.dying:
                row = task.id, delivery.died
                must(row not in self.model.rows, "a second dead letter of", *row)
                self.model.rows.add(row)
            for child in children if outcome == "done" else ():
                self.model.submit(child, 0, self.now)
            ttls = (self.now + result_ttl, self.now + DEDUP_TTL, self.now)
            self.model.end(task, outcome, delivery.fence, document, ttls)
            self.hurt.discard(task.id)

    def checkpoint(self, delivery: Delivery) -> None:
        """A running attempt saves something for the next one."""
        task = self._current(delivery)
        data = f"saved {self.now}"
        answer = self._run("checkpoint", delivery.id, delivery.gen, delivery.fence, data)
        must(answer == ("OK" if task else "STALE"), "checkpoint of", delivery.id, answer)
        if task:
            task.saved = data
        self._judge()

    def beat(self, which: int) -> None:
        """A beat of a worker: it hands back what it has lost."""
        worker = self.workers[which]
        if worker.is_frozen:
            return
        held = {(d.id, d.gen): d for d in self.hands if d.worker == worker.name}
        mine = list(held.values())  # as the watchdog has them: the newest of a task
        leases = [(d.id, d.gen, d.fence, d.stream, d.entry) for d in mine]
        flat = [part for lease in leases for part in lease]
        head = (worker.name, WORKER_TTL // 1000, LOCK_TTL // 1000, "{}", worker.known, "", "")
        since, sequence, *lost = self._run("renew", *head, *flat)
        self._saw(worker, since, sequence)
        must(self.facts.workers[worker.name] == self.now + WORKER_TTL, "registered wrongly")
        for delivery in mine:
            is_lost = not self._renewed(delivery)
            told = f"{delivery.id}/{delivery.gen}" in lost
            must(told == is_lost, delivery.id, "is lost:", is_lost, "but told:", told)
        self._judge()
        for delivery in mine:
            if f"{delivery.id}/{delivery.gen}" in lost:
                self.settle(delivery, "back")
                self._bury(delivery)

    def _renewed(self, delivery: Delivery) -> bool:
        task = self._current(delivery)
        if task is None:
            return False
        self.beats[delivery.stream, delivery.entry] = self.now
        if task.state == "running" and task.mutex:
            if self._has_lost_lock(task, self.now):
                return False
            self.beliefs[task.mutex] = Belief(task.fence, self.now + _ttl(task))
        return True

    def _beat_all(self) -> None:
        for which in range(len(self.workers)):
            self.beat(which)

    def crash(self, which: int) -> None:
        """A worker dies, and another takes its place. What it had may still be settled late."""
        gone = self.workers[which]
        for delivery in [d for d in self.hands if d.worker == gone.name]:
            self._bury(delivery)
        self._replace(which)

    def _replace(self, which: int) -> None:
        name = self.workers[which].name
        self.workers[which] = Process(f"{name[:7]}{int(name[7:]) + 1}")
        self.beat(which)

    def stop(self, which: int) -> None:
        """A worker stops as it should: it hands everything back, and another comes."""
        gone = self.workers[which]
        if gone.is_frozen:
            return
        for delivery in [d for d in self.hands if d.worker == gone.name]:
            self.settle(delivery, "back")
            if delivery in self.hands:
                self._bury(delivery)
        self._run("leave", gone.name, "small")
        self._replace(which)

    def break_lock(self, which: int) -> None:
        """An operator takes a lock from its holder, which is executed again: no death, no retry."""
        name = MUTEXES[which].redis_key
        holder = [t for t in self.model.tasks.values() if t.mutex == name and self._holds(t)]
        answer = self._run("break_lock", name, 2**52, "somebody")
        must(len(answer[1]) >= len(holder), name, "was not taken from", [t.id for t in holder])
        for task in holder:
            if task.state == "running":
                self.model.accused.get(task.worker, set()).discard(task.id)
                task.free(0, self.now)
        self.beliefs.pop(name, None)
        self._judge()

    # Sweeps ----------------------------------------------------------------------------------

    def reclaim(self, which: int) -> None:
        """A sweep: what no worker renewed for a lease is queued again, and counts as a death."""
        worker = self.workers[which]
        if worker.is_frozen:
            return
        lost: list[Task] = []
        is_heard = self.facts.workers.get(worker.name, self.now + 2 * STEP) > self.now + STEP
        for key, rows in self.facts.streams.items() if is_heard else ():
            for entry, id, gen, consumer in rows:
                if not consumer or self.beats.get((key, entry), 0) + LEASE > self.now:
                    continue
                self.site.let_idle(PREFIX + key, consumer, entry)
                task = self.model.tasks.get(id)
                if task is not None and self.facts.records[id]["gen"] == gen:
                    lost.append(task)
        args = (KEEPING, worker.name, "small", LEASE // 1000, 1000, CRASH_LIMIT, "", *["0-0"] * 12)
        answer = self._run("reclaim", *args)
        must(answer[0] == len(lost), "reclaimed", answer[0], "of", len(lost))
        for task in lost:
            self._lost_its_worker(task)
        self._judge()

    def _lost_its_worker(self, task: Task) -> None:
        if task.state == "running" and task.is_cancelled:
            return self._ended_cancelled(task, "0")
        if task.state == "running":
            task.lose_worker(self.model.accused.get(task.worker, ()), CRASH_LIMIT)
        task.free(0, self.now)

    def mend(self) -> None:
        """A walk over all records: what is in no place is put back, and nothing else changes."""
        begun = {id for id, task in self.model.tasks.items() if self._is_adrift(task)}
        for _ in range(100):
            before = {id for id, task in self.model.tasks.items() if self._is_adrift(task)}
            mended, more = self._run("mend", KEEPING, 1000, CRASH_LIMIT, 0, LEASE)
            moved = {id for id in self.model.tasks if self._has_moved(id)}
            must(moved <= before, "mended", moved - before, "which had their place")
            must(mended == len(moved), "mended", mended, "of", moved)
            for id in moved:
                self._mended(self.model.tasks[id])
            self._judge()
            if not more:
                break
        tasks = self.model.tasks
        left = {id for id in begun if id in tasks and self._is_adrift(tasks[id])}
        must(not left, left, "are in no place after a walk")

    def _mended(self, task: Task) -> None:
        if task.state not in ("delayed", "ready"):
            self._lost_its_worker(task)
        self.hurt.discard(task.id)

    def _has_moved(self, id: str) -> bool:
        before, after = self.before.records.get(id, {}), self.facts.records.get(id, {})
        due = self.before.delayed.get(id), self.facts.delayed.get(id)
        return before.get("gen") != after.get("gen") or due[0] != due[1]

    def _is_adrift(self, task: Task) -> bool:
        """Whether a task is in no place where a worker would find it."""
        record = self.facts.records[task.id]
        entries = [e for e in self.facts.entries().get(task.id, ()) if e[1] == record["gen"]]
        if task.state == "delayed" or (task.state == "ready" and record["state"] == "waiting"):
            return task.id not in self.facts.delayed
        if task.state == "ready" or (task.state == "dying" and entries):
            return not entries
        if task.state == "dying" and task.id in self.facts.delayed:
            return False
        if any(reader for _, _, reader in entries):
            return False
        is_alive = self.facts.workers.get(record.get("owner", ""), 0) > self.now + STEP
        return not is_alive or self._is_missed(record)

    def _is_missed(self, record: dict[str, str]) -> bool:
        """Whether its living worker has not beaten for it for a lease since it was missed first."""
        missed = int(record.get("missed", "0"))
        if missed <= int(record.get("started", "0")):
            return False
        return self.now + STEP - max(missed, int(record.get("kept", "0"))) >= LEASE

    def promote(self) -> None:
        """A tick, by a worker that helps out."""
        for _ in range(20):
            _, next_in, allowed = self._run("promote", KEEPING, "", 500, 0, *WAITS, "")
            must(allowed == 1, "a promotion was not allowed")
            self._promoted(is_more=next_in == 0)
            self._judge()
            if next_in != 0:
                return None
        raise Violation("ticks find something due again and again")

    def _promoted(self, *, is_more: bool) -> None:
        for id, due in self.before.delayed.items():
            task = self.model.tasks.get(id)
            if is_more and self.facts.delayed.get(id) == due:
                continue  # left for the next tick, as an earlier check is due again
            if task is not None and task.due and due <= self.now:
                task.due = 0
                task.state = "dying" if task.state == "dying" else "ready"

    # Others ----------------------------------------------------------------------------------

    def advance(self, pause: int) -> None:
        """Time goes by: also for what has a TTL."""
        self.now += pause
        self.site.age(pause // 1000)
        self._look()

    def delete_stream(self, key: str, *, only_group: bool) -> None:
        """A foreign hand deletes a stream, or its consumer group."""
        ids = {id for _, id, _, _ in self.facts.streams.get(key, ())}
        self.hurt |= ids & set(self.model.tasks)
        if only_group and key in self.facts.grouped:
            self.site.client.xgroup_destroy(PREFIX + key, "workers")
        elif not only_group:
            self.site.client.delete(PREFIX + key)
        self._look()

    def delete_delayed(self) -> None:
        """A foreign hand deletes the set of what is due."""
        self.hurt |= set(self.facts.delayed) & set(self.model.tasks)
        self.site.client.delete(f"{PREFIX}tasks:delayed")
        self._look()

    def flush(self) -> None:
        """Redis lost everything."""
        self.site.client.flushdb()
        self.model, self.hurt = Model(), set()
        self.late, self.hands = [*self.late, *self.hands][-MOST_LATE:], []
        self._look()

    # Health ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Time passes in which a fleet lives: then the doctor finds nothing."""
        for delivery in self.hands:  # as old as can be, so that beats are seen to renew them
            if delivery.stream in self.facts.grouped:
                self.site.let_idle(PREFIX + delivery.stream, delivery.worker, delivery.entry)
        for _ in range(4):
            self.advance(LEASE // 3)
            self._beat_all()
        for _ in range(2):
            self.reclaim(0)
            self.mend()
            self.promote()
            self.fetch(0, 100)
        self._beat_all()
        left = {id for id in self.hurt if self._is_adrift(self.model.tasks[id])}
        must(not left, left, "are in no place although a fleet lives")
        found = list(findings(self.site, self.now, LEASE))
        must(not found, "the doctor finds:", found)

    def finish(self) -> None:
        """Let everything end: no task is left, and no key but the structure."""
        for worker in self.workers:
            worker.is_frozen = False
        for which in range(len(self.workers)):
            self.crash(which)
        for _ in range(60):
            self.heal()
            for delivery in list(self.hands):
                self.settle(delivery, "done")
            if not self.model.tasks:
                break
        must(not self.model.tasks, "never ended:", list(self.model.tasks))
        self.late.clear()
        for worker in self.workers:
            self._run("leave", worker.name, "small")
        for _ in range(5):  # until the dead are forgotten
            self.advance(LEASE)
            self.promote()
            self.reclaim(0)
        self.advance(2 * 86_400 * SECOND)
        self._finish_keys()

    def _finish_keys(self) -> None:
        must(not any(self.facts.streams.values()), "entries are left:", self.facts.streams)
        must(not self.facts.workers, "workers are left:", self.facts.workers)
        for key in self.site.client.scan_iter(count=1000):
            name = str(key).removeprefix(PREFIX)
            must(name in STRUCTURE, "key", name, "is left")

    # What the steps are made of ------------------------------------------------------------------

    def _look(self) -> None:
        super()._look()
        self._judge()

    def _current(self, delivery: Delivery) -> Task | None:
        """The task that is with this delivery, if it is."""
        task = self.model.tasks.get(delivery.id)
        if task is None or (task.gen, task.fence) != (delivery.gen, delivery.fence):
            return None
        return task

    def _bury(self, delivery: Delivery) -> None:
        if delivery in self.hands:
            self.hands.remove(delivery)
        if delivery not in self.late:
            self.late = [*self.late, delivery][-MOST_LATE:]

    def _pending(self, task: Task, facts: Facts) -> str | None:
        for key, rows in facts.streams.items():
            for entry, id, gen, consumer in rows:
                if (id, gen, consumer) == (task.id, task.gen, task.worker):
                    return f"{PREFIX}{key} {entry}"
        return None

    def _holds(self, task: Task) -> bool:
        belief = self.beliefs.get(task.mutex)
        return belief is not None and belief.fence == task.fence and belief.until > self.now + STEP

    def _has_lost_lock(self, task: Task, now: int) -> bool:
        belief = self.beliefs.get(task.mutex)
        return bool(task.mutex) and not (
            belief and belief.fence == task.fence and belief.until > now
        )

    def _release(self, task: Task) -> None:
        if task.mutex in self.beliefs and self.beliefs[task.mutex].fence == task.fence:
            del self.beliefs[task.mutex]

    def _saw(self, process: Process, since: str, sequence: str) -> None:
        """A process learns the epoch: a new one if it knows of later data than Redis had."""
        before, known = self.before.epoch, int(self.before.epoch.get("seq", "0"))
        if not before or known < process.seen:
            must(int(since) > self._top_epoch, "epoch", since, "is not new")
            must(int(sequence) > process.seen, "sequence", sequence, "is not higher")
            self._top_epoch = int(since)
            self.model.withheld = self.now + (LOCK_TTL if process.seen else PROBATION)
            if not process.seen:
                self.beliefs.clear()  # processes that know better report within this time
        else:
            must(since == before["since"], "the epoch changed, but nothing was lost")
            if before.get("first") == "1" and 0 < process.since < int(since):
                self.model.withheld = self.now + LOCK_TTL
            must(int(sequence) == known, "sequence", sequence, "after", known)
        process.seen = max(process.seen, int(sequence))
        process.since = max(process.since, int(since))

    def _replay(
        self, worker: Process, rows: deque[list[str]], free: int, looks: int
    ) -> Iterator[Delivery]:
        """What the entries in their order must have come to; the deliveries that were made."""
        budget = Budget(free, free, free)
        for key in STREAMS:
            entries = [entry for entry in self.before.streams.get(key, ()) if not entry[3]]
            budget.turn_to(key, len(entries))
            for _, id, gen, _ in entries:
                if budget.left <= 0 or looks <= 0:
                    continue
                looks -= 1
                budget.read += 1
                yield from self._met(worker, id, gen, rows, budget)
        must(not rows, "handed over out of order:", [row[calls.ID] for row in rows])

    def _met(
        self, worker: Process, id: str, gen: str, rows: deque[list[str]], budget: Budget
    ) -> Iterator[Delivery]:
        """What a pointer that a fetch met must have come to."""
        self.model.quarantined += not id
        task = self.model.tasks.get(id)
        if task is None or self._is_void(id, gen):
            return
        if task.is_cancelled and task.state == "ready":
            self._ended_cancelled(task, "0")
            return
        if task.mutex and task.state != "dying" and not (rows and rows[0][calls.ID] == id):
            self._judge_refusal(task)  # that it is parked is judged with its place
            return
        must(rows and rows[0][calls.ID] == id, id, "was not handed over in its turn")
        budget.take(self.before.records[id])
        yield self._handed(worker, task, rows.popleft())

    def _is_void(self, id: str, gen: str) -> bool:
        record = self.before.records.get(id, {})
        if record.get("gen") != gen or record["state"] not in ("queued", "dying"):
            return True
        return record["state"] == "dying" and record.get("owner", "") != ""

    def _handed(self, worker: Process, task: Task, row: list[str]) -> Delivery:
        id, is_dying = task.id, task.state == "dying"
        fence = row[calls.FENCE]
        must(int(fence) > self._top_fence, "fence", fence, "is not the greatest")
        self._top_fence = int(fence)
        meant = {
            calls.STATE: "dying" if is_dying else "running",
            calls.ATTEMPT: str(task.attempt),
            calls.DEATHS: str(task.deaths),
            calls.CRASHES: str(task.crashes),
            calls.SUSPECT: str(task.suspect),
            calls.JUDGE: str(int(task.is_to_judge)),
            calls.ENVELOPE: task.envelope,
            calls.SAVED: task.saved,
        }
        if is_dying:
            meant |= {calls.DOCUMENT: task.document or "", calls.REASON: task.reason}
            meant[calls.DIED] = task.died
        said = {at: row[at] for at in meant}
        must(said == meant, id, "came with", said, "not", meant)
        if not is_dying:
            task.state = "running"
            self._grant(task, fence)
        task.worker, task.gen, task.fence = worker.name, row[calls.GEN], fence
        self.beats[row[calls.STREAM], row[calls.ENTRY]] = self.now
        place = (row[calls.STREAM], row[calls.ENTRY])
        return Delivery(id, task.gen, fence, worker.name, *place, is_dying, task.died)

    def _judge_refusal(self, task: Task) -> None:
        """A task holds it, or stood there before, or may not know yet that Redis lost its data."""
        belief, records = self.beliefs.get(task.mutex), self.before.records
        is_held = belief is not None and belief.until > self.now
        rivals = [t for t in self.model.tasks.values() if t.mutex == task.mutex and t is not task]
        stand = [other.id for other in rivals if records.get(other.id, {}).get("places")]
        has_reason = is_held or self.now < self.model.withheld or stand
        must(has_reason, task.id, "was refused", task.mutex, "which no task has")

    def _grant(self, task: Task, fence: str) -> None:
        if not task.mutex:
            return
        belief = self.beliefs.get(task.mutex)
        is_free = belief is None or belief.until <= self.now
        must(is_free, task.id, "got", task.mutex, "which another believes to hold")
        must(self.now >= self.model.withheld, task.id, "got", task.mutex, "while withheld")
        self.beliefs[task.mutex] = Belief(fence, self.now + _ttl(task))

    # Judgement ----------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_records()
        self._judge_ends()
        self._judge_parts()
        self._judge_rest()
        self._keep_up()

    def _judge_records(self) -> None:
        facts, entries = self.facts, self.facts.entries()
        meant, found = set(self.model.tasks), set(facts.records)
        must(meant == found, "records", found - meant, "too many", meant - found, "missing")
        for id, task in self.model.tasks.items():
            record = facts.records[id]
            counts = (record.get("attempt", "0"), record.get("deaths", "0"))
            must(counts == (str(task.attempt), str(task.deaths)), id, "has counts", counts)
            said = (record["stream"], record["name"])
            must(said == (task.stream, task.name), id, "is now", said)
            current = [place for place in entries.get(id, ()) if place[1] == record["gen"]]
            if id in self.hurt:
                must(len(current) + (id in facts.delayed) <= 2, id, "is in", current)
            else:
                self._judge_place(task, record, current)
        orphans = set(facts.delayed) - found
        must(not orphans, "due without a record:", orphans)

    def _judge_place(
        self, task: Task, record: dict[str, str], entries: Sequence[tuple[str, str, str]]
    ) -> None:
        state, due = record["state"], self.facts.delayed.get(task.id)
        where = f"{task.id}, {task.state}, is {state} at {entries}, due {due}:"
        unread = [key for key, _, consumer in entries if not consumer]
        pending = [consumer for _, _, consumer in entries if consumer]
        if task.state == "running" or (task.state == "dying" and task.worker):
            must(state == task.state and not unread and due is None, where, "not with its worker")
            must(pending == [task.worker], where, "not with", task.worker)
            said = (record["gen"], record["fence"], record["owner"])
            must(said == (task.gen, task.fence, task.worker), where, "has as owner", said)
            return
        must(not pending, where, "with a worker")
        must(int(record["gen"]) > int(task.gen), where, "in the generation of the last delivery")
        if task.due:
            name = "dying" if task.state == "dying" else "waiting" if task.is_back else "delayed"
            must((state, due) == (name, task.due) and not unread, where, "not due", task.due)
        elif state == "waiting":
            must(task.mutex and task.state == "ready" and due and not unread, where, "waits")
        else:
            must(state == ("dying" if task.state == "dying" else "queued"), where, "is not queued")
            kinds = ("suspects",) if task.suspect else ("tasks", "woken")
            kinds = ("burials",) if state == "dying" else kinds
            own = [f"{kind}:{task.stream}" for kind in kinds]
            aged = ("woken:realtime:small",) if task.mutex else ()
            must(len(unread) == 1 and unread[0] in (*own, *aged), where, "not in its stream")
            must(due is None or task.mutex, where, "queued and due")

    def _judge_ends(self) -> None:
        """Every end is remembered for as long as it must be, and no longer."""
        found = self.facts.results
        for id, end in list(self.model.ended.items()):
            if id in found:
                must(found[id] == end.value, id, "ended as", found[id], "not", end.value)
                must(end.until >= self.now - SLACK, id, "is remembered for too long")
            else:
                must(end.until <= self.now + SLACK, id, "is forgotten too early")
                del self.model.ended[id]
        extra = set(found) - set(self.model.ended)
        must(not extra, "ends of tasks that did not end:", extra)
        self._judge_history(found)

    def _judge_history(self, found: Iterable[str]) -> None:
        """The history has every end, once."""
        lists = [f"{PREFIX}ended:{name}" for name in ("done", "cancelled", "dead", "expired")]
        lines = [line for key in lists for line in self.site.client.lrange(key, 0, -1)]
        rows = [line.partition("\n")[0].split("\t") for line in lines]
        # An id may live again; its lives have different tickets. Short lines begin with the id.
        ends = [(row[0], row[1]) if len(row) == 3 else (row[1], row[5]) for row in rows]
        must(len(set(ends)) == len(ends), "an end is listed twice:", ends)
        missing = set(found) - {id for id, _ in ends}
        must(not missing, "not in the history:", missing)

    def _judge_parts(self) -> None:
        """What belongs to a record is there, and nothing of records that are gone."""
        parts: dict[str, int] = {}
        for id, task in self.model.tasks.items():
            parts |= {f"h:{id}": task.errors} if task.errors else {}
            parts |= {f"e:{id}": 1} if task.document is not None else {}
            parts |= {f"c:{id}": 1} if task.saved else {}
        must(parts == self.facts.parts, "parts are", self.facts.parts, "not", parts)

    def _judge_rest(self) -> None:
        counted = [int(self.facts.counters.get(f"settle:{w}", "0")) for w in ("stale", "lost")]
        meant = [self.model.stale, self.model.lost]
        must(counted == meant, "stale and lost settles are", counted, "not", meant)
        active = Counter(f"{task.stream}|{task.name}" for task in self.model.tasks.values())
        must(active == self.facts.active, "counted are", self.facts.active, "not", dict(active))
        tenants = Counter(task.tenant for task in self.model.tasks.values() if task.tenant)
        must(tenants == self.facts.tenants, "tenants have", self.facts.tenants, "not", tenants)
        must(self.facts.quarantined == self.model.quarantined, "the quarantine is not as it was")


def _ttl(task: Task) -> int:
    return next(lock.ttl_ms for lock in MUTEXES if lock.redis_key == task.mutex) * 1000

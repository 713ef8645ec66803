"""Drives the lock scripts on a real server under a clock of its own, and judges every step.

`LockMachine` has one method for each thing that can happen. Each runs scripts (`site.Site`),
passes the answers to `lock_model.Model`, and compares what Redis then contains with what must
hold; a difference is a `Violation`:

- no two incompatible holders, no limit exceeded, no token burnt by an attempt that never started;
- an admission passes by no task of a lower rank; a refusal has a reason; a woken task can run;
- a settle counts once; a stale or lost one changes nothing;
- a waiting task that could run has a check that is due; after all due checks no task could run;
- every record is in one place, and queues agree with records;
- in the end every task ends, and no key is left.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from calls import settle_args, whole_row
from stores.machines.lock_model import CLASS_US, CLASSES, Lock, Model, Refusal, Waiter, parse
from stores.machines.machine import STEP, STREAMS, Budget, Machine, Violation, must
from stores.machines.site import PREFIX, Facts

from nonet.tasks.locks import (
    BaseLock,
    ConcurrencyLimiter,
    ExclusiveRWLock,
    MutexLock,
    RateLimiter,
    SharedRWLock,
    encode_locks,
)

KEEPING = "60000|60000|0"
LOCK_TTL_MS = 30_000
HOLD_AGING_US = 5_000_000  # a hold is of age when it has asked for so long
LEASE = 45_000_000
WOKEN = 4 * 10**15
HOLD_ASKS = 5_000_000
WINDOWS = {"1": 8.0, "2": 20.0}
# Those that tasks choose from; two objects of a kind, so that they meet often.
CHOICES: tuple[BaseLock, ...] = (
    MutexLock("job", 1),
    MutexLock("job", 2, ttl_ms=10_000),
    MutexLock("job", 3),
    ExclusiveRWLock("job", 1),
    ExclusiveRWLock("job", 2, ttl_ms=10_000),
    SharedRWLock("job", 1),
    SharedRWLock("job", 1, ttl_ms=10_000),
    SharedRWLock("job", 2),
    ConcurrencyLimiter("job", 1, limit=1),
    ConcurrencyLimiter("job", 1, limit=2, ttl_ms=10_000),
    ConcurrencyLimiter("job", 2),
    RateLimiter("job", 1, limit=2, window_seconds=WINDOWS["1"]),
    RateLimiter("job", 1, limit=3, window_seconds=WINDOWS["1"], n_items=2),
    RateLimiter("job", 2, limit=2, window_seconds=WINDOWS["2"]),
)
# What the configuration may say: field of HASH limits, and its values (None: nothing).
SETTINGS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("C||job|1|", (None, "1", "2", "3", "off")),
    ("C||job|default|", (None, "1", "3")),
    ("C|v|job|1|", (None, "1", "2")),
    ("C||task|A|", (None, "1", "2")),
    ("L||job|1|", (None, "1|8000", "3|8000", "off")),
    ("L|v|job|2|", (None, "1|20000")),
    ("L||task|A|", (None, "2|8000")),
)


@dataclass(slots=True)
class Job:
    """A task, or a hold, as its submitter knows it."""

    id: str
    lines: str
    locks: tuple[Lock, ...]
    ticket: int
    stream: str = "hold"
    ended: bool = False
    settled: str = ""  # fence of the last settle
    seen: int = 0  # a hold: when it asked last
    fence: str = ""  # a hold: held with

    @property
    def held(self) -> str:
        """By what the model knows its locks: code that still runs shares a fence with its task."""
        return f"{self.fence}~" if "~" in self.id else self.fence


@dataclass(slots=True)
class Delivery:
    """What a worker was handed."""

    job: Job
    gen: str
    fence: str
    worker: str
    stream_key: str
    entry: str
    dying: bool
    renewed: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run goes: pauses of waiting, in µs."""

    first: int = 30_000_000
    longest: int = 300_000_000
    aging: int = 60_000_000


@dataclass
class LockMachine(Machine):
    """One run: an emptied database, its model, and the steps."""

    pace: Pace = Pace()
    model: Model = field(default_factory=lambda: Model(LOCK_TTL_MS * 1000))
    jobs: dict[str, Job] = field(default_factory=dict)
    holds: dict[str, Job] = field(default_factory=dict)
    live: list[Delivery] = field(default_factory=list)
    late: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._workers = ["small-a1", "small-b1", "small-c1"]
        self._gone: list[str] = []
        self._made = self._fence = 0

    def _begin(self) -> None:
        """Nothing is left; one small worker beats on, so that woken tasks keep their places."""
        super()._begin()
        self.site.client.hset(
            f"{PREFIX}epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )
        self.site.client.zadd(f"{PREFIX}workers", {"small-beats": 2**52})

    # Steps -----------------------------------------------------------------------------------

    def submit(
        self, priority: str, locks: Sequence[BaseLock], task: str, vo: str, delay: int = 0
    ) -> None:
        """Submit a task, and again: the same id is the same task."""
        self._made += 1
        id, stream = f"t{self._made}", f"{priority}:small"
        lines = encode_locks(locks, task=task, vo=vo)
        due = self.now + delay if delay else 0
        args = (1, f"m:{task}", stream, due, "", lines, "", id, "e")
        parsed = parse(lines, f"m:{task}", LOCK_TTL_MS)
        answer = self._run("submit", KEEPING, *args)
        if self.model.is_impossible(parsed):
            must(answer[:2] == ["IMPOSSIBLE", id], id, "was not refused:", answer)
            self._judge()
            return
        must(answer == 1, id, "was not made:", answer)
        self.jobs[id] = Job(id, lines, parsed, self.now, stream)
        self._judge()
        if self._made % 5 == 0:
            self._unchanged("submit", [0], KEEPING, *args)

    def fetch(self, worker: int, free: int, looks: int) -> list[Delivery]:
        """Fetch, and compare with what the rules say for each entry in its order."""
        name = self._workers[worker]
        args = (name, "small", free, looks, LOCK_TTL_MS, *self._waits(), 0, 4096)
        _, _, _, _, *rows = self._run("fetch", KEEPING, *args, free, free)
        got = self._replay(name, rows, free, looks)
        self.live += got
        self._judge()
        return got

    def lose_fetch(self, worker: int, free: int) -> None:
        """A fetch whose reply is lost: its worker gives back what it does not know."""
        lost = self.fetch(worker, free, 200)
        name = self._workers[worker]
        mine = [d for d in self.live if d.worker == name and self._is_current(d, self.facts)]
        known = [f"{PREFIX}{d.stream_key} {d.entry}" for d in mine if d not in lost]
        given = len(self._run("disown", KEEPING, name, "small", LOCK_TTL_MS, 0, *known))
        must(given == len(lost), "disowned", given, "of", len(lost))
        for delivery in lost:
            self.model.release(delivery.fence, started=False)
            self._bury(delivery)
        self._judge()

    def settle(
        self,
        delivery: Delivery,
        outcome: str,
        *,
        started: bool = True,
        still_runs: bool = False,
        delay: int = 0,
    ) -> str:
        """Settle, rightly or not; a dying delivery can only end or go back."""
        job, fence = delivery.job, delivery.fence
        if delivery.dying:
            outcome = {"done": "dead", "retry": "back"}.get(outcome, outcome)
        is_current = self._is_current(delivery, self.facts)
        lost = is_current and outcome == "done" and self.model.is_lost(fence, self.now + STEP)
        still_runs = still_runs and outcome != "done"
        begun = 2 if still_runs else int(started)
        of = (job.id, delivery.gen, fence, delivery.stream_key, delivery.entry)
        args = (*(KEEPING, LOCK_TTL_MS), *settle_args(of, outcome, "", "", delay, begun, 0))
        if not is_current or lost:
            again = self.jobs.get(job.id) is job and job.settled == fence
            expected = "LOST" if lost else "OK" if again else "STALE"
            answer = expected if expected == "OK" else [expected]
            self._unchanged("settle", answer, *args)
            return expected
        answer = self._run("settle", *args)
        must(answer == "OK", "settle", outcome, "of", job.id, "answered", answer)
        left = self.model.taken.get(fence, ())
        self.model.release(fence, started=started or still_runs)
        if still_runs:
            self._leave(job, fence, [item.lock for item in left if item.expiry > self.now])
        if outcome == "dying":
            delivery.dying = True
        else:
            job.settled, job.ended = fence, outcome in ("done", "dead")
            self._bury(delivery)
        self._judge()
        return "OK"

    def _leave(self, job: Job, fence: str, held: Sequence[Lock]) -> None:
        """Its code still runs, and keeps the structural locks that it has."""
        locks = tuple(lock for lock in held if not lock.limits)
        if locks:
            hold = Job(f"{job.id}~{fence}", "", locks, self.now, fence=fence, seen=self.now)
            self.holds[hold.id] = hold
            self.model.take(hold.held, locks, self.now)

    def settle_late(self, delivery: Delivery, outcome: str) -> None:
        """A worker that seems dead settles after all, or repeats what it did."""
        if self._is_current(delivery, self.facts):
            self.live.append(delivery)
            self.late.remove(delivery)
        self.settle(delivery, outcome)

    def renew(self, worker: int) -> None:
        """A beat of a worker, with all its deliveries: it learns which are lost."""
        name = self._workers[worker]
        mine = [d for d in self.live if d.worker == name]
        leases = [(d.job.id, d.gen, d.fence, d.stream_key, d.entry) for d in mine]
        flat = [part for lease in leases for part in lease]
        lost = set(self._run("renew", name, 3_600_000, LOCK_TTL_MS, "{}", 0, "", "", *flat)[2:])
        for delivery in mine:
            kept = self._is_current(delivery, self.before)
            if kept:
                delivery.renewed = self.now
            if kept and not delivery.dying:
                kept = self._renewed(delivery.fence, delivery.job)
            told = f"{delivery.job.id}/{delivery.gen}" not in lost
            must(told == kept, delivery.job.id, "kept" if kept else "lost", "but told otherwise")
        self._judge()

    def crash(self, worker: int) -> None:
        """A worker is gone; another takes its place. What it held may still be settled late."""
        name = self._workers[worker]
        for delivery in [d for d in self.live if d.worker == name]:
            self._bury(delivery)
        self._gone.append(name)
        self._workers[worker] = f"{name[:7]}{int(name[7:]) + 1}"

    def take_over(self, worker: int) -> None:
        """A worker is gone, its supervisor knows: what it held and its locks are free at once."""
        name = self._workers[worker]
        held = [d for d in self.live if d.worker == name and self._is_current(d, self.facts)]
        self.crash(worker)
        args = (KEEPING, name, "small", 100, 1000, LOCK_TTL_MS, "supervisor")
        more, *ids = self._run("take_over", *args)
        must((more, sorted(ids)) == (0, sorted(d.job.id for d in held)), "took over", more, ids)
        for delivery in held:
            self.model.release(delivery.fence, started=True)
        self._judge()

    def reclaim(self, worker: int) -> None:
        """A sweep: what no worker renewed for a lease is queued again; its locks stay."""
        idle = [
            d
            for d in {d.entry + d.stream_key: d for d in (*self.late, *self.live)}.values()
            if d.renewed + LEASE <= self.now and self._is_current(d, self.facts)
        ]
        for d in idle:
            self.site.let_idle(PREFIX + d.stream_key, d.worker, d.entry)
        # A worker must have sent a beat before it takes anything.
        args = (KEEPING, "small-beats", "small", 1_800_000, 100, 1000, "", *["0-0"] * 12)
        count = self._run("reclaim", *args)[0]
        must(count == len(idle), "reclaimed", count, "of", [d.job.id for d in idle])
        for d in idle:
            if d in self.live:
                self._bury(d)
        self._judge()

    def readmit(self, delivery: Delivery, locks: Sequence[BaseLock]) -> None:
        """The worker computed other locks than the submitter; refused, it hands the task back."""
        job = delivery.job
        if delivery.dying:
            return
        name = self.facts.records.get(job.id, {}).get("name", "m:B")
        lines = encode_locks(locks, task=name[2:])
        is_current = self._is_current(delivery, self.facts)
        args = (job.id, delivery.gen, delivery.fence, lines, LOCK_TTL_MS, 0)
        if not is_current:
            return self._unchanged("admit", ["STALE"], *args)
        answer = self._run("admit", *args)
        self.model.release(delivery.fence, started=False)
        job.lines, job.locks = lines, parse(lines, name, LOCK_TTL_MS)
        rank = job.ticket + CLASSES[job.stream.partition(":")[0]] * CLASS_US
        refusal = self._refusal(Waiter(job.id, rank, job.locks), self.before)
        told = answer[0] == "OK"
        must(told == (refusal is None), "admit of", job.id, "answered", answer, "not", refusal)
        if refusal:
            self._judge()
            self.settle(delivery, "back", started=False)
        else:
            marks = self.model.marks(job.locks).rstrip("-")
            must(answer[1].rstrip("-") == marks, job.id, "marks", answer[1], "not", marks)
            self.model.take(delivery.fence, job.locks, self.now)
            self._judge()

    def ask_hold(self, id: str, locks: Sequence[BaseLock], *, wait: bool) -> None:
        """Ask for a hold, for the first time or again."""
        lines = encode_locks(locks)
        old = self.holds.get(id)
        if old and old.fence and self.model.is_lost(old.held, self.now + STEP):
            self.model.release(self.holds.pop(id).held, started=True)
            old = None  # a program that let it run out comes last
        job = old or Job(id, lines, parse(lines, "", LOCK_TTL_MS), self.now + STEP)
        args = ("hold", id, job.lines, LOCK_TTL_MS, "who", "me" if wait else "", 0)
        if job.fence:
            return self._unchanged(args[0], ["OK", job.fence, "1", "1"], *args[1:])
        answer, detail, *_ = self._run(*args)
        refusal = self._refusal(Waiter(id, job.ticket, job.locks), self.before)
        expected = (
            "IMPOSSIBLE" if refusal and refusal.impossible else "REFUSED" if refusal else "OK"
        )
        must(answer == expected, "hold", id, "answered", answer, detail, "not", refusal)
        if expected == "IMPOSSIBLE":
            self.holds.pop(id, None)
        elif expected == "OK" or wait or old:
            self.holds[id] = job
            job.seen = self.now if expected == "OK" or wait else job.seen
        if expected == "OK":
            self._grant(job, detail)
            job.fence = detail
        self._judge()

    def unhold(self, id: str) -> None:
        """Release a hold, or stop asking."""
        self._run("unhold", id, LOCK_TTL_MS)
        job = self.holds.pop(id)
        if job.fence:
            self.model.release(job.held, started=True)
        self._judge()

    def renew_hold(self, id: str) -> None:
        """A beat of the program that holds."""
        job = self.holds[id]
        if not job.fence:
            return
        lost = self._run("renew", "", 0, LOCK_TTL_MS, "", 0, "", "", id, "0", job.fence, "", "")[2:]
        kept = id in self.before.records and self._renewed(job.held, job)
        must(lost == ([] if kept else [f"{id}/0"]), "hold", id, "kept:", kept, "but told", lost)
        self._judge()

    def advance(self, pause: int) -> None:
        """Time passes; whatever could run now must have a check that is due."""
        self.now += pause
        self.before = self.facts
        self._judge()

    def advance_to_event(self, which: int, by: int) -> None:
        """To `by` µs after one of the next times at which something is due or ends."""
        times = [*self.model.next_end(self.now), *self.facts.watch.values()]
        times = sorted({at + by for at in (*times, *self.facts.delayed.values())})
        times = [at for at in times if at > self.now]
        if times:
            self.advance(times[min(which, len(times) - 1)] - self.now)

    def promote(self, batch: int = 500) -> int:
        """One tick. Returns the µs to the next, -1 for none."""
        _, next_in, allowed = self._run("promote", KEEPING, "", batch, 0, *self._waits())
        must(allowed == 1, "promotion was not allowed")
        for id in [id for id in self.holds if id not in self.facts.records]:
            job, old = self.holds.pop(id), self.before.records[id]
            is_late = old["state"] == "queued" and self.before.delayed[id] <= self.now
            must(is_late or self.now - job.seen > 2 * HOLD_ASKS, id, "was forgotten too early")
        self._judge()
        self._judge_aging()
        return int(next_in)

    def settle_down(self, batch: int = 500) -> None:
        """Tick until nothing is due: then no waiting task could run."""
        for _ in range(200):
            if self.promote(batch) != 0:
                break
        else:
            raise Violation("ticks find something due again and again")
        standing = self._waiters(self.facts)
        for waiter in standing:
            record = self.facts.records[waiter.id]
            if record["state"] != "waiting":
                continue
            refusal = self.model.refusal(waiter, standing, self.now)
            must(refusal is not None, waiter.id, "waits, but nothing refuses it")

    def set_limit(self, name: str, value: str | None) -> None:
        """Change the configuration: it wakes the tasks that wait for a limiter."""
        with self.site.client.pipeline() as pipe:
            if value is None:
                pipe.hdel(f"{PREFIX}limits", name)
                self.model.limits.pop(name, None)
            else:
                pipe.hset(f"{PREFIX}limits", name, value)
                self.model.limits[name] = value
            for lock in self.facts.watch:
                if lock.startswith("limiter:"):
                    pipe.zadd(f"{PREFIX}watch", {lock: self.now}, xx=True)
            pipe.execute()
        self._look()
        self._judge()

    def flush(self) -> None:
        """Redis lost everything."""
        self._begin()
        self.late = (self.late + self.live)[-12:]
        self.live = []
        self.model = Model(LOCK_TTL_MS * 1000)
        self.jobs.clear()
        self.holds.clear()
        self._look()

    def finish(self) -> None:
        """Let everything end: no task is left, no key, and none starved."""
        for name, _ in SETTINGS:
            if name in self.model.limits:
                self.set_limit(name, None)
        for id in list(self.holds):
            self.unhold(id)
        for worker in range(len(self._workers)):
            self.crash(worker)
        self.advance(LEASE)
        self.reclaim(0)
        for _ in range(40 + 10 * len(self.jobs)):
            self.settle_down()
            if all(job.ended for job in self.jobs.values()):
                break
            if not self._finish_some():
                next_in = self.promote()
                must(next_in >= 0, "nothing is ever due again, but tasks are left")
                self.advance(next_in)
        left = [job.id for job in self.jobs.values() if not job.ended]
        must(not left, left, "never ended")
        self._finish_keys()

    # What the steps are made of -----------------------------------------------------------------

    def _unchanged(self, name: str, expected: Any, *args: Any) -> None:
        answer = self._run(name, *args)
        must(answer == expected, name, args[0], "answered", answer, "not", expected)
        self.before.counters = self.facts.counters  # that of stale settles
        must(self.before == self.facts, name, args[0], answer, "changed something")

    def _waits(self) -> tuple[int, int, int]:
        return self.pace.first, self.pace.longest, self.pace.aging

    def _is_current(self, delivery: Delivery, facts: Facts) -> bool:
        record = facts.records.get(delivery.job.id, {})
        return (record.get("gen"), record.get("fence")) == (delivery.gen, delivery.fence)

    def _bury(self, delivery: Delivery) -> None:
        self.live.remove(delivery)
        lost = [d for d in self.late if not self._is_current(d, self.facts)][:-12]
        self.late = [d for d in self.late if d not in lost] + [delivery]

    def _renewed(self, fence: str, job: Job) -> bool:
        if self.model.is_lost(fence, self.now):
            return False
        self.model.renew(fence, job.locks, self.now)
        return True

    def _grant(self, job: Job, fence: str) -> None:
        must(int(fence) > self._fence, "fence", fence, "is not the greatest")
        self._fence = int(fence)
        self.model.take(fence, job.locks, self.now)

    def _job(self, id: str) -> Job:
        job = self.jobs.get(id) or self.holds.get(id)
        if job is None:
            raise Violation(f"record {id} belongs to no task")
        return job

    def _waiter(self, id: str, record: dict[str, str]) -> Waiter:
        job = self._job(id)
        aged = record.get("aged") == "1"
        rank = job.ticket
        if not aged and job.stream != "hold":
            rank += CLASSES[job.stream.partition(":")[0]] * CLASS_US
        places = {}
        for lock, mark in zip(job.locks, record.get("places", ""), strict=False):
            name = lock.name
            if mark == "v":
                head, of, key = name.split(":")[1:]
                name = f"limiter:{head}:@{lock.vo}:{of}:{key}"
            if mark != "-":
                places[name] = lock
        return Waiter(id, rank, job.locks, aged, places)

    def _waiters(self, facts: Facts) -> list[Waiter]:
        return [self._waiter(id, r) for id, r in facts.records.items() if r.get("places")]

    def _refusal(self, me: Waiter, facts: Facts) -> Refusal | None:
        return self.model.refusal(me, self._waiters(facts), self.now)

    def _replay(self, worker: str, rows: list[list[str]], free: int, looks: int) -> list[Delivery]:
        """What the entries in their order must have come to; the deliveries that were made."""
        before, got, expected = self.before, [], {row[0]: whole_row(row) for row in rows}
        standing = {waiter.id: waiter for waiter in self._waiters(before)}
        is_offered, parked, budget = False, [], Budget(free, free, free)
        doomed: dict[str, list[tuple[str, str, str, str]]] = {}  # what this fetch has queued there
        for key in STREAMS:
            entries = [entry for entry in before.streams.get(key, ()) if not entry[3]]
            entries += doomed.get(key, [])
            budget.turn_to(key, len(entries))
            for _, id, gen, _ in entries:
                if budget.left <= 0 or looks <= 0:
                    continue
                looks -= 1
                budget.read += 1
                record = before.records[id]
                is_doomed = not gen
                must(is_doomed or record["gen"] == gen, "entry of", id, "is void")
                me = self._waiter(id, record)
                refusal = self.model.refusal(me, standing.values(), self.now)
                is_dying = is_doomed or record["state"] == "dying"
                if refusal and not is_dying and refusal.impossible:
                    burials = f"burials:{record['stream']}"
                    doomed.setdefault(burials, []).append(("", id, "", ""))
                    standing.pop(id, None)
                    is_offered = True
                    continue
                row = expected.pop(id, None)
                if refusal and not is_dying:
                    must(row is None, id, "was admitted although", refusal, "refuses it")
                    places = self.model.places_after(me, refusal)
                    is_offered |= bool(me.places) and places != me.places
                    standing[id] = Waiter(id, me.rank, me.locks, me.aged, places)
                    parked.append((id, places))
                    continue
                if row is None:
                    raise Violation(f"{id} was not handed over, but nothing refuses it")
                budget.take(record)
                standing.pop(id, None)
                got.append(self._handed(worker, row, dying=is_dying))
        must(not expected, "handed over out of order:", list(expected))
        for id, places in parked:
            record = self.facts.records[id]
            # A task that left in the same fetch may have moved it on.
            as_said = record["state"] == "waiting" and self._waiter(id, record).places == places
            must(as_said or is_offered, id, "was not parked at", *places)
        return got

    def _handed(self, worker: str, row: list[str], *, dying: bool) -> Delivery:
        id, gen, fence, stream_key, entry, _, _, _, state, _, _, held, *_ = row
        must(state == ("dying" if dying else "running"), id, "was handed over as", state)
        job = self._job(id)
        if dying:
            must(int(fence) > self._fence, "fence", fence, "is not the greatest")
            self._fence = int(fence)
        else:
            marks = self.model.marks(job.locks)
            must(held.rstrip("-") == marks.rstrip("-"), id, "marks", held, "not", marks)
            self._grant(job, fence)
        return Delivery(job, gen, fence, worker, stream_key, entry, dying, self.now)

    def _finish_some(self) -> bool:
        got = self.fetch(0, 50, 250)
        for delivery in got:
            must(self.settle(delivery, "done") == "OK", delivery.job.id, "cannot end")
        return bool(got)

    def _finish_keys(self) -> None:
        for name in list(self.facts.watch):
            must(name not in self.facts.queues, "queue of", name, "is left")
        self.advance(40_000_000)
        self.settle_down()
        for worker in (*self._gone, *self._workers):
            self._run("leave", worker, "small")
        state = self.facts
        left = (state.records, state.queues, state.writers, state.delayed, state.watch)
        must(not any(left), "left in the end:", left)
        must(not any(state.streams.values()), "entries are left:", state.streams)
        structure = {"fence", "epoch", "counters", "quarantine", "workers", "events"}
        structure |= set(state.streams)
        for key in self.site.client.scan_iter(count=1000):
            name = str(key).removeprefix(PREFIX)
            must(name in structure or self.site.client.ttl(key) > 0, "key", name, "is left")
            must(name != "quarantine", "something was quarantined")

    # Judgement ----------------------------------------------------------------------------------

    def _judge(self) -> None:
        standing = self._waiters(self.facts)
        self._judge_queues(standing)
        self._judge_places(standing)
        self._judge_woken(standing)
        self._judge_looks(standing)
        self._keep_up()

    def _judge_queues(self, standing: list[Waiter]) -> None:
        """Queues hold exactly those whose records say so, at their ranks."""
        queues: dict[str, dict[str, int]] = {}
        writers: dict[str, dict[str, int]] = {}
        for waiter in standing:
            is_woken = self.facts.records[waiter.id]["state"] == "queued"
            score = waiter.rank - WOKEN if is_woken else waiter.rank
            for name, lock in waiter.places.items():
                member = f"{waiter.id} {lock.items}" if lock.kind == "L" else waiter.id
                queues.setdefault(name, {})[member] = score
                if lock.kind == "W":
                    writers.setdefault(name, {})[member] = score
        must(queues == self.facts.queues, "queues", self.facts.queues, "should be", queues)
        must(writers == self.facts.writers, "writers", self.facts.writers, "should be", writers)

    def _judge_places(self, standing: list[Waiter]) -> None:
        """Every record is in one place, and every pointer has its record."""
        entries: dict[str, list[tuple[str, str, str]]] = {}
        for key, rows in self.facts.streams.items():
            for _, id, gen, consumer in rows:
                entries.setdefault(id, []).append((key, gen, consumer))
        alive = {job.id for job in self.jobs.values() if not job.ended} | set(self.holds)
        records = set(self.facts.records)
        must(alive == records, "records", records - alive, "too many", alive - records, "missing")
        for id, record in self.facts.records.items():
            places, is_due = entries.pop(id, []), id in self.facts.delayed
            self._judge_place(id, record, places, is_due=is_due)
        must(not entries, "pointers without a record:", entries)
        orphans = set(self.facts.delayed) - set(self.facts.records)
        must(not orphans, "delayed without a record:", orphans)
        for waiter in standing:
            structural = [n for n, lock in waiter.places.items() if not lock.limits]
            limiters = len(waiter.places) - len(structural)
            every = sum(not lock.limits for lock in waiter.locks)
            fits = len(structural) in (0, every) and (
                waiter.aged or not limiters or (limiters == 1 and not structural)
            )
            must(fits, waiter.id, "stands at", *waiter.places)

    def _judge_place(
        self, id: str, record: dict[str, str], places: list[tuple[str, str, str]], *, is_due: bool
    ) -> None:
        state, where = record["state"], f"{id} is {record['state']}:"
        if record["stream"] == "hold":
            must(not places, where, places)
            must(is_due or state == "held", where, "no check is due")
            return
        must(all(gen == record["gen"] for _, gen, _ in places), where, "void", places)
        pending = [consumer for _, _, consumer in places if consumer]
        if state == "queued":
            must(len(places) == 1 and not pending, where, "queued at", places)
            must(is_due or not record.get("places"), where, "a reservation without an end")
            ages = bool(record.get("reserved")) and record.get("aged") != "1"
            must(is_due or not ages, where, "no check is due when it is aged")
            must(not is_due or bool(record.get("reserved")), where, "due, but was never woken")
        elif state == "running":
            must(len(pending) == 1 and len(places) == 1, where, places)
            must(not is_due and not record.get("places"), where, "and waits")
        elif state == "dying":
            must(len(places) + is_due == 1, where, places, is_due)
        else:
            must(state in ("delayed", "waiting"), where, "unknown")
            must(not places and is_due, where, places, "due:", is_due)

    def _judge_woken(self, standing: list[Waiter]) -> None:
        """A woken task can run, unless it just moved in front of others; its gen grew."""
        for id, record in self.facts.records.items():
            old = self.before.records.get(id, record)
            if record["state"] != "queued" or old["state"] != "waiting":
                continue
            must(int(record["gen"]) > int(old["gen"]), id, "was woken in its old generation")
            me = self._waiter(id, record)
            settled = [w for w in standing if self._stood_before(w)]
            refusal = self.model.refusal(me, settled, self.now)
            must(not refusal or refusal.impossible, id, "was woken although", refusal)

    def _stood_before(self, waiter: Waiter) -> bool:
        record = self.before.records.get(waiter.id)
        return bool(record) and self._waiter(waiter.id, record or {}) == waiter

    def _judge_aging(self) -> None:
        """A checked task counts as realtime if, and only if, it has waited for so long."""
        for id, due in self.before.delayed.items():
            record, old = self.facts.records.get(id, {}), self.before.records[id]
            if not old.get("since") or not record.get("places"):
                continue
            aging = HOLD_AGING_US if old["stream"] == "hold" else self.pace.aging
            of_age = self.now - int(old["since"]) >= aging
            was_looked_at = due <= self.now and self.facts.delayed[id] != due
            if was_looked_at and record["state"] == "waiting" and self._changed() == [id]:
                me = self._waiter(id, record)
                refusal = self._refusal(me, self.facts)
                fits = refusal is None or self.model.places_after(me, refusal) == me.places
                must(fits, id, "stands at", *me.places, "after", refusal)
            was_aged, is_aged = old.get("aged") == "1", record.get("aged") == "1"
            is_due = due - int(old["since"]) >= aging  # judged by the time of the look
            if old["state"] == record["state"] == "waiting" and was_looked_at and is_due:
                must(is_aged, id, "is aged and does not count as such")
            must(is_aged >= was_aged and (of_age or is_aged == was_aged), id, "aged:", is_aged)

    def _changed(self) -> list[str]:
        before, after = self.before.records, self.facts.records
        return [id for id in {**before, **after} if before.get(id) != after.get(id)]

    def _judge_looks(self, standing: list[Waiter]) -> None:
        """A waiting task that could run has a check that is due; so has an aged one."""
        for me in standing:
            record, looks = self.facts.records[me.id], self.facts.delayed
            if record["state"] != "waiting":
                continue
            own = looks[me.id]
            if record["stream"] != "hold" and not me.aged:
                of_age = int(record["since"]) + self.pace.aging
                must(own <= max(of_age, self.now), me.id, "is not checked when it is aged")
            watched = [self.facts.watch.get(name, self.now + 1) for name in me.places]
            if min(own, *watched) > self.now and not self.model.refusal(me, standing, self.now):
                raise Violation(f"{me.id} could run, but no check is due: {watched}, {own}")

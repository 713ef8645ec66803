"""The first submitted gets a lock first, whatever aging, reservations and busy slots do.

The real scripts run under a clock that the test turns. Rivals are tasks of one stream whose only
lock is the same. Others keep the slots busy, hold the lock, or need no lock at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import records
from calls import settle_args
from hypothesis import HealthCheck, Phase, example, given, seed, settings, strategies as st
from servers import RedisServer
from stores.machines.faults import ORDER
from stores.machines.machine import START, STEP
from stores.machines.site import PREFIX, Fault, Site

from nonet.tasks.locks import ConcurrencyLimiter, ExclusiveRWLock, MutexLock, encode_locks

KEEPING = "60000|60000|0"
TTL_MS = 30_000
AGING = 8_000_000
# First and longest pause of a waiter, and when it comes of age.
WAITS = (2_000_000, 20_000_000, AGING)
LOCKS = (MutexLock("job", 1), ExclusiveRWLock("job", 1), ConcurrencyLimiter("job", 1, limit=1))
PAUSES = (50_000, 900_000, 1_700_000, 5_100_000, 8_000_000)

Step = tuple[str, int]
# The first rival is woken a moment before it comes of age, while urgent tasks keep the slots busy.
WOKEN_LATE: list[Step] = [
    *[("rivals", 1)] * 3,
    ("free", 1),
    *[("rivals", 2), ("rivals", 4), ("rivals", 4)],
    ("fetch", 2),
    ("urgent", 3),
    *[("to an event", 0)] * 2,
]
# The first rival's reservation lapses just before it comes of age, and one tick is late for both.
LAPSED_LATE: list[Step] = [
    *[("rivals", 1), ("rivals", 1), ("rivals", 4), ("urgent", 3), ("pause", 0), ("free", 1)],
    *[("rivals", 2), ("fetch", 5), ("to an event", 2), ("end", 3), ("pause", 3)],
]
STEPS = st.one_of(
    st.tuples(st.just("rivals"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["free", "urgent"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["elsewhere", "retire"]), st.just(0)),
    st.tuples(st.sampled_from(["fetch", "fetch", "fetch elsewhere"]), st.integers(1, 5)),
    st.tuples(st.sampled_from(["end", "end", "end"]), st.integers(0, 9)),
    st.tuples(st.just("pause"), st.integers(0, len(PAUSES) - 1)),
    st.tuples(st.just("to an event"), st.integers(0, 3)),
)
HISTORIES = st.lists(STEPS, min_size=5, max_size=40)


class Unfair(AssertionError):
    """A task was passed by one that must come after it."""


@dataclass
class Race:
    """One history: an emptied database, and the tasks by what they have got."""

    site: Site
    stream: str
    lines: str
    now: int = START
    promoted: int = START
    waiting: list[str] = field(default_factory=list)  # rivals without a fence, in order
    free: set[str] = field(default_factory=set)
    running: list[list[str]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.site.client.flushdb()
        self.site.client.hset(
            f"{PREFIX}epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )
        self.serve("medium")
        self.serve("small")

    def serve(self, size: str) -> None:
        self.site.client.zadd(f"{PREFIX}workers", {f"{size}-beats": 2**52})

    def play(self, step: Step) -> None:
        what, number = step
        if what == "rivals":
            self.waiting += [self.submit(self.stream, self.lines) for _ in range(number)]
        elif what == "free":
            self.free |= {self.submit(self.stream, "") for _ in range(number)}
        elif what == "urgent":
            for _ in range(number):
                self.submit("realtime:small", "")
        elif what == "elsewhere":
            self.submit("normal:medium", self.lines)
        elif what == "retire":
            self.site.client.zrem(f"{PREFIX}workers", "small-beats")
        elif what == "end" and self.running:
            self.end(self.running.pop(number % len(self.running)))
        elif what == "pause":
            self.advance(PAUSES[number])
        elif what == "to an event":
            due = self.site.client.zrange(f"{PREFIX}tasks:delayed", number, number, withscores=True)
            for _, at in due:
                self.advance(max(0, int(at) - self.now))
        elif what.startswith("fetch"):
            self.fetch("medium" if what.endswith("elsewhere") else "small", number)

    def submit(self, stream: str, lines: str) -> str:
        self.made += 1
        id = f"t{self.made:03}"
        self.run("submit", KEEPING, 1, "m:B", stream, 0, "", lines, "", id, "e")
        return id

    def advance(self, pause: int) -> None:
        """Let time go by, and do what is due about once a second, as daemons do."""
        end = self.now + pause
        while self.now < end:
            self.now = min(end, self.promoted + 1_000_000)
            self.promote()

    def promote(self) -> None:
        for _ in range(200):
            self.promoted = self.now
            if self.run("promote", KEEPING, "", 5, 0, *WAITS, "")[1] != 0:
                return
        raise Unfair("promotions find something due again and again")

    def fetch(self, size: str, free: int) -> None:
        self.serve(size)
        unread = self.woken_rivals()
        worker = f"{size}-w"
        answer = self.run("fetch", KEEPING, worker, size, free, 50, TTL_MS, *WAITS, 0, 4096)
        for row in answer[4:]:
            self.hand_over(row, unread)

    def hand_over(self, row: list[str], unread: list[str]) -> None:
        id = row[0]
        self.running.append(row)
        if id in self.waiting:
            if id != self.waiting[0]:
                raise Unfair(f"{id} got the lock before {self.waiting[0]}")
            self.waiting.remove(id)
        elif id in self.free:
            passed = [other for other in unread if other < id and self.is_unread(other)]
            if passed:
                raise Unfair(f"{id}, which needs no lock, went before {passed[0]}, which was woken")

    def woken_rivals(self) -> list[str]:
        with self.site.client.pipeline(transaction=False) as pipe:
            for id in self.waiting:
                records.hmget(pipe, f"{PREFIX}t:{id}", "state", "since")
            states = pipe.execute()
        return [
            id
            for id, (state, since) in zip(self.waiting, states, strict=True)
            if state == "queued" and since
        ]

    def is_unread(self, id: str) -> bool:
        return bool(records.hget(self.site.client, f"{PREFIX}t:{id}", "state") == "queued")

    def end(self, row: list[str]) -> None:
        args = settle_args(row[:5], "done", "", "", 0, 1, 0)
        self.run("settle", KEEPING, TTL_MS, *args)

    def run(self, name: str, *args: Any) -> Any:
        self.now += STEP
        return self.site.run(name, self.now, *args)

    def finish(self) -> None:
        """Let every rival have its turn."""
        for _ in range(20 * (self.made + 1)):
            if not self.waiting:
                return
            while self.running:
                self.end(self.running.pop())
            self.fetch("small", 3)
            self.fetch("medium", 3)
            self.advance(1_000_000)
        raise Unfair(f"{self.waiting[0]} never got the lock")


def play(site: Site, history: list[Step], stream: str, lock: int) -> None:
    lines = encode_locks([LOCKS[lock]], task="m:B")
    race = Race(site, stream, lines)
    for step in history:
        race.play(step)
    race.finish()


def play_many(server: RedisServer, examples: int, number: int, *faults: Fault) -> None:
    """Random histories; raises `Unfair` with the shortest one."""
    with server.client() as client:
        site = Site(client, faults)

        @seed(number)
        @example(WOKEN_LATE, "normal:small", 0)
        @example(LAPSED_LATE, "normal:small", 0)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate] if faults else [Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            HISTORIES,
            st.sampled_from(["normal:small", "background:small", "realtime:small"]),
            st.integers(0, len(LOCKS) - 1),
        )
        def histories(history: list[Step], stream: str, lock: int) -> None:
            play(site, history, stream, lock)

        histories()


def test_rivals_get_a_lock_in_order_of_submission(redis_server: RedisServer) -> None:
    """Tasks of one stream whose only lock is the same are admitted in order of first submission."""
    play_many(redis_server, 150, 1)


@pytest.mark.soak
def test_rivals_get_a_lock_in_order_of_submission_for_long(redis_server: RedisServer) -> None:
    """The same for 3,000 histories."""
    play_many(redis_server, 3_000, 2)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ORDER, ids=str)
def test_a_fault_in_the_order_is_caught(redis_server: RedisServer, fault: Fault) -> None:
    """Each of the listed errors in the scripts is noticed within two thousand histories."""
    with pytest.raises(Unfair):
        play_many(redis_server, 2_000, 3, fault)

"""What must hold of locks, in the plainest form: holders, queues and refusals.

Nothing here talks to Redis. `Model` learns the holders from the answers that callers got, and
computes what refuses a task; `lock_machine` reads from Redis where tasks stand, and judges it.
Times are virtual microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

CLASS_US = 10**14  # what a class of priority adds to a ticket; decades
CLASSES = {"realtime": 0, "normal": 1, "background": 2}


@dataclass(frozen=True, slots=True)
class Lock:
    """One line of a task's locks. `ttl` and `window` are µs; M, W, R, C or L is its kind."""

    kind: str
    name: str
    ttl: int
    limit: int | None = None
    window: int | None = None
    items: int = 1
    vo: str = ""

    @property
    def limits(self) -> bool:
        """Whether it is a limiter, which reserves nothing but places of its own."""
        return self.kind in "CL"


def parse(lines: str, task: str, default_ttl_ms: int) -> tuple[Lock, ...]:
    """The locks of a task, then the two limiters of its class; `task` is empty for a hold."""
    locks, vo = [], ""
    for line in filter(None, lines.split("\n")):
        kind, name, ttl, limit, window, items = line.split("|")
        if kind == "V":
            vo = name
            continue
        numbers = int(limit) if limit else None, int(window) * 1000 if window else None
        ttl_us = int(ttl or default_ttl_ms) * 1000
        locks.append(Lock(kind, name, ttl_us, *numbers, int(items or 1), vo))
    names = {lock.name for lock in locks}
    for kind, head in (("L", "rate"), ("C", "conc")):
        name = f"limiter:{head}:task:{task.rpartition(':')[2]}"
        if task and name not in names:
            locks.append(Lock(kind, name, default_ttl_ms * 1000, vo=vo))
    return tuple(locks)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a limiter allows now, and where it is counted."""

    limit: int
    window: int | None
    counter: str
    mark: str


@dataclass(frozen=True, slots=True)
class Waiter:
    """A task that wants locks: its rank, and the counters at which it stands, with the locks."""

    id: str
    rank: int
    locks: tuple[Lock, ...]
    aged: bool = False
    places: dict[str, Lock] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which lock refuses, and whether the task is the next to get it from its holders."""

    lock: Lock
    counter: str
    is_next: bool = False
    impossible: bool = False


@dataclass(slots=True)
class Taken:
    """A lease that a caller was given: a structural lock or a slot."""

    lock: Lock
    counter: str
    expiry: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Items of a rate limiter that a caller was given."""

    counter: str
    at: int
    items: int
    window: int


def excludes(one: str, other: str) -> bool:
    """Whether two kinds exclude each other on one name: all but two readers do."""
    return one != "R" or other != "R"


class Model:
    """The holders of locks, by the fence of the admission that took them."""

    def __init__(self, default_ttl: int) -> None:
        self.default_ttl = default_ttl
        self.taken: dict[str, list[Taken]] = {}
        self.tokens: dict[str, list[Tokens]] = {}
        self.limits: dict[str, str] = {}

    def rule(self, lock: Lock) -> Rule | None:
        """What holds for a limiter: the most specific configured limit, its own, or nothing."""
        _, head, of, key, *_ = lock.name.split(":")
        for vo in dict.fromkeys((lock.vo, "")):
            for keyed in (key, "default"):
                value = self.limits.get(f"{lock.kind}|{vo}|{of}|{keyed}|")
                if value is None:
                    continue
                if value == "off":
                    return None
                counter = f"limiter:{head}:@{vo}:{of}:{key}" if vo else lock.name
                limit, _, window = value.partition("|")
                window_us = int(window) * 1000 if window else None
                return Rule(int(limit), window_us, counter, "v" if vo else "x")
        return Rule(lock.limit, lock.window, lock.name, "x") if lock.limit else None

    def marks(self, locks: Iterable[Lock]) -> str:
        """What an admission records now: which limiters hold, and where."""
        rules = [(lock, self.rule(lock) if lock.limits else None) for lock in locks]
        if not any(rule for _, rule in rules):
            return ""
        return "".join(
            "x" if not lock.limits else rule.mark if rule else "-" for lock, rule in rules
        )

    def take(self, fence: str, locks: Iterable[Lock], now: int) -> None:
        """An admission."""
        self.taken[fence], self.tokens[fence] = [], []
        for lock in locks:
            rule = self.rule(lock) if lock.limits else None
            if not lock.limits:
                self.taken[fence].append(Taken(lock, lock.name, now + lock.ttl))
            elif rule and lock.kind == "C":
                self.taken[fence].append(Taken(lock, rule.counter, now + lock.ttl))
            elif rule:
                assert rule.window is not None
                tokens = Tokens(rule.counter, now, lock.items, rule.window)
                self.tokens[fence].append(tokens)

    def release(self, fence: str, *, started: bool) -> None:
        """A holder gave everything back; its tokens only if the attempt never started."""
        self.taken.pop(fence, None)
        if not started:
            self.tokens.pop(fence, None)

    def is_lost(self, fence: str, now: int) -> bool:
        """Whether one of its leases has ended."""
        return any(taken.expiry <= now for taken in self.taken.get(fence, ()))

    def renew(self, fence: str, locks: Iterable[Lock], now: int) -> None:
        """All leases start anew; a limit that was set meanwhile counts the holder, too."""
        leases = self.taken.setdefault(fence, [])
        for taken in leases:
            taken.expiry = now + taken.lock.ttl
        counted = {taken.lock for taken in leases}
        for lock in locks:
            rule = self.rule(lock) if self.limits and lock.kind == "C" else None
            if rule and lock not in counted and lock.ttl >= self.default_ttl:
                leases.append(Taken(lock, rule.counter, now + lock.ttl))

    def holders(self, counter: str, now: int) -> list[Taken]:
        """The unexpired leases at a lock or limiter."""
        every = itertools.chain.from_iterable(self.taken.values())
        return [taken for taken in every if taken.counter == counter and taken.expiry > now]

    def used(self, rule: Rule, now: int) -> int:
        """How much of a limiter is in use."""
        if rule.window is None:
            return len(self.holders(rule.counter, now))
        every = itertools.chain.from_iterable(self.tokens.values())
        return sum(
            tokens.items
            for tokens in every
            if tokens.counter == rule.counter and tokens.at > now - rule.window
        )

    def is_impossible(self, locks: Iterable[Lock]) -> bool:
        """Whether a task with these locks could never run under the limits that hold now."""
        rules = ((lock, self.rule(lock)) for lock in locks if lock.kind == "L")
        return any(rule is not None and lock.items > rule.limit for lock, rule in rules)

    def refusal(self, me: Waiter, standing: Iterable[Waiter], now: int) -> Refusal | None:
        """What refuses a task now, in the order of its locks, structural ones first."""
        before = [other for other in standing if other.id != me.id and other.rank < me.rank]
        structural = [lock for lock in me.locks if not lock.limits]
        for lock in structural:
            ahead = [other.places[lock.name] for other in before if lock.name in other.places]
            is_behind = any(excludes(lock.kind, other.kind) for other in ahead)
            if any(excludes(lock.kind, t.lock.kind) for t in self.holders(lock.name, now)):
                return Refusal(lock, lock.name, is_next=not is_behind)
            if is_behind:
                return Refusal(lock, lock.name)
        for lock in me.locks:
            rule = self.rule(lock) if lock.limits else None
            if rule and lock.items > rule.limit:
                return Refusal(lock, rule.counter, impossible=True)
            if rule:
                used = self.used(rule, now) + lock.items
                places = (other.places.get(rule.counter) for other in before)
                kept = sum(other.items for other in places if other)
                if used + kept > rule.limit:
                    return Refusal(lock, rule.counter, is_next=kept == 0)
        return None

    def places_after(self, me: Waiter, refusal: Refusal) -> dict[str, Lock]:
        """Where a refused task must stand.

        At all its structural locks, or at the limiter that refuses it; an aged one that is the
        next to get what others hold keeps its places at its limiters, too; for tokens it keeps
        tokens alone.
        """
        everywhere = me.aged and refusal.is_next
        places = {}
        for lock in me.locks:
            if not lock.limits:
                if not refusal.lock.limits:
                    places[lock.name] = lock
                continue
            rule = self.rule(lock)
            kept = everywhere and (lock.kind == "L" or refusal.lock.kind != "L")
            if rule and (kept or lock == refusal.lock):
                places[rule.counter] = lock
        return places

    def next_end(self, now: int) -> list[int]:
        """When leases and tokens end, after now; for a clock that goes exactly there."""
        ends = [taken.expiry for leases in self.taken.values() for taken in leases]
        ends += [t.at + t.window for every in self.tokens.values() for t in every]
        return sorted({end for end in ends if end > now})

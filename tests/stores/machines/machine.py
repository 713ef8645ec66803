"""What the machines have in common: a clock, the state before and after a step, and judgements."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stores.machines.lock_model import CLASSES
from stores.machines.site import Facts, Site

from nonet.rules.findings.diagnosis import Finding, examine

START = 1_760_000_000_000_000
STEP = 2_000  # µs that each script call takes on the virtual clock: more than it really takes
_MOST_LAG_SECONDS = 0.8  # the TTL of a key is a second longer than its lease
# In the order in which a fetch reads them.
STREAMS = (
    *(f"{kind}:{p}:small" for p in CLASSES for kind in ("woken", "tasks", "suspects")),
    *(f"burials:{p}:small" for p in CLASSES),
)


class Violation(AssertionError):
    """Something that must never happen."""


def must(claim: bool, *words: object) -> None:
    """Raise `Violation` unless the claim holds."""
    if not claim:
        raise Violation(" ".join(map(str, words)))


def findings(site: Site, now: int, lease: int) -> Iterator[Finding]:
    """What the doctor finds; lease: µs."""
    for what in ("keys", "due", "deadlines", *STREAMS):
        for row in site.run("inspect", now, what, "0", 10_000)[1:]:
            if finding := examine(row, lease=lease / 1e6):
                yield finding


@dataclass(slots=True)
class Budget:
    """How many tasks a fetch may still hand over: in slots, suspects and burials beside them."""

    free: int
    room: int
    burials: int
    key: str = ""
    read: int = 0  # of this stream
    unread: dict[str, int] = field(default_factory=dict)  # of ordinary work, by priority

    def turn_to(self, key: str, count: int) -> None:
        """The fetch comes to a stream with so many unread entries."""
        self._leave()
        self.key, self.read = key, 0
        kind, priority, _ = key.split(":")
        if kind == "burials":
            return
        if kind != "suspects":
            self.unread[priority] = self.unread.get(priority, 0) + count
        elif self.free <= 0 and self.unread.get(priority):
            self.room = 0  # ordinary work of its priority goes first

    def _leave(self) -> None:
        if self.key and not self.key.startswith(("suspects", "burials")):
            self.unread[self.key.split(":")[1]] -= self.read

    @property
    def left(self) -> int:
        """Of the stream that is read."""
        if self.key.startswith("burials"):
            return self.burials
        return self.room if self.key.startswith("suspects") else self.free

    def take(self, record: Mapping[str, str]) -> None:
        """A task of that stream is handed over."""
        if self.key.startswith("burials"):
            self.burials -= 1
        elif not self.key.startswith("suspects"):
            self.free -= 1
        elif int(record.get("deaths", "0")) < 2:
            self.room -= 1
        else:  # it runs where nothing else does but its own group
            self.room = min(self.room, max(1, 100 >> (int(record["suspect"]) - 1))) - 1


@dataclass
class Machine:
    """One run on a database that `_begin` empties.

    Attributes:
        facts: what Redis contains; `before`: what it contained before the last step.
    """

    site: Site
    now: int = START
    facts: Facts = field(init=False)
    before: Facts = field(init=False)

    def __post_init__(self) -> None:
        self._heard, self._lag = (time.monotonic(), self.now), 0.0
        self._begin()
        self.facts = self.before = self.site.look()

    def _begin(self) -> None:
        self.site.client.flushdb()

    def _run(self, name: str, *args: Any) -> Any:
        self.now += STEP
        self.before = self.facts
        answer, self.facts = self.site.call(name, self.now, *args)
        return answer

    def _look(self) -> None:
        self.before, self.facts = self.facts, self.site.look()

    def _keep_up(self) -> None:
        """Keys live by the server's clock: the virtual one must not fall behind it."""
        heard, at = self._heard
        self._heard = time.monotonic(), self.now
        self._lag = max(0.0, self._lag + self._heard[0] - heard - (self.now - at) / 1e6)
        if self._lag > _MOST_LAG_SECONDS:
            self.now += round(self._lag * 1e6)
            self._lag = 0.0

"""Cuts a script after each of its calls, repeats it and sweeps, as a fleet would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from calls import ENTRY, ID, STATE, STREAM, settle_args, whole_row
from stores.machines.machine import START
from stores.machines.queue_machine import KEEPING, LEASE, LOCK_TTL, WAITS
from stores.machines.site import PREFIX, Site

MOST_CALLS = 400
# By their callers, if there is no answer.
REPEATED = (
    *("submit", "settle", "group_seal", "cancel", "resume", "hasten"),
    *("workflow_stage", "workflow_resume", "workflow_signal", "workflow_cancel"),
)
WORKER = "small-a1"
Call = tuple[Any, ...]
MEND: Call = ("mend", KEEPING, 1000, 10, 0, LEASE)
PROMOTE: Call = ("promote", KEEPING, "", 500, 0, *WAITS, "")


@dataclass
class Fleet:
    """One worker on an emptied database, under a clock of its own.

    Attributes:
        is_shared: each task has a tenant of its own, and tenants take turns.
    """

    site: Site
    is_shared: bool = False
    now: int = START
    executed: list[str] = field(default_factory=list)
    afterwards: list[Call] = field(default_factory=list)  # after the cut and its repetition

    def __post_init__(self) -> None:
        self.site.client.flushdb()
        self.site.client.hset(
            f"{PREFIX}epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )
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
        about = (KEEPING, WORKER, "small", 50, 200, LOCK_TTL // 1000, *WAITS)
        return ("fetch", *about, 0, 4096, 50, 50)

    def fetch(self) -> list[list[str]]:
        rows = [whole_row(row) for row in self.run(*self.fetch_call())[4:]]
        self.executed += [row[ID] for row in rows if row[STATE] == "running"]
        return rows

    def settle_call(self, row: list[str], outcome: str, delay: int = 0, *children: str) -> Call:
        fields = ("m:Task", "normal:small", 0, "", "e", "", "")
        specs = [part for id in children for part in (id, *fields)]
        about = ("document", "text", delay, 1, len(children), *specs)
        return ("settle", KEEPING, LOCK_TTL // 1000, *settle_args(row[:5], outcome, *about))

    def forgotten(self, row: list[str]) -> Call:
        """The sweep that finds what no worker renews."""
        self.site.let_idle(PREFIX + row[STREAM], WORKER, row[ENTRY])
        return self.reclaim_call()

    def reclaim_call(self) -> Call:
        about = (KEEPING, WORKER, "small", LEASE // 1000, 1000, 10, "")
        return ("reclaim", *about, *["0-0"] * 12)

    def cancel_call(self, order: str, *ids: str) -> Call:
        """`order`: who cancels, for the worker of a running task."""
        pairs = [part for id in ids for part in (id, "")]
        return ("cancel", KEEPING, 0, order, "by somebody", *pairs)

    def sweep(self) -> None:
        """A lease later: everything that a worker does by itself."""
        self.now += LEASE
        self.run("renew", WORKER, 3_600_000, LOCK_TTL // 1000, "{}", 0, "", "")
        for key, rows in self.site.look().streams.items():
            for entry, _, _, consumer in rows:
                if consumer:
                    self.site.let_idle(PREFIX + key, consumer, entry)
        self.run(*self.reclaim_call())
        self.walk()
        self.run(*PROMOTE)

    def walk(self) -> None:
        """Look at all records once."""
        while self.run(*MEND)[1]:
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


Expected = TypeVar("Expected")
History = Callable[[Fleet], tuple[Call, Expected]]


def cuts(
    site: Site,
    history: History[Expected],
    problems_of: Callable[[Fleet, Expected], Iterator[str]],
    *,
    stride: int = 1,
    is_shared: bool = False,
) -> Iterator[str]:
    """What is wrong after a cut, a repetition and a sweep, for each `stride`-th call of a script.

    Args:
        history: prepares a fleet; returns the call that is cut, and what must come of it.
        problems_of: what is wrong with a fleet that has nothing left to execute.
    """
    for calls in range(int(is_shared) * (stride // 2), MOST_CALLS, stride):
        fleet = Fleet(site, is_shared)
        call, expected = history(fleet)
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
        for problem in problems_of(fleet, expected):
            yield f"after {calls} calls: {problem}"
        if is_whole:
            return
    yield "the script never came to its end"

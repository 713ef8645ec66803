"""What must hold of tasks, in the plainest form.

Nothing here talks to Redis. `Model` learns what happened and computes what each task must be
then; `queue_machine` compares that with Redis. Times are virtual microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

MOST_ERRORS = 20


@dataclass(slots=True)
class Task:
    """A task that has not ended.

    Attributes:
        state: ``ready`` (in a stream, or parked at a lock), ``delayed`` until `due`, ``running``,
            or ``dying``: until `due`, in a stream, or with a worker.
        is_back: it waits until `due` because it was handed back: no attempt was used.
        tenant: its owner.
        is_cancelled: its worker is ordered to end it.
        worker, gen, fence: of the delivery, where a worker has it; `gen` stays that of the last.
    """

    id: str
    name: str
    stream: str
    envelope: str
    lines: str = ""
    tenant: str = ""
    state: str = "ready"
    due: int = 0
    is_back: bool = False
    is_cancelled: bool = False
    attempt: int = 0
    deaths: int = 0
    crashes: int = 0
    suspect: int = 0
    is_to_judge: bool = False
    errors: int = 0
    saved: str = ""
    document: str | None = None
    reason: str = ""
    died: str = ""
    worker: str = ""
    gen: str = "0"
    fence: str = ""
    settled: str = ""

    @property
    def terms(self) -> str:
        """As the submit script takes them."""
        return f"tenant|{self.tenant}" if self.tenant else ""

    @property
    def has_begun(self) -> bool:
        """Whether an attempt of it was used, or its worker or the process that ran it died."""
        return bool(self.attempt or self.deaths or self.suspect)

    @property
    def mutex(self) -> str:
        """The name of its lock, or empty."""
        return self.lines.split("|")[1] if self.lines else ""

    def lose_worker(self, accused: Collection[str], crash_limit: int) -> None:
        """Its worker died, which ran these suspects: with it alone it has crashed."""
        self.deaths += 1
        if self.suspect and set(accused) == {self.id}:
            self.crashes, self.is_to_judge = self.crashes + 1, True
            if self.crashes >= crash_limit:
                self.state, self.reason, self.died = "dying", "worker-lost", self.gen
        else:
            self.suspect += 1

    def count(self, outcome: str) -> None:
        """A delivery ended in which its process died or, if it is a retry, did not."""
        self.crashes += outcome == "crash"
        self.suspect += outcome == "suspect"
        if outcome == "retry" and not self.is_to_judge:
            self.suspect = 0
        self.is_to_judge = self.is_to_judge and outcome != "retry"

    def free(self, due: int, now: int) -> None:
        """No worker has it any more: it waits until `due`, or stands in a stream."""
        self.worker = self.fence = ""
        self.due = due if due > now else 0
        if self.state != "dying":
            self.state = "delayed" if self.due else "ready"


@dataclass(frozen=True, slots=True)
class End:
    """How a task ended, and until when that is remembered."""

    state: str
    value: str
    until: int


@dataclass(slots=True)
class Model:
    """All that Redis has to know of the queue."""

    tasks: dict[str, Task] = field(default_factory=dict)
    ended: dict[str, End] = field(default_factory=dict)
    rows: set[tuple[str, str]] = field(default_factory=set)  # dead letters: id, gen
    accused: dict[str, set[str]] = field(default_factory=dict)  # suspects that each worker runs
    stale: int = 0
    lost: int = 0
    quarantined: int = 0
    withheld: int = 0

    def is_known(self, id: str) -> bool:
        """Whether an id is that of a task that lives or is remembered."""
        return id in self.tasks or id in self.ended

    def submit(self, task: Task, due: int, now: int) -> bool:
        """Accept a task unless its id is known."""
        if self.is_known(task.id):
            return False
        task.free(due, now)
        self.tasks[task.id] = task
        return True

    def end(self, task: Task, state: str, fence: str, document: str, ttls: Sequence[int]) -> None:
        """A task ended; `ttls` are when its result, and its id, may be forgotten, and now."""
        until_result, until_id, now = ttls
        head = f"{state}|{fence}|"
        has_result = until_result > now
        value = head + document if has_result else head
        self.ended[task.id] = End(state, value, max(until_result, until_id))
        del self.tasks[task.id]

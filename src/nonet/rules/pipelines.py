"""What operators see of pipelines, and what keeps a row from being processed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nonet.rules.refusal import span


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The due rows of a pipeline, as SQL reports them.

    Attributes:
        at: when they were counted; None: never.
        due: due rows, those in process included; at most `MOST`.
        leased: of these, how many a process has.
        stale: of these, how many have a lease that ended and was not taken over.
        waiting: of these, how many wait for related rows.
        dying: of these, how many wait for their dead letter to be written.
        oldest: seconds for which the oldest row that nobody has is due.
    """

    at: datetime | None = None
    due: int = 0
    leased: int = 0
    stale: int = 0
    waiting: int = 0
    dying: int = 0
    oldest: float = 0.0


MOST = 10_000
"""Due rows that are counted; more are not, because that would cost too much."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What one process reports of a pipeline.

    Attributes:
        name: ``pid@host``.
        workers: rows that it processes at once; `running` are in process, `queued` wait for that.
        rate: rows done within the last minute.
        wait: mean seconds that these had been due before they started.
        problem: why its database does not work, or empty.
        paused: why it fetches no rows, or empty.
    """

    name: str
    workers: int = 0
    running: int = 0
    queued: int = 0
    rate: int = 0
    wait: float = 0.0
    problem: str = ""
    paused: str = ""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline of a namespace."""

    name: str
    rows: RowFigures = RowFigures()
    replicas: Sequence[Replica] = field(default_factory=tuple)

    @property
    def rate(self) -> int:
        """Rows done within the last minute, in all processes."""
        return sum(replica.rate for replica in self.replicas)

    @property
    def wait(self) -> float:
        """Mean seconds that the rows of the last minute had been due before they started."""
        waits = sum(replica.wait * replica.rate for replica in self.replicas)
        return waits / self.rate if self.rate else 0.0

    @property
    def paused(self) -> str:
        """Why no process fetches rows, or empty."""
        return next((replica.paused for replica in self.replicas if replica.paused), "")

    @property
    def cause(self) -> str:
        """The first thing that keeps due rows waiting, or empty."""
        if not self.replicas:
            return "no process runs it"
        if self.paused:
            return f"paused {self.paused}"
        if all(replica.problem for replica in self.replicas):
            return self.replicas[0].problem
        if self.rows.stale:
            return f"{self.rows.stale} leases of dead processes have not been taken over"
        free = any(replica.running < replica.workers for replica in self.replicas)
        return "" if free or self.rows.due <= self.rows.leased else "all its workers are busy"


@dataclass(frozen=True, slots=True)
class RowState:
    """The lease columns of one row, as SQL reports them at `now`."""

    now: datetime
    due_at: datetime | None
    lease_expires_at: datetime | None
    lease_token: str | None
    lease_owner: str | None
    attempts: int
    is_selected: bool


def explain_row(row: RowState, status: PipelineStatus) -> str:
    """Name the first thing that keeps a row from being processed, and the next step.

    >>> explain_row(RowState(datetime(2026, 1, 1), None, None, None, None, 0, True),
    ...     PipelineStatus("volumes"))
    'finished: it is not due until it is touched (task-run pipelines touch volumes KEY)'
    """
    name = status.name
    if row.due_at is None:
        return f"finished: it is not due until it is touched (task-run pipelines touch {name} KEY)"
    if row.lease_token is not None and row.lease_expires_at is not None:
        if row.lease_expires_at >= row.now:
            left = span((row.lease_expires_at - row.now).total_seconds())
            return f"leased by {row.lease_owner}; unless renewed, the lease ends in {left}"
        late = span((row.now - row.lease_expires_at).total_seconds())
        return (
            f"the lease of {row.lease_owner} ended {late} ago, and only its owner takes it over: "
            f"{status.cause or 'it is fetched within seconds'}"
        )
    if row.due_at > row.now:
        left = span((row.due_at - row.now).total_seconds())
        return f"due in {left}, attempts since its last success: {row.attempts}"
    if row.attempts < 0:
        return "exhausted: its dead letter could not be written yet (task-run db check)"
    if row.lease_owner not in (None, name):
        return f"waits for related rows in pipeline {row.lease_owner}"
    if not status.replicas:
        return f"no process runs its pipeline: task-worker --pipelines {name}"
    if status.paused:
        return f"its pipeline is paused {status.paused}: task-run pipelines resume {name}"
    if row.lease_owner == name:
        return "waits for its related rows, which others have; it tries again every few seconds"
    if not row.is_selected:
        return "due, but select() of its pipeline does not select it"
    if status.cause:
        return status.cause
    return "next in line: it is fetched within seconds"

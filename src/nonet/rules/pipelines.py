"""What operators see of pipelines, and why a row is not processed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nonet.base.durations import span
from nonet.rules.findings import remedies


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
        oldest: how long (seconds) the oldest row without a process has waited since it was due, or
            since its lease ended.
    """

    at: datetime | None = None
    due: int = 0
    leased: int = 0
    stale: int = 0
    waiting: int = 0
    dying: int = 0
    oldest: float = 0.0


WITH_ALL = "with everything else"
"""Begin of `Replica.paused` while everything is paused."""

BY_CONFIGURATION = "by the configuration"
"""`Replica.paused` of a pipeline that the configuration pauses."""

HOLD = "hold"
"""Owner of the leases of `nonet.pipelines.Rows.hold`. Anyone may take a row after such a lease."""

MOST = 10_000
"""The most due rows that are counted: counting more would cost too much."""


_LETTER_CLASS = "pipeline:"


def row_letter_class(pipeline: str) -> str:
    """Return the text that dead letters of rows have in place of a task class.

    >>> row_letter_class("volumes"), pipeline_of("pipeline:volumes"), pipeline_of("mail:Send")
    ('pipeline:volumes', 'volumes', None)
    """
    return f"{_LETTER_CLASS}{pipeline}"


def pipeline_of(task_class: str) -> str | None:
    """Return the pipeline of a dead letter; None if it is the letter of a task."""
    is_row = task_class.startswith(_LETTER_CLASS)
    return task_class.removeprefix(_LETTER_CLASS) if is_row else None


def row_letter_id(pipeline: str, key: object, series: int) -> str:
    """Return the text that dead letters of rows have in place of a task id.

    Args:
        series: distinguishes the times at which the row was exhausted.

    >>> row_letter_id("volumes", "a:7", 1), key_in("row:volumes:a:7:1", "volumes")
    ('row:volumes:a:7:1', 'a:7')
    """
    return f"row:{pipeline}:{key}:{series}"


def key_in(letter_id: str, pipeline: str) -> str:
    """Return the primary key of the row that `row_letter_id` names; a long one is shortened."""
    rest = letter_id.removeprefix(f"row:{pipeline}:")
    return rest.rpartition(":")[0] or rest


def again_after(waited: float) -> float:
    """Return the seconds after which a row that waits for related rows tries again.

    A release of the rows wakes it; it may miss one, for example if a process dies. The pause is a
    quarter of the time that the row has waited, from two to ten seconds.

    >>> [again_after(waited) for waited in (0.0, 20.0, 300.0)]
    [2.0, 5.0, 10.0]
    """
    return min(10.0, max(2.0, waited / 4))


@dataclass(frozen=True, slots=True)
class Replica:
    """What one process reports of a pipeline.

    Attributes:
        name: ``pid@host``.
        workers: rows that it processes at once; `running` are in process, `queued` wait for that.
        rate: rows done within the last minute.
        wait: mean seconds from the due time of these rows to their start.
        problem: why its database does not work, or empty.
        letters: why it cannot write dead letters, or empty.
        paused: why it fetches no rows, or empty.
    """

    name: str
    workers: int = 0
    running: int = 0
    queued: int = 0
    rate: int = 0
    wait: float = 0.0
    problem: str = ""
    letters: str = ""
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
        """Mean seconds from due time to start, over the rows of the last minute."""
        waits = sum(replica.wait * replica.rate for replica in self.replicas)
        return waits / self.rate if self.rate else 0.0

    @property
    def paused(self) -> str:
        """Why no process fetches rows, or empty."""
        return next((replica.paused for replica in self.replicas if replica.paused), "")

    @property
    def problem(self) -> str:
        """Why no process can read its rows, or empty."""
        problems = [replica.problem for replica in self.replicas]
        return problems[0] if problems and all(problems) else ""

    @property
    def is_busy(self) -> bool:
        """Whether rows wait because all workers are busy."""
        busy = all(replica.running >= replica.workers for replica in self.replicas)
        return busy and self.rows.due > self.rows.leased

    @property
    def cause(self) -> str:
        """Why due rows wait, or empty."""
        if not self.replicas:
            return "no process runs it"
        if self.paused:
            return f"paused {self.paused}"
        if self.problem:
            return "its database fails"
        if self.rows.stale:
            left = (
                "row of a dead process is" if self.rows.stale == 1 else "rows of dead processes are"
            )
            return f"{self.rows.stale} {left} not taken over yet"
        return "all its workers are busy" if self.is_busy else ""


@dataclass(frozen=True, slots=True)
class RowState:
    """The lease columns of one row, as SQL reports them at `now`.

    Attributes:
        is_selected: `Pipeline.select` selects it.
        waiting_since: since when it waits for its related rows; None: it does not.
        is_suspect: a process died while it processed the row.
        wanted_by: the pipeline with a main row that waits for this row as a related row, or empty.
        task: the class of the task that processes it, or empty.
    """

    now: datetime
    due_at: datetime | None
    lease_expires_at: datetime | None
    lease_token: str | None
    lease_owner: str | None
    attempts: int
    is_selected: bool
    waiting_since: datetime | None = None
    is_suspect: bool = False
    wanted_by: str = ""
    task: str = ""


def explain_row(row: RowState, key: str, status: PipelineStatus) -> str:
    """Say why a row is not processed, and the next step.

    >>> explain_row(RowState(datetime(2026, 1, 1), None, None, None, None, 0, True), "17",
    ...     PipelineStatus("volumes"))
    'finished: it is not due until it is touched (task-run pipelines touch volumes 17)'
    """
    name = status.name
    if row.due_at is None:
        touch = remedies.command("task-run", "pipelines", "touch", name, key)
        return f"finished: it is not due until it is touched ({touch})"
    if row.lease_token is not None and row.lease_expires_at is not None:
        owner = _owner(row.lease_owner or "")
        if row.lease_expires_at >= row.now:
            left = span((row.lease_expires_at - row.now).total_seconds())
            return f"leased by {owner}; unless renewed, the lease ends in {left}"
        late = span((row.now - row.lease_expires_at).total_seconds())
        ended = f"the lease of {owner} ended {late} ago"
        if row.lease_owner not in (name, HOLD):
            return f"{ended}: until 10 min have passed, only {owner} takes the row over"
        return f"{ended}: {_held_up(status) or 'the row is fetched within seconds'}"
    if row.attempts < 0:  # before the due time, which is when the letter is tried again
        why = next((f" ({one.letters})" for one in status.replicas if one.letters), "")
        return f"failed for good: its dead letter waits to be written{why}: task-run db check"
    if row.due_at > row.now and row.lease_owner is None:
        left = span((row.due_at - row.now).total_seconds())
        failed = f"failed attempts since its last success: {row.attempts}"
        listed = remedies.command("task-run", "list", "--task", row.task or "")
        submitted = f"; a task may have it already: {listed}"
        return f"due in {left}; {failed}{submitted if row.task else ''}"
    if row.lease_owner not in (None, name):
        return f"waits in pipeline {row.lease_owner} for related rows, which others have"
    if not row.is_selected:
        return "due, but select() of its pipeline does not select it"
    if why := _stopped(status):
        return why
    if row.waiting_since is not None:
        since = span((row.now - row.waiting_since).total_seconds())
        return f"waits for its related rows for {since}: others have them, or have waited longer"
    if row.is_suspect:
        return "runs alone, as its process died: it starts when a process has ended its other rows"
    if row.wanted_by:
        return f"a row of pipeline {row.wanted_by} waits for this row, and goes first"
    return _held_up(status) or "next in line: it is fetched within seconds"


def _owner(owner: str) -> str:
    """Return who has a lease, in words."""
    if owner == HOLD:
        return "a program"
    pipeline, of, key = owner.partition(":")
    return f"row {key} of pipeline {pipeline}" if of else pipeline


def _stopped(status: PipelineStatus) -> str:
    """Return why no row of a pipeline is fetched, with the next step, or an empty text."""
    name = status.name
    if not status.replicas:
        return (
            f"no process runs its pipeline: {remedies.command('task-worker', '--pipelines', name)}"
        )
    if status.paused == BY_CONFIGURATION:
        return f"its pipeline is paused {status.paused}: remove `pause` from pipelines.{name}"
    if status.paused:
        is_all = status.paused.startswith(WITH_ALL)
        words = ("--all",) if is_all else ("--pipeline", name)
        resume = remedies.command("task-run", "resume", *words)
        return f"its pipeline is paused {status.paused}: {resume}"
    if status.problem:
        return f"its database fails: {status.problem}"
    return ""


def _held_up(status: PipelineStatus) -> str:
    """Return why a due row is not fetched, with the next step, or an empty text."""
    if why := _stopped(status):
        return why
    if status.is_busy:
        name, workers = status.name, sum(one.workers for one in status.replicas)
        return f"all {workers} workers are busy: raise `workers` of pipelines.{name}, or run more"
    return ""

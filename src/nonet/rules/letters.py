"""What a dead letter contains, and how letters are selected. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from nonet.base.messages.message import decode
from nonet.base.messages.repetition import Identity
from nonet.rules.pipelines import key_in, pipeline_of


class Status(StrEnum):
    """What happened to a dead letter."""

    #: not known to be resubmitted; with `DeadLetter.resubmitted_as`, a resubmission was started
    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"  #: resubmitted as `DeadLetter.resubmitted_as`
    FAILED = "FAILED"  #: resubmitted, and that task died as well; it has a row of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDeadLetter:
    """A task that failed for good, as a worker records it.

    Attributes:
        task_id: id of the task; identifies the letter together with ``generation``.
        generation: how often the task had been queued again.
        task_class: full name, ``category:Class``.
        task_args: the arguments as submitted, packed.
        submitted_at: when the task was first submitted.
        reason: ``retries``, ``crash``, ``worker-lost``, ``quarantined``, ``capacity`` …
        retry_count: retries used.
        max_retries: retries allowed; None if the policy sets no number.
        last_attempted_at: start of the last attempt; None if there was none.
        error_type: class name of the last exception.
        error_message: its text.
        traceback: its traceback, with secrets masked.
        history: one mapping for each attempt, oldest first; the last 100 are stored.
        labels: the labels of the submission.
        parent_id: the task that submitted this one.
        resubmitted_from: row of the letter that this task repeated.
        vo: virtual organisation.

    Long texts are stored without their middle, and NUL and lone surrogates are escaped, so that an
    odd error cannot prevent the record. Arguments and texts of errors may be encrypted, see
    `nonet.base.messages.documents`.
    """

    task_id: str
    generation: int
    task_class: str
    task_args: bytes = field(repr=False)
    submitted_at: datetime
    reason: str
    retry_count: int = 0
    max_retries: int | None = None
    last_attempted_at: datetime | None = None
    error_type: str = ""
    error_message: str = ""
    traceback: str = field(default="", repr=False)
    history: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, Any] = field(default_factory=dict)
    parent_id: str | None = None
    resubmitted_from: int | None = None
    vo: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter(NewDeadLetter):
    """A row of the table. In lists, arguments and traceback are empty.

    Attributes:
        id: number of the row; after ``TRUNCATE`` another letter may get it.
        namespace: namespace of the task.
        last_error: class and text of the last exception; the reason if there was none.
        resubmitted_as: the task that repeats it, or is about to.
        resubmissions: earlier resubmissions of this letter.
        fingerprint: the same for all letters with one cause, see `rules.fingerprints`.
        location: where in the user's code the error was raised, ``module:function``; or empty.
        note: what an operator wrote about it.
    """

    id: int
    namespace: str
    status: Status
    last_error: str
    resubmitted_as: str | None
    resubmissions: int
    created_at: datetime
    fingerprint: str = ""
    location: str = ""
    note: str = ""

    @property
    def pipeline(self) -> str | None:
        """The pipeline whose row failed; None: it is the letter of a task."""
        return pipeline_of(self.task_class)

    @property
    def row_key(self) -> str | None:
        """The primary key of the row that failed, as text; None: it is the letter of a task.

        Without `task_args`, as in lists, a long key is shortened.
        """
        if self.pipeline is None:
            return None
        if self.task_args:
            return str(decode(self.task_args)["key"])
        return key_in(self.task_id, self.pipeline)

    @property
    def identity(self) -> Identity:
        """What identifies it in any database."""
        return Identity(self.namespace, self.task_id, self.generation)


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterFilter:
    """Selects the letters that pass every filter; None: no filter.

    Attributes:
        status: what happened to the letter.
        task_class: full or bare class name.
        reason: why the task died.
        task_id: id of the task.
        died_before: select only older letters.
        died_after: select only newer letters.
        error: a part of the exception's class name, in any case.
        fingerprints: the fingerprints of the selected clusters.
        up_to: select no row with a higher number; such rows were added later.
        rows: the numbers of the selected rows.
    """

    status: str | None = None
    task_class: str | None = None
    reason: str | None = None
    task_id: str | None = None
    died_before: datetime | None = None
    died_after: datetime | None = None
    error: str | None = None
    fingerprints: tuple[str, ...] | None = None
    up_to: int | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Dead letters of the same class, exception and location.

    Attributes:
        fingerprint: the fingerprint that they share.
        newest: row of the newest letter; `task_class`, `error_type`, `reason`, `location` and
            `last_error` describe it.
        task_class: full name of the class.
        error_type: class name of the exception.
        reason: why the task died.
        location: where in the user's code the error was raised, ``module:function``; or empty.
        last_error: start of the error text of that letter.
        count: number of letters.
        statuses: number of letters in each status, including zeros.
        first: when the first of them died.
        last: when the last of them died.
        last_hour: how many died in the last hour.
        last_day: how many died in the last 24 hours.
        last_week: how many died in the last 7 days.
    """

    fingerprint: str
    newest: int
    task_class: str
    error_type: str
    reason: str
    location: str
    last_error: str
    count: int
    statuses: Mapping[Status, int]
    first: datetime
    last: datetime
    last_hour: int
    last_day: int
    last_week: int

    @property
    def shown_class(self) -> str:
        """The class for people."""
        return self.task_class or "(not decodable)"

    @property
    def cause(self) -> str:
        """The exception, or why the task died without one."""
        return self.error_type or self.reason

    @property
    def pending(self) -> int:
        """How many were not submitted again."""
        return self.statuses[Status.PENDING]

"""Repeats: the tasks that submit a dead letter, or an entry of the quarantine, once more.

The id of a repeat is derived from what is unique for ever. The number of a row is not: it is given
again after ``TRUNCATE``, and by a second database. A repeat also carries a mark, which no caller
can give a task, so that another task under the same id is not taken for it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum, auto
from typing import NamedTuple

from nonet.base.ids import id_of

_MARK_DIGITS = 32
_FINISHED = frozenset({"dead", "cancelled", "expired"})


class Known(NamedTuple):
    """What Redis or SQL knows under an id.

    Attributes:
        state: of the task; live or ended.
        mark: of what the task repeats; empty if it repeats nothing.
    """

    state: str
    mark: str


class Repeat(NamedTuple):
    """A task that repeats another one.

    Attributes:
        id: of the repeat.
        mark: tells that a task of this id is this repeat.
        row: of the dead letter; 0: it repeats none.
        resubmissions: how many repeats of the letter there were before it.
    """

    id: str
    mark: str
    row: int = 0
    resubmissions: int = 0

    @property
    def term(self) -> str:
        """The line that takes the mark into the record, see `nonet.messages.terms`."""
        return f"letter|{self.mark}"


class Identity(NamedTuple):
    """What tells a dead letter from all others, in whatever database it is.

    Attributes:
        namespace: of the task.
        task_id: of the task.
        generation: in which it died.
    """

    namespace: str
    task_id: str
    generation: int

    def repeat(self, resubmissions: int, *, row: int = 0) -> Repeat:
        """The task that submits it again after so many others.

        >>> letter = Identity("nonet", "first", 1767225600000000)
        >>> letter.repeat(0).id, letter.repeat(1).id
        ('dlq-29iy5g6wqth7ip9xgasp', 'dlq-rt2vpuzrmqrknu846yir')
        """
        parts = (*self, resubmissions)
        return Repeat(
            f"dlq-{id_of(_digest('id', *parts))}", _mark("letter", *parts), row, resubmissions
        )


def repeat_of_entry(namespace: str, entry: str) -> Repeat:
    """The task that an entry of the quarantine becomes: one for each entry, so that it runs once.

    >>> repeat_of_entry("nonet", "1767225600000-0").id
    'q-1767225600000-0'
    """
    return Repeat(f"q-{entry}", _mark("entry", namespace, entry))


def mark_in(terms: str) -> str:
    """The mark in the terms of a submission, or nothing.

    >>> mark_in("start_by|+5|\\nletter|0af3"), mark_in("")
    ('0af3', '')
    """
    lines = (line.partition("|") for line in terms.splitlines())
    return next((value for name, _, value in lines if name == "letter"), "")


class Step(StrEnum):
    """What is to be done to submit a letter again; those from `LIVE` on are refusals."""

    SUBMIT = auto()  #: submit the repeat
    RECORD = auto()  #: it is submitted: record that
    RAISE = auto()  #: submit the next repeat: one more was submitted before
    LIVE = auto()  #: its repeat has not ended
    DONE = auto()  #: its repeat is done
    ENDED = auto()  #: its repeat has ended otherwise
    FORGOTTEN = auto()  #: its repeat was submitted, and nothing is known of it
    UNSURE = auto()  #: its repeat may have been submitted, and nothing is known of it
    FOREIGN = auto()  #: another task has the id
    DIED = auto()  #: its repeat died, and has a letter of its own

    @property
    def is_refusal(self) -> bool:
        """Whether nothing is submitted or recorded."""
        return self not in (Step.SUBMIT, Step.RECORD, Step.RAISE)


class Progress(NamedTuple):
    """How far the row of a letter says that its resubmission has come.

    Attributes:
        status: ``PENDING``, ``DISPATCHED`` or ``FAILED``.
        submitted_as: id of its last repeat; empty: none. In a ``PENDING`` row it may have been
            submitted, and in others it was.
    """

    status: str
    submitted_as: str


def next_step(progress: Progress, repeat: Repeat, known: Known | None, *, again: bool) -> Step:
    """Decide what becomes of a letter that is to be submitted again.

    Args:
        repeat: the last one that was begun, or the first one.
        known: what is known under `submitted_as`, or else under the id of `repeat`.
        again: the caller wants one more where the last repeat will not be done as far as anybody
            can tell.
    """
    status, submitted_as = progress
    if status == "FAILED":
        return Step.DIED
    is_sent = status == "DISPATCHED"
    if known is None:
        if not is_sent:
            # Under the same id: Redis refuses the second of two who do this at the same time.
            return Step.SUBMIT if again or not submitted_as else Step.UNSURE
        return Step.RAISE if again else Step.FORGOTTEN
    # Releases without marks gave other ids; their rows say which.
    is_unmarked = is_sent and submitted_as != repeat.id
    if known.mark != repeat.mark and not is_unmarked:
        return Step.RAISE if again else Step.FOREIGN
    if known.state in _FINISHED:
        return Step.RAISE if again else Step.ENDED
    if not is_sent:
        return Step.RECORD
    return Step.DONE if known.state == "done" else Step.LIVE


def _mark(*parts: str | int) -> str:
    return _digest("mark", *parts).hex()[:_MARK_DIGITS]


def _digest(*parts: str | int) -> bytes:
    # A NUL is in no part: ids are printable, and so are names of namespaces.
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()

"""Ids and decisions to submit failed tasks, and requests with a key, at most once.

A failed task is a dead letter, an entry of the quarantine, or a task in the history. The new task
is called a repeat. Its id is derived from values that stay unique; a row number does not, because
``TRUNCATE`` or a second database can assign it again. A repeat also carries a mark, which callers
cannot set, so that another task with the same id is not mistaken for it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum, auto
from typing import NamedTuple

from nonet.base.ids import id_of

REPEATS_END = "again-"
"""The beginning of ids of repeats of failures in the history."""

_MARK_DIGITS = 32
_FINISHED = frozenset({"dead", "cancelled", "expired"})


class Known(NamedTuple):
    """What Redis or SQL knows under an id.

    Attributes:
        state: state of the task, live or ended.
        mark: mark of the letter or entry that the task repeats; empty if it repeats nothing.
    """

    state: str
    mark: str


class Repeat(NamedTuple):
    """A task that is submitted once: it repeats another one, or belongs to a request with a key.

    Attributes:
        id: id of the repeat.
        mark: distinguishes this repeat from another task with the same id.
        row: row of the dead letter; 0: the task repeats none.
        resubmissions: number of earlier repeats of the letter.
    """

    id: str
    mark: str
    row: int = 0
    resubmissions: int = 0

    @property
    def term(self) -> str:
        """The line of `nonet.base.messages.terms` that stores the mark in the record."""
        return f"letter|{self.mark}"


class Identity(NamedTuple):
    """The identity of a dead letter, independent of its database.

    Attributes:
        namespace: namespace of the task.
        task_id: id of the task.
        generation: generation in which the task died.
    """

    namespace: str
    task_id: str
    generation: int

    def repeat(self, resubmissions: int, *, row: int = 0) -> Repeat:
        """Return the repeat that follows this number of earlier ones.

        >>> letter = Identity("nonet", "first", 1767225600000000)
        >>> letter.repeat(0).id, letter.repeat(1).id
        ('dlq-29iy5g6wqth7ip9xgasp', 'dlq-rt2vpuzrmqrknu846yir')
        """
        parts = (*self, resubmissions)
        return Repeat(
            f"dlq-{id_of(_digest('id', *parts))}", _mark("letter", *parts), row, resubmissions
        )


def repeat_of_entry(namespace: str, entry: str) -> Repeat:
    """Return the repeat of a quarantined entry. Each entry has one, so that it runs only once.

    >>> repeat_of_entry("nonet", "1767225600000-0").id
    'q-1767225600000-0'
    """
    return Repeat(f"q-{entry}", _mark("entry", namespace, entry))


def repeat_of_end(namespace: str, task_id: str, life: str) -> Repeat:
    """Return the repeat of a failed task in the history. Each life of its id has one.

    >>> repeat_of_end("nonet", "first", "1767225600000000").id
    'again-vwfituf45z89egjpiwsq'
    """
    parts = (namespace, task_id, life)
    return Repeat(f"{REPEATS_END}{id_of(_digest('id of an end', *parts))}", _mark("end", *parts))


def repeat_of_live(namespace: str, task_id: str, request: str) -> Repeat:
    """Return the repeat of a task that has not ended.

    Args:
        request: identifies the request, so that a second one submits nothing.
    """
    parts = (namespace, task_id, request)
    return Repeat(f"copy-{id_of(_digest('id of a copy', *parts))}", _mark("copy", *parts))


def repeat_of_request(namespace: str, caller: str, key: str, number: int, body: bytes) -> Repeat:
    """Return a task of a request with an idempotency key.

    The key decides its id, and the body its mark.

    Args:
        caller: who sends the request; keys of different callers are independent.
        number: the place of the task in the request.
        body: the request in a canonical form.

    >>> first = repeat_of_request("nonet", "token:ci", "order-7", 0, b"{}")
    >>> first.id, first.mark == repeat_of_request("nonet", "token:ci", "order-7", 1, b"[]").mark
    ('key-d94s7nwqhhu43ngr2vqi', False)
    """
    # Callers choose the key, which may contain anything, so separate the parts by their lengths.
    parts = [f"{len(part)}:{part}" for part in (namespace, caller, key)]
    return Repeat(f"key-{id_of(_digest('id of a key', *parts, number))}", _mark("body", body.hex()))


def mark_in(terms: str) -> str:
    """Return the mark in the terms of a submission, or an empty string.

    >>> mark_in("start_by|+5|\\nletter|0af3"), mark_in("")
    ('0af3', '')
    """
    lines = (line.partition("|") for line in terms.splitlines())
    return next((value for name, _, value in lines if name == "letter"), "")


class Step(StrEnum):
    """The next step to submit a letter again. Steps from `LIVE` on are refusals."""

    SUBMIT = auto()  #: submit the repeat
    RECORD = auto()  #: the repeat was submitted: record that
    RAISE = auto()  #: submit the next repeat, because this one was submitted before
    LIVE = auto()  #: its repeat has not ended
    DONE = auto()  #: its repeat is done
    ENDED = auto()  #: its repeat has ended otherwise
    FORGOTTEN = auto()  #: its repeat was submitted, but is unknown by now
    UNSURE = auto()  #: its repeat may have been submitted, but is unknown by now
    FOREIGN = auto()  #: another task has the id
    DIED = auto()  #: its repeat died, and has a letter of its own

    @property
    def is_refusal(self) -> bool:
        """Whether this step submits and records nothing."""
        return self not in (Step.SUBMIT, Step.RECORD, Step.RAISE)


class Progress(NamedTuple):
    """The progress of a resubmission, as the row of a letter records it.

    Attributes:
        status: ``PENDING``, ``DISPATCHED`` or ``FAILED``.
        submitted_as: id of its last repeat; empty: none. In a ``PENDING`` row the repeat may have
            been submitted; in other rows it was.
    """

    status: str
    submitted_as: str


def next_step(progress: Progress, repeat: Repeat, known: Known | None, *, again: bool) -> Step:
    """Decide the next step to submit a letter again.

    Args:
        repeat: the last repeat that was begun, or the first one.
        known: what Redis or SQL knows under `submitted_as`, or else under the id of `repeat`.
        again: submit one more repeat if the last one failed or is unknown, or if a different task
            has its id.
    """
    status, submitted_as = progress
    if status == "FAILED":
        return Step.DIED
    is_sent = status == "DISPATCHED"
    if known is None:
        if not is_sent:
            # Use the same id: of two concurrent calls Redis refuses the second.
            return Step.SUBMIT if again or not submitted_as else Step.UNSURE
        return Step.RAISE if again else Step.FORGOTTEN
    if known.mark != repeat.mark:
        return Step.RAISE if again else Step.FOREIGN
    if known.state in _FINISHED:
        return Step.RAISE if again else Step.ENDED
    if not is_sent:
        return Step.RECORD
    return Step.DONE if known.state == "done" else Step.LIVE


def _mark(*parts: str | int) -> str:
    return _digest("mark", *parts).hex()[:_MARK_DIGITS]


def _digest(*parts: str | int) -> bytes:
    # No part contains a NUL, because ids and namespaces are printable.
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()

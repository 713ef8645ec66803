"""Which repeat of a dead letter comes next, and what distinguishes it from other tasks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nonet.base.messages.message import is_id
from nonet.base.messages.repetition import (
    Identity,
    Known,
    Progress,
    Step,
    next_step,
    repeat_of_entry,
)

LETTER = Identity("nonet", "first", 7)
REPEAT = LETTER.repeat(0)
OURS, THEIRS = REPEAT.mark, ""
NEW = Progress("PENDING", "")
BEGUN = Progress("PENDING", REPEAT.id)
SENT = Progress("DISPATCHED", REPEAT.id)

_parts = st.tuples(st.text(min_size=1).filter(lambda text: "\0" not in text), st.integers(0, 9))


@given(st.tuples(_parts, _parts, _parts), st.tuples(_parts, _parts, _parts))
def test_two_letters_have_no_id_and_no_mark_in_common(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    def repeat(parts: tuple) -> tuple[str, str]:  # type: ignore[type-arg]
        (namespace, _), (task, generation), (_, resubmissions) = parts
        made = Identity(namespace, task, generation).repeat(resubmissions)
        return made.id, made.mark

    def identity(parts: tuple) -> object:  # type: ignore[type-arg]
        (namespace, _), (task, generation), (_, resubmissions) = parts
        return namespace, task, generation, resubmissions

    same = identity(one) == identity(other)
    assert [a == b for a, b in zip(repeat(one), repeat(other), strict=True)] == [same, same]
    assert is_id(repeat(one)[0])


def test_the_row_of_a_letter_does_not_change_its_repeat() -> None:
    assert LETTER.repeat(0, row=1)[:2] == LETTER.repeat(0, row=2)[:2]
    assert repeat_of_entry("nonet", "1-0").mark != repeat_of_entry("other", "1-0").mark


@pytest.mark.parametrize(
    ("progress", "known", "step", "with_again"),
    [
        (NEW, None, Step.SUBMIT, Step.SUBMIT),
        (NEW, Known("queued", OURS), Step.RECORD, Step.RECORD),
        (NEW, Known("done", OURS), Step.RECORD, Step.RECORD),
        (NEW, Known("cancelled", OURS), Step.ENDED, Step.RAISE),
        (NEW, Known("queued", THEIRS), Step.FOREIGN, Step.RAISE),
        (NEW, Known("done", THEIRS), Step.FOREIGN, Step.RAISE),
        (BEGUN, None, Step.UNSURE, Step.SUBMIT),
        (BEGUN, Known("running", OURS), Step.RECORD, Step.RECORD),
        (BEGUN, Known("dead", OURS), Step.ENDED, Step.RAISE),
        (BEGUN, Known("running", THEIRS), Step.FOREIGN, Step.RAISE),
        (SENT, None, Step.FORGOTTEN, Step.RAISE),
        (SENT, Known("dying", OURS), Step.LIVE, Step.LIVE),
        (SENT, Known("done", OURS), Step.DONE, Step.DONE),
        (SENT, Known("expired", OURS), Step.ENDED, Step.RAISE),
        (SENT, Known("queued", THEIRS), Step.FOREIGN, Step.RAISE),
        (Progress("FAILED", REPEAT.id), Known("dead", OURS), Step.DIED, Step.DIED),
    ],
)
def test_the_next_step_follows_from_progress_and_the_known_task(
    progress: Progress, known: Known | None, step: Step, with_again: Step
) -> None:
    """Only what is verifiably the repeat is recorded, and only on demand there is one more."""
    assert next_step(progress, REPEAT, known, again=False) is step
    assert next_step(progress, REPEAT, known, again=True) is with_again

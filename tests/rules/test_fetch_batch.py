"""The size of the next fetch after lost replies: it fits the line, and grows back."""

from __future__ import annotations

from hypothesis import given, strategies as st

from nonet.rules.fetch_batch import Batch


@given(slots=st.integers(1, 200), carried=st.integers(1, 200), minutes=st.integers(1, 5))
def test_a_narrow_line_loses_few_replies(slots: int, carried: int, minutes: int) -> None:
    """Whatever it carries: a few replies are lost until it fits, then two a minute."""
    batch, lost, arrived = Batch(), 0, 0
    for second in range(60 * minutes):
        if (number := batch.of(slots)) > carried:
            batch.lost(number, second)
            lost += 1
        else:
            batch.arrived(number, second)
            arrived += number
    assert lost <= slots.bit_length() + 2 * minutes
    assert arrived > 0
    assert not batch.is_stuck


def test_a_batch_grows_back() -> None:
    """After one loss the worker soon fetches as many tasks as before."""
    batch = Batch()
    batch.lost(50, now=0.0)
    assert (batch.of(50), batch.is_narrow) == (25, False)
    batch.arrived(25, now=59.0)
    assert batch.of(50) == 25
    batch.arrived(25, now=60.0)
    assert (batch.of(50), batch.losses) == (50, 0)


def test_a_task_is_set_aside_after_three_losses_of_it_alone() -> None:
    """Not before, as networks lose replies, too; and another task gets as many tries."""
    batch, sets_aside = Batch(), []
    for _ in range(8):
        sets_aside.append(batch.is_stuck)
        batch.lost(1, now=0.0)
    assert sets_aside == [False, False, False, True, False, False, True, False]
    batch.arrived(1, now=1.0)
    assert not batch.is_stuck

"""At which times the letters of a filter are submitted again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.operate.resubmission import Pace

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_letter_that_is_not_submitted_costs_no_time() -> None:
    """The next letter gets the time that it gives back, also if it was the first."""
    pace = Pace(2, START)
    assert pace.next() is None
    pace.give_back()
    assert pace.next() is None
    assert pace.next() == START + timedelta(seconds=0.5)
    pace.give_back()
    assert pace.next() == START + timedelta(seconds=0.5)

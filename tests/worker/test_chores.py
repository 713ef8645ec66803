"""When an idle worker looks at Redis: as seldom as its promises allow."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nonet.worker.chores import pause_after_page, pause_beside

POLL = 2.05  # a blocking pop of 2 s, and the fetch after it


def looks(start: float, seconds: float) -> list[float]:
    """When it looks beside a reader that polls at 0, 2.05, 4.10 …"""
    at, found = start, []
    while at < seconds:
        found.append(at)
        at += pause_beside(at % POLL, 1.0)
    return found


@pytest.mark.parametrize("start", [0.0, 0.3, 0.7, 1.0, 1.2, 1.9, 2.04])
def test_it_looks_between_the_polls_of_its_reader(start: float) -> None:
    """One look for each poll, and a loss of data is seen about as soon as by a busy worker."""
    found = looks(start, 400.0)
    assert len(found) <= 400 / POLL + 2
    polls = [n * POLL for n in range(1, int(400 / POLL))]
    both = sorted(at for at in [*found, *polls] if at > 5)
    assert max(later - at for at, later in pairwise(both)) < 1.6


def test_it_looks_by_itself_when_its_reader_does_not() -> None:
    """A reader that stands aside, or has lost Redis, is nobody to share with."""
    assert pause_beside(10.0, 1.0) == 1.0


def test_the_walk_over_records_is_slow_where_redis_is() -> None:
    """It takes a few hundredths of the time of Redis, and comes to an end nevertheless."""
    assert pause_after_page(0.0001) == 0.1
    assert pause_after_page(0.01) == pytest.approx(0.3)
    assert pause_after_page(5.0) == 1.0

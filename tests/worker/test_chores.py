"""How often the chores of workers look at Redis."""

from __future__ import annotations

import pytest

from nonet.worker.chores import pause_after_page


def test_the_walk_over_records_pauses_longer_where_redis_is_slow() -> None:
    assert pause_after_page(0.0001) == 0.1
    assert pause_after_page(0.01) == pytest.approx(0.3)
    assert pause_after_page(5.0) == 1.0

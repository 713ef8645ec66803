"""Which reports of lost workers an overview counts as deaths."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.operate.overview import _is_back
from nonet.stores.namespace.events import Event

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("name", "since", "is_back"),
    [("7@host", AT - MINUTE, True), ("7@host", AT + MINUTE, False), ("8@host", AT - MINUTE, False)],
)
def test_a_worker_that_only_stood_still_has_not_died(
    name: str, since: datetime, is_back: bool
) -> None:
    """It is registered again; a later process may have its name."""
    lost = Event(AT, "worker-lost", "8@host", "7@host died with 2 tasks: a, b")
    assert _is_back(lost, {name: since}) is is_back

"""Where an attempt is made, by what its class says and what has become of earlier ones."""

from __future__ import annotations

from typing import Any

import pytest

from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.task import Isolation
from nonet.worker.attempt.place import Place, place_of

LOOP, CHILD, FRESH = Isolation.LOOP, Isolation.CHILD, Isolation.FRESH


def delivery(stream_key: str = "tasks:normal:small", **said: int) -> Delivery:
    return Delivery("a", "1", "1", stream_key, "1-0", b"", "", **said)


@pytest.mark.parametrize(
    ("said", "declared", "told", "expected"),
    [
        ({}, LOOP, None, Place.LOOP),
        ({}, CHILD, None, Place.CHILD),
        ({}, FRESH, None, Place.FRESH_CHILD),
        # The worker was told for all classes.
        ({}, FRESH, LOOP, Place.LOOP),
        ({}, LOOP, CHILD, Place.CHILD),
        ({"crashes": 1}, LOOP, LOOP, Place.LOOP),
        # A process died with it: it must not take the worker along.
        ({"crashes": 1}, LOOP, None, Place.FRESH_CHILD),
        ({"suspect": 1}, CHILD, None, Place.FRESH_CHILD),
        ({"suspect": 1, "stream_key": "suspects:normal:small"}, LOOP, None, Place.SUSPECTS),
        # It crashed, and only its policy is to be asked.
        ({"judge": True, "crashes": 1}, LOOP, None, Place.NONE_BUT_CHILD),
        ({"judge": True, "crashes": 1}, CHILD, LOOP, Place.NONE),
    ],
)
def test_the_place_of_an_attempt_follows_from_class_worker_and_crashes(
    said: dict[str, Any], declared: Isolation, told: Isolation | None, expected: Place
) -> None:
    assert place_of(delivery(**said), declared, told) is expected

"""Where an attempt is made."""

from __future__ import annotations

from enum import Enum, auto

from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.task import Isolation


class Place(Enum):
    """Where an attempt is made."""

    LOOP = auto()  # of this worker
    CHILD = auto()
    FRESH_CHILD = auto()  # a child process of its own
    SUSPECTS = auto()  # the lane of those with which a process died
    NONE = auto()  # nowhere: its process has died with it alone, and its policy is asked here
    NONE_BUT_CHILD = auto()  # nowhere, and its policy is asked in a child process


def place_of(delivery: Delivery, declared: Isolation, told: Isolation | None) -> Place:
    """Where to make the attempt of a delivery.

    Args:
        declared: as its class and the configuration say.
        told: as this worker was told for all classes, or None.
    """
    has_died = bool(delivery.suspect or delivery.crashes)
    if (told or declared) is Isolation.LOOP and (told is not None or not has_died):
        return Place.NONE if delivery.judge else Place.LOOP
    if delivery.judge:
        return Place.NONE_BUT_CHILD
    if not delivery.takes_slot:
        return Place.SUSPECTS
    if has_died or (told or declared) is Isolation.FRESH:
        return Place.FRESH_CHILD
    return Place.CHILD

"""Decide where an attempt runs: in the loop, in a child process, or nowhere."""

from __future__ import annotations

from enum import Enum, auto

from nonet.stores.queue.deliveries import Delivery, takes_slot
from nonet.tasks.task import Isolation


class Place(Enum):
    """Where an attempt runs."""

    LOOP = auto()  # the event loop of the worker
    CHILD = auto()  # a reusable child process
    FRESH_CHILD = auto()  # a child process for this attempt only
    SUSPECTS = auto()  # beside the slots, see `nonet.worker.suspects`
    NONE = auto()  # nowhere: it crashed its worker; the loop asks its retry policy
    NONE_BUT_CHILD = auto()  # the same, but a child process asks its retry policy


def place_of(delivery: Delivery, declared: Isolation, forced: Isolation | None) -> Place:
    """Return where to run a delivery.

    Args:
        declared: isolation of the class, with overrides.
        forced: isolation that the worker forces on all classes, or None.
    """
    has_died = bool(delivery.suspect or delivery.crashes)
    if (forced or declared) is Isolation.LOOP and (forced is not None or not has_died):
        return Place.NONE if delivery.judge else Place.LOOP
    if delivery.judge:
        return Place.NONE_BUT_CHILD
    if not takes_slot(delivery.stream_key):
        return Place.SUSPECTS
    if has_died or (forced or declared) is Isolation.FRESH:
        return Place.FRESH_CHILD
    return Place.CHILD

"""What becomes of occurrences that cannot run at their time. Only names: the scheduler decides."""

from __future__ import annotations

from enum import StrEnum


class Overlap(StrEnum):
    """What an occurrence does while the one before it is still running.

    Attributes:
        SKIP: it is not submitted, and recorded as skipped.
        QUEUE: it waits until the one before has ended.
        ALLOW: it is submitted, and runs at the same time if its locks permit it.

    Example:
        class Sweep(PeriodicBaseTask):
            _overlap = Overlap.QUEUE
    """

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """Which of the occurrences missed for longer than the misfire grace are still submitted.

    Attributes:
        ONE: the latest, which makes good for all of them; none if a younger one is submitted.
        SKIP: none.
        ALL: each of them, up to a bound.

    Example:
        class Bill(PeriodicBaseTask):
            _catch_up = CatchUp.ALL
            _catch_up_limit = 24
    """

    ONE = "one"
    SKIP = "skip"
    ALL = "all"

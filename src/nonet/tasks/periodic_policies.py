"""Names of the policies for occurrences that cannot run on time; the scheduler applies them."""

from __future__ import annotations

from enum import StrEnum


class Overlap(StrEnum):
    """What to do with an occurrence while the previous one still runs.

    Attributes:
        SKIP: do not submit it; record it as skipped.
        QUEUE: submit it when the previous one has ended.
        ALLOW: submit it; both run at the same time if their locks permit it.

    Example:
        class Sweep(PeriodicBaseTask):
            _overlap = Overlap.QUEUE
    """

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """Which occurrences to submit that were missed for longer than the misfire grace.

    Attributes:
        ONE: the latest, on behalf of all; none if a more recent one is submitted anyway.
        SKIP: none.
        ALL: all, up to ``_catch_up_limit``.

    Example:
        class Bill(PeriodicBaseTask):
            _catch_up = CatchUp.ALL
            _catch_up_limit = 24
    """

    ONE = "one"
    SKIP = "skip"
    ALL = "all"

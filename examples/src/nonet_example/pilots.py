"""Pilots: a port of `SubmitPilots` and `CheckPilotStatus` from the decision record.

The record shows three constructors for `SubmitPilots`. This is the third, an annotated field: the
configuration gives the pattern as text, and the task contains it compiled. A keyword-only
``__init__`` works as well. Two points are not in the record: the tasks fire every ten seconds, so
that a demonstration has something to show, and a pilot is checked only after it is committed.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Annotated

from nonet import (
    BaseLock,
    BaseTask,
    Depends,
    IntervalSecondsSchedule,
    LockedObjectType,
    PeriodicVoAwareBaseTask,
    RateLimiter,
    Size,
    TaskConfig,
    context,
)
from nonet_example.database import PilotDB

logger = logging.getLogger(__name__)


async def computing_elements() -> list[str]:
    """Stand in for a service that lists the computing elements."""
    return ["ce1.cern.ch", "ce2.cern.ch", "ce.gridpp.ral.ac.uk", "ce.nikhef.nl"]


class SubmitPilots(PeriodicVoAwareBaseTask):
    """Keep `pilots` pilots at each matching computing element, and return the number of new ones.

    The scheduler creates one instance per VO and entry as ``SubmitPilots(vo=…, **args)``, with the
    `args` of the entry in the configuration. The base class declares a mutex on class and VO, so
    two tasks of one VO never run at the same time, even if they belong to different entries.
    """

    ce_regex: re.Pattern[str] = re.compile(".*")
    pilots: int = 2

    size = Size.SMALL
    _schedule = IntervalSecondsSchedule(10)

    @staticmethod
    def validate_config(config: list[TaskConfig]) -> None:
        """Reject values that the types allow; `task-run config check` prints the error."""
        for entry in config:
            if not 1 <= int(entry.args.get("pilots", 2)) <= 100:
                raise ValueError("pilots must be 1 to 100 per computing element")

    async def execute(
        self, db: PilotDB, elements: Annotated[list[str], Depends(computing_elements)]
    ) -> int:
        new = 0
        for element in filter(self.ce_regex.fullmatch, elements):
            for _ in range(await db.count(self.vo, element), self.pilots):
                number = await db.add(self.vo, element)
                # Submit the check when this task settles, after its commit, so that no task checks
                # a pilot that was rolled back.
                context().after_commit(CheckPilotStatus(self.vo, number))
                new += 1
        logger.info(
            "%d new pilots for %s", new, self.vo
        )  # the log line includes id, class and attempt of the task
        return new


@dataclass
class CheckPilotStatus(BaseTask):
    """Check a pilot, and delete its row when it has ended; in this example, at once."""

    vo: str  # the limits of this VO apply, and this task counts towards them
    pilot: int

    size = Size.SMALL
    start_by = 600  # seconds; a task that has not started by then ends as `expired`

    @property
    def execution_locks(self) -> list[BaseLock]:
        # The default rate, which the configuration can override.
        name = type(self).__name__
        return [RateLimiter(LockedObjectType.TASK, name, limit=600, window_seconds=60)]

    async def execute(self, db: PilotDB) -> str:
        await db.forget(self.pilot)
        return "done"

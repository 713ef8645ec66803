"""Pilots: a port of `SubmitPilots` and `CheckPilotStatus` as the decision record sketches them.

The record shows three constructors for `SubmitPilots`. This is the third, an annotated field: the
compiled pattern travels, and the configuration gives it as text. The other two, an own
keyword-only ``__init__``, work as well. What the record leaves open is here: how often (each ten
seconds, so that there is something to see), and that a pilot is asked about once it is committed.
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
    """A stand-in for what knows them."""
    return ["ce1.cern.ch", "ce2.cern.ch", "ce.gridpp.ral.ac.uk", "ce.nikhef.nl"]


class SubmitPilots(PeriodicVoAwareBaseTask):
    """Keep pilots at the computing elements that match; how many are new.

    There is an instance for each VO, made as ``SubmitPilots(vo=…, **args)`` with the `args` of its
    entry in the configuration. A mutex on class and VO, which the base declares, keeps two of one
    VO apart, also if they are different entries.
    """

    ce_regex: re.Pattern[str] = re.compile(".*")
    pilots: int = 2

    size = Size.SMALL
    _schedule = IntervalSecondsSchedule(10)

    @staticmethod
    def validate_config(config: list[TaskConfig]) -> None:
        """Refuse what no validation of one argument sees: `task-run config check` says it."""
        for entry in config:
            if not 1 <= int(entry.args.get("pilots", 2)) <= 100:
                raise ValueError("pilots: 1 to 100 at a computing element")

    async def execute(
        self, db: PilotDB, elements: Annotated[list[str], Depends(computing_elements)]
    ) -> int:
        new = 0
        for element in filter(self.ce_regex.fullmatch, elements):
            for _ in range(await db.count(self.vo, element), self.pilots):
                number = await db.add(self.vo, element)
                # Submitted in the step that settles this task, after its commit: nobody asks for a
                # pilot that was rolled back.
                context().after_commit(CheckPilotStatus(self.vo, number))
                new += 1
        logger.info("%d new pilots for %s", new, self.vo)  # with id, class and attempt of the task
        return new


@dataclass
class CheckPilotStatus(BaseTask):
    """Ask what a pilot does, and forget it when it has ended: in this example, at once."""

    vo: str  # whose limits hold, and are counted
    pilot: int

    size = Size.SMALL
    start_by = 600  # seconds: an older question is of no use, the task ends `expired`

    @property
    def execution_locks(self) -> list[BaseLock]:
        # A rate of our own, which holds until the configuration says another one.
        name = type(self).__name__
        return [RateLimiter(LockedObjectType.TASK, name, limit=600, window_seconds=60)]

    async def execute(self, db: PilotDB) -> str:
        await db.forget(self.pilot)
        return "done"

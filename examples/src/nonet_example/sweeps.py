"""A periodic task that runs once per installation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet import CatchUp, CronSchedule, PeriodicBaseTask, Size, context
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile
from nonet_example.requests import MOST_FILES


@dataclass
class RemoveOldFiles(PeriodicBaseTask):
    """Have files removed that are older than so many days; how many. What is more waits a night.

    The scheduler submits it each night, exactly once, also if there are several schedulers. The
    configuration may give another schedule and another age.
    """

    days: int = 30

    size = Size.SMALL
    _schedule = CronSchedule("0 3 * * *", timezone="Europe/Zurich")
    _catch_up = CatchUp.SKIP  # a night without a scheduler is not made up for

    async def execute(self, db: FileDB) -> int:
        oldest = datetime.now(UTC) - timedelta(days=self.days)
        files = await db.registered_before(oldest, MOST_FILES)
        db.ask_for_removal(files)
        for file in files:
            context().after_commit(RemoveFile(file.storage_element, file.lfn))
        return len(files)

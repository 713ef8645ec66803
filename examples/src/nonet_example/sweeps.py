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
    """Request the removal of files older than `days`, and return their number.

    Each run requests at most `MOST_FILES`; the next night continues. The scheduler submits the
    task exactly once a night, even if several schedulers run. The configuration can set another
    schedule and another age.
    """

    days: int = 30

    size = Size.SMALL
    _schedule = CronSchedule("0 3 * * *", timezone="Europe/Zurich")
    _catch_up = CatchUp.SKIP  # do not catch up on nights without a scheduler

    async def execute(self, db: FileDB) -> int:
        oldest = datetime.now(UTC) - timedelta(days=self.days)
        files = await db.registered_before(oldest, MOST_FILES)
        db.ask_for_removal(files)
        for file in files:
            context().after_commit(RemoveFile(file.storage_element, file.lfn))
        return len(files)

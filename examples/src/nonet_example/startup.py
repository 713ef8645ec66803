"""A start-up hook: after a loss of Redis, resubmit pending removals from the database."""

from __future__ import annotations

from datetime import timedelta

from nonet import Epoch
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile

# Allow for clock differences between machines, and for MySQL, which rounds to whole seconds.
_MARGIN = timedelta(seconds=2)


async def submit_removals_again(epoch: Epoch, db: FileDB) -> None:
    """Resubmit removals that were requested before this epoch of Redis began.

    The leading scheduler calls the hook for each epoch until it succeeds, so the hook must be
    idempotent. The id contains the row and the epoch, so every call submits the same task.
    """
    for file in await db.asked_before(epoch.began + _MARGIN):
        task = RemoveFile(file.storage_element, file.lfn)
        await task.schedule(id=f"remove-{file.id}-{epoch.began:%Y%m%dT%H%M%S}")

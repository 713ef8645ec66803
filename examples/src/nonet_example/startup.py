"""A start-up hook: the database knows what is pending, so it is submitted again."""

from __future__ import annotations

from datetime import timedelta

from nonet import Epoch
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile

# Clocks of different machines differ, and MySQL rounds to whole seconds.
_MARGIN = timedelta(seconds=2)


async def submit_removals_again(epoch: Epoch, db: FileDB) -> None:
    """Have removed what was to be removed before Redis lost its data, or began.

    The leading scheduler calls it once for each epoch, and again until it succeeds. So it must be
    idempotent: an id that is made of row and epoch is the same task in each call.
    """
    for file in await db.asked_before(epoch.began + _MARGIN):
        task = RemoveFile(file.storage_element, file.lfn)
        await task.schedule(id=f"remove-{file.id}-{epoch.began:%Y%m%dT%H%M%S}")

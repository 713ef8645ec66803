"""A durable task: it is in SQL, too, until it has ended, so that no loss of Redis loses it."""

from __future__ import annotations

from dataclasses import dataclass

from nonet import BaseTask, ExponentialBackoff, Size, context
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile

MOST_FILES = 500  # so many tasks may be submitted with the end of one


@dataclass
class RemoveRequested(BaseTask):
    """Submit the removal of files of a VO; the ids of these tasks.

    It is submitted in the transaction that notes the request (`nonet_example.api`): there is a task
    if and only if there is a request.
    """

    vo: str
    lfns: list[str]

    size = Size.SMALL
    durable = True
    retry_policy = ExponentialBackoff(base_delay_seconds=10, max_retries=5)

    async def execute(self, db: FileDB) -> list[str]:
        files = await db.find(self.vo, self.lfns)
        return [
            context().after_commit(RemoveFile(file.storage_element, file.lfn)) for file in files
        ]

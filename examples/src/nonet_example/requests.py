"""A durable task: SQL also keeps it until it has ended, so it survives a loss of Redis."""

from __future__ import annotations

from dataclasses import dataclass

from nonet import BaseTask, ExponentialBackoff, Size, context
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile

MOST_FILES = 500  # one task may submit at most this many tasks when it settles


@dataclass
class RemoveRequested(BaseTask):
    """Submit the removal of files of a VO, and return the ids of the new tasks.

    `nonet_example.api` submits this task in the transaction that records the request, so either
    both exist or neither.
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

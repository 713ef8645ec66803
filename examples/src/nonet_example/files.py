"""Files at storage elements: a port of `RemoveFile` as the decision record sketches it.

A file has one owner at a time: a mutex on its LFN, wherever it is. A storage element gets so many
requests of a kind at a time as the configuration says: a concurrency limiter on the element, whose
last key is the action. The record leaves open who does the work, what is retried, and what becomes
of a file that cannot be removed: here that is a storage client, a policy of our own
(`nonet_example.retry`), and a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from nonet import (
    BaseLock,
    BaseTask,
    ConcurrencyLimiter,
    Depends,
    LockedObjectType,
    MutexLock,
    Priority,
    Size,
    context,
)
from nonet_example.database import FileDB
from nonet_example.locks import StorageElementAction
from nonet_example.retry import WhileUnavailable
from nonet_example.storage import Storage, storage


@dataclass
class _OneFile(BaseTask):
    """A request for a file at a storage element: what both tasks below have in common."""

    action: ClassVar[StorageElementAction]
    storage_element: str
    lfn: str

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [
            *super().execution_locks,  # the limiters of the class
            MutexLock(LockedObjectType.LFN, self.lfn),
            ConcurrencyLimiter(LockedObjectType.STORAGE_ELEMENT, self.storage_element, self.action),
        ]


@dataclass
class RemoveFile(_OneFile):
    """Delete a file; how many bytes that freed."""

    action = StorageElementAction.RemoveFile
    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = WhileUnavailable(every_seconds=30, max_retries=10)
    dlq_eligible = True  # who failed for good is a row in SQL: `task-run dlq list`
    soft_timeout = 60

    async def execute(
        self,
        db: FileDB,
        files: Annotated[Storage, Depends(storage, scope="process")],
    ) -> int:
        context().ensure_lease()  # the last look before what cannot be undone
        freed = await files.remove(self.storage_element, self.lfn)
        await db.removed(self.lfn)
        return freed


@dataclass
class CreateFile(_OneFile):
    """Write a file and look after it from then on; how many bytes it has."""

    vo: str
    content: bytes

    action = StorageElementAction.CreateFile
    size = Size.SMALL
    retry_policy = WhileUnavailable(every_seconds=30, max_retries=10)

    async def execute(
        self,
        db: FileDB,
        files: Annotated[Storage, Depends(storage, scope="process")],
    ) -> int:
        await db.add(self.lfn, self.vo, self.storage_element)
        return await files.create(self.storage_element, self.lfn, self.content)

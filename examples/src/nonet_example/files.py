"""Files at storage elements: a port of `RemoveFile` from the decision record.

A mutex on the LFN allows one task per file at a time, at whichever storage element it is. A
concurrency limiter bounds the simultaneous requests of one kind to a storage element; the last part
of its key is the action. The record leaves three questions open. This example answers them with a
storage client, its own retry policy (`nonet_example.retry`), and dead letters for files that cannot
be removed.
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
    """A request for a file at a storage element: the base of both tasks below."""

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
    """Delete a file, and return the number of bytes freed."""

    action = StorageElementAction.RemoveFile
    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = WhileUnavailable(every_seconds=30, max_retries=10)
    dlq_eligible = True  # a task that fails for good is kept in SQL: `task-run dlq list`
    soft_timeout = 60

    async def execute(
        self, db: FileDB, files: Annotated[Storage, Depends(storage, scope="process")]
    ) -> int:
        context().ensure_lease()  # last check before the irreversible step
        freed = await files.remove(self.storage_element, self.lfn)
        await db.removed(self.lfn)
        return freed


@dataclass
class CreateFile(_OneFile):
    """Write and register a file, and return its size in bytes."""

    vo: str
    content: bytes

    action = StorageElementAction.CreateFile
    size = Size.SMALL
    retry_policy = WhileUnavailable(every_seconds=30, max_retries=10)

    async def execute(
        self, db: FileDB, files: Annotated[Storage, Depends(storage, scope="process")]
    ) -> int:
        await db.add(self.lfn, self.vo, self.storage_element)
        return await files.create(self.storage_element, self.lfn, self.content)

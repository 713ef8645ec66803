"""A group: remove all files of a transformation, then submit one task to report the outcome."""

from __future__ import annotations

from dataclasses import dataclass

from nonet import (
    BaseLock,
    BaseTask,
    CallbackSpawner,
    ConcurrencyLimiter,
    LockedObjectType,
    Size,
    Unique,
    context,
)
from nonet_example.database import FileDB
from nonet_example.files import RemoveFile


@dataclass
class RemoveOutput(RemoveFile):
    """Remove a file of a transformation, under a limiter of the transformation."""

    transformation: int

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [
            *super().execution_locks,
            ConcurrencyLimiter(LockedObjectType.TRANSFORMATION, self.transformation),
        ]


@dataclass
class CleanTransformation(BaseTask):
    """Remove all files of a transformation, and return the id of the group.

    The task only reads the database, because its children may start before its transaction
    commits. A repeated execution finds the group that the first one opened.
    """

    transformation: int

    size = Size.SMALL
    unique = Unique.until_done()  # a second submission returns the existing task

    async def execute(self, db: FileDB, spawn: CallbackSpawner) -> str:
        number = self.transformation
        files = await db.of_transformation(number)
        return await spawn(
            [RemoveOutput(file.storage_element, file.lfn, number) for file in files],
            TransformationCleaned(number),
            on_failure=TransformationNotCleaned(number),
        )


@dataclass
class TransformationCleaned(BaseTask):
    """The callback after all children are done; returns the number of bytes that they freed."""

    transformation: int
    size = Size.SMALL

    async def execute(self) -> int:
        return sum([child.value for child in await context().group_results()])


@dataclass
class TransformationNotCleaned(BaseTask):
    """The callback if a child failed; returns the error of each failed child."""

    transformation: int
    size = Size.SMALL

    async def execute(self) -> list[str]:
        return [child.error for child in await context().group_results() if child.error]

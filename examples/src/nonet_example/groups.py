"""A group: all files of a transformation are removed, then exactly one task says how it went."""

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
    """Remove a file of a transformation, which gets so many slots as the configuration says."""

    transformation: int

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [
            *super().execution_locks,
            ConcurrencyLimiter(LockedObjectType.TRANSFORMATION, self.transformation),
        ]


@dataclass
class CleanTransformation(BaseTask):
    """Remove all that a transformation has written; the id of the group.

    It only reads: its children may begin before it has committed. If it is executed again, it finds
    the group that it opened.
    """

    transformation: int

    size = Size.SMALL
    unique = Unique.until_done()  # who asks twice gets the task that is there

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
    """The callback, submitted once every child is done; how many bytes they freed."""

    transformation: int
    size = Size.SMALL

    async def execute(self) -> int:
        return sum([child.value for child in await context().group_results()])


@dataclass
class TransformationNotCleaned(BaseTask):
    """Submitted instead if a child failed; why, for each that did."""

    transformation: int
    size = Size.SMALL

    async def execute(self) -> list[str]:
        return [child.error for child in await context().group_results() if child.error]

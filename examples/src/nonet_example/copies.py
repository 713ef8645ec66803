"""A workflow: copy all files of a transformation to another element, then report the outcome.

How many files there are is known when the first step has read the database, so that step adds one
step for each. A step that fails leaves the workflow failed, unless another step takes the failure
over, as `CopiesFailed` does here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nonet import (
    BaseLock,
    BaseTask,
    ConcurrencyLimiter,
    Depends,
    LockedObjectType,
    Size,
    Workflow,
    context,
    failed,
)
from nonet_example.database import FileDB
from nonet_example.locks import StorageElementAction
from nonet_example.retry import WhileUnavailable
from nonet_example.storage import Storage, storage


def copy_of(transformation: int, target: str) -> Workflow:
    """Return the workflow that copies a transformation; submit it to start it."""
    workflow = Workflow(f"copy transformation {transformation} to {target}")
    copied = workflow.step(CopyTransformation(transformation, target))
    workflow.step(CopiesDone.given(sizes=copied.added))
    workflow.step(CopiesFailed(), after=failed(copied))
    return workflow


@dataclass
class CopyTransformation(BaseTask):
    """Add a step for each file; the steps after this one wait for all of them."""

    transformation: int
    target: str
    size = Size.SMALL

    async def execute(self, db: FileDB) -> None:
        for file in await db.of_transformation(self.transformation):
            context().add_step(CopyFile(file.storage_element, self.target, file.lfn))


@dataclass
class CopyFile(BaseTask):
    """Copy a file to another element, and return its size in bytes."""

    source: str
    target: str
    lfn: str
    size = Size.SMALL
    retry_policy = WhileUnavailable(every_seconds=30, max_retries=10)

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [
            *super().execution_locks,
            ConcurrencyLimiter(
                LockedObjectType.STORAGE_ELEMENT, self.target, StorageElementAction.CreateFile
            ),
        ]

    async def execute(self, files: Annotated[Storage, Depends(storage, scope="process")]) -> int:
        return await files.copy(self.source, self.target, self.lfn)


@dataclass
class CopiesDone(BaseTask):
    """Return the number of bytes that were copied."""

    sizes: list[int]
    size = Size.SMALL

    async def execute(self) -> int:
        return sum(self.sizes)


@dataclass
class CopiesFailed(BaseTask):
    """Return how the step before ended."""

    size = Size.SMALL

    async def execute(self) -> list[str]:
        return [step.state for step in await context().inputs()]

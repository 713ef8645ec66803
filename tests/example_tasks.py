"""The tasks that config.example.yaml configures: category ``example_tasks``.

Each makes a file in ``EXAMPLE_PLACE`` when it begins, ``CLASS,OBJECT,ID``, and ends when there is a
file ``gate``.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nonet import (
    BaseLock,
    BaseTask,
    ConcurrencyLimiter,
    LockedObjectType,
    PeriodicVoAwareBaseTask,
    Size,
    context,
    register_locked_object_type,
)
from nonet.tasks.schedules import CronSchedule

register_locked_object_type("storage_element")


async def take_part(*names: str) -> None:
    """Be seen at work until the gate opens; without a place to be seen at, end at once."""
    place = os.environ.get("EXAMPLE_PLACE")
    if place is None:
        return
    (Path(place) / ",".join([*names, context().id])).touch()
    while not (Path(place) / "gate").exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.02)


@dataclass
class SubmitPilots(PeriodicVoAwareBaseTask):
    """Sends pilots to the computing elements of a VO."""

    vo: str
    ce_regex: re.Pattern[str] = re.compile(".*")
    size = Size.SMALL
    _schedule = CronSchedule("@daily")

    async def execute(self) -> str:
        return f"{self.vo}: {self.ce_regex.pattern}"


@dataclass
class CheckPilotStatus(BaseTask):
    """Asks for the state of one pilot."""

    vo: str
    pilot: int
    size = Size.SMALL

    async def execute(self) -> None:
        await take_part("CheckPilotStatus", self.vo)


@dataclass
class FileTask(BaseTask):
    """Base of what is done to a file at a storage element."""

    storage_element: str
    lfn: str
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        action = type(self).__name__
        return [
            *super().execution_locks,
            ConcurrencyLimiter(LockedObjectType.STORAGE_ELEMENT, self.storage_element, action),
        ]


@dataclass
class CreateFile(FileTask):
    """Uploads a file."""

    async def execute(self) -> None:
        await take_part("CreateFile", self.storage_element)


@dataclass
class RemoveFile(FileTask):
    """Deletes a file."""

    async def execute(self) -> None:
        await take_part("RemoveFile", self.storage_element)


@dataclass
class RunTransformation(BaseTask):
    """One step of a transformation."""

    transformation: int
    step: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [ConcurrencyLimiter(LockedObjectType.TRANSFORMATION, self.transformation)]

    async def execute(self) -> None:
        await take_part("RunTransformation", str(self.transformation))

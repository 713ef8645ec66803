"""Tasks in the shapes of those of DiracX itself: configuration, settings, own transactions."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from diracx.tasks.depends import CallbackSpawner, NoTransaction
from diracx.tasks.plumbing import StopRetryingError
from diracx.tasks.plumbing.base_task import BaseTask, PeriodicBaseTask
from diracx.tasks.plumbing.depends import AvailableSecurityProperties, Config, auto_inject
from diracx.tasks.plumbing.enums import Priority, Size
from diracx.tasks.plumbing.lock_registry import JOB
from diracx.tasks.plumbing.locks import BaseLock, MutexLock
from diracx.tasks.plumbing.retry_policies import ExponentialBackoff
from diracx.tasks.plumbing.schedules import CronSchedule
from fastapi import Depends
from mypackage.tables import ImageDB, LogDB, StarDB, StoreSettings


@dataclasses.dataclass
class CleanImages(PeriodicBaseTask):
    priority = Priority.BACKGROUND
    size = Size.MEDIUM
    retry_policy = ExponentialBackoff(base_delay_seconds=300, max_retries=3)
    default_schedule = CronSchedule("0 6 * * *")

    async def execute(
        self, image_db: Annotated[ImageDB, NoTransaction()], settings: StoreSettings
    ) -> str:
        for part in (1, 2):
            async with image_db:
                image_db.insert(f"cleaned part {part}")
        return settings.bucket


@dataclasses.dataclass
class Expose(BaseTask):
    job_id: int

    size = Size.MEDIUM

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(JOB, self.job_id)]

    async def execute(self, config: Config, image_db: ImageDB) -> str:
        if not self.job_id:
            raise StopRetryingError("there is no such job")
        image_db.insert(f"exposed {self.job_id}")
        return config.region


@dataclasses.dataclass
class Audit(BaseTask):
    size = Size.SMALL

    async def execute(self, properties: AvailableSecurityProperties, log_db: LogDB) -> list[str]:
        log_db.insert(f"{log_db.prefix}audited")
        return sorted(properties)


@auto_inject
async def brightest(star_db: StarDB) -> str:
    star_db.insert("asked for the brightest")
    return "vega"


@dataclasses.dataclass
class Combine(BaseTask):
    size = Size.SMALL

    async def execute(
        self,
        star: Annotated[str, Depends(brightest)],
        star_db: Annotated[StarDB, Depends(StarDB.transaction, scope="function")],
    ) -> str:
        star_db.insert(f"combined images of {star}")
        return star


@dataclasses.dataclass
class Mosaic(BaseTask):
    parts: int

    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> str:
        children = [Audit() for _ in range(self.parts)]
        return await spawn(children, Combine(), ttl_seconds=3600)

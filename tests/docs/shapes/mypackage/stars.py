"""Tasks in the shapes of the example extension: one-shot, periodic, for each VO, with children."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from diracx.tasks.plumbing.base_task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask
from diracx.tasks.plumbing.enums import Priority, Size
from diracx.tasks.plumbing.lock_registry import LockedObjectType
from diracx.tasks.plumbing.locks import BaseLock, MutexLock
from diracx.tasks.plumbing.retry_policies import ExponentialBackoff, NoRetry
from diracx.tasks.plumbing.schedules import CronSchedule, IntervalSeconds
from mypackage.lock_types import STAR
from mypackage.tables import MyStarDB, StarDB

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class SyncStar(BaseTask):
    name: str

    priority = Priority.NORMAL
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=3)
    dlq_eligible = True

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType(STAR), self.name)]

    async def execute(self, star_db: StarDB, **kwargs: Any) -> str:
        star_db.insert(self.name)
        return type(star_db).__name__


class CountStars(PeriodicBaseTask):
    size = Size.SMALL
    default_schedule = IntervalSeconds(3600)

    async def execute(self, star_db: StarDB, **kwargs: Any) -> int:
        return star_db.insert("counted")


@dataclasses.dataclass
class ReportStars(PeriodicVoAwareBaseTask):
    vo: str

    size = Size.SMALL
    default_schedule = CronSchedule("0 6 * * *")

    async def execute(self, star_db: MyStarDB, **kwargs: Any) -> str:
        star_db.insert(f"reported to {self.vo}")
        return self.vo


@dataclasses.dataclass
class Observe(BaseTask):
    telescope: str

    size = Size.SMALL
    retry_policy = NoRetry()
    dlq_eligible = False

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType(STAR), self.telescope)]

    async def execute(self, star_db: StarDB, **kwargs: Any) -> int:
        number = star_db.insert(f"observed by {self.telescope}")
        if self.telescope == "broken":
            raise RuntimeError("nothing of this is kept")
        return number


@dataclasses.dataclass
class PlanNight(PeriodicVoAwareBaseTask):
    vo: str

    size = Size.SMALL
    default_schedule = IntervalSeconds(60)

    async def execute(self, star_db: StarDB, **kwargs: Any) -> int:
        for telescope in ("north", "south"):
            await Observe(telescope=f"{telescope} of {self.vo}").schedule()
        return star_db.insert(f"planned for {self.vo}")

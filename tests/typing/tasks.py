"""What authors write, in every form that is accepted: type checkers must find nothing in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel

from nonet import (
    BaseLock,
    BaseTask,
    CallbackSpawner,
    CatchUp,
    ConcurrencyLimiter,
    CronSchedule,
    Depends,
    Epoch,
    ExclusiveRWLock,
    ExponentialBackoff,
    IntervalSeconds,
    Isolation,
    LockedObjectType,
    MutexLock,
    Overlap,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
    Priority,
    RateLimiter,
    RetryPolicyBase,
    RRuleSchedule,
    SharedRWLock,
    Size,
    TaskConfig,
    TaskContext,
    TaskScheduleBase,
    Unique,
    context,
    override_dependency,
    register_dependency,
    register_locked_object_type,
    startup_hook,
    task,
)

LFN = register_locked_object_type("lfn")


class FileDB:
    """A resource that is injected."""

    @classmethod
    async def session(cls) -> AsyncIterator[FileDB]:
        yield cls()


def settings() -> Iterator[dict[str, str]]:
    """A dependency that is a plain generator."""
    yield {}


register_dependency(FileDB, lambda cls: cls.session)


class LogDB:
    """Another one, whose provider reads what a parameter is marked with."""

    @classmethod
    async def session(cls) -> AsyncIterator[LogDB]:
        yield cls()


def opened(
    cls: type[LogDB], metadata: tuple[object, ...]
) -> Callable[[], AsyncIterator[LogDB] | LogDB]:
    """By its metadata."""
    return cls if "read only" in metadata else cls.session


register_dependency(LogDB, opened)
override_dependency(settings, lambda: {"region": "eu"})


class OnlyTimeouts(RetryPolicyBase):
    """A retry policy of one's own."""

    pause_seconds: float = 5

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        if isinstance(exception, TimeoutError):
            return datetime.now(UTC) + timedelta(seconds=self.pause_seconds)
        return None


@dataclass
class RemoveFile(BaseTask):
    """A dataclass with everything that a class may say."""

    lfn: str
    force: bool = False

    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=10, max_retries=5)
    dlq_eligible = True
    soft_timeout = 60
    hard_timeout = 90.0
    isolation = Isolation.CHILD
    memory_limit = "512MiB"
    cpu_limit = 30
    start_by = timedelta(hours=1)
    unique = Unique.until_start()
    durable = True
    min_version = "1.2"

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [
            *super().execution_locks,
            MutexLock(LockedObjectType.LFN, self.lfn),
            SharedRWLock(LFN, self.lfn, "metadata"),
            ExclusiveRWLock("lfn", self.lfn, ttl_ms=60_000),
            RateLimiter(LockedObjectType.TASK, "RemoveFile", n_items=2, limit=5, window_seconds=60),
            ConcurrencyLimiter(LockedObjectType.TASK, "RemoveFile", limit=5),
        ]

    async def execute(
        self,
        db: Annotated[FileDB, Depends(FileDB.session)],
        by_default: FileDB = Depends(FileDB.session),  # as FastAPI has it
        *,
        spawn: CallbackSpawner,
        running: TaskContext,
    ) -> int:
        context().ensure_lease()
        await running.checkpoint({"done": 1})
        return len(self.lfn)


@dataclass
class Count(BaseTask):
    """A plain function, which runs in a thread."""

    text: str

    retry_policy = OnlyTimeouts(pause_seconds=1)
    memory_limit = 2**30
    start_by = 60

    def execute(self, options: Annotated[dict[str, str], Depends(settings)]) -> str:
        return self.text


class Ask(BaseTask, BaseModel):
    """A pydantic model."""

    question: str

    async def execute(self) -> list[str]:
        return [self.question]


class Sweep(BaseTask):
    """Annotated, but not decorated; without a result."""

    async def execute(self) -> None:
        return None


class Own(BaseTask):
    """With a constructor of its own."""

    def __init__(self, *, number: int) -> None:
        self.number = number

    def execute(self, **ignored: Any) -> Awaitable[float]:
        return self.later()

    async def later(self) -> float:
        return self.number / 2


T = TypeVar("T")


@dataclass
class Keep(BaseTask, Generic[T]):
    """Generic in what it returns."""

    value: T

    async def execute(self) -> T:
        return self.value


class Changed(RemoveFile):
    """A subclass, which inherits what ``execute`` returns."""


class Every(PeriodicBaseTask):
    """A periodic task."""

    _schedule = CronSchedule("0 */6 * * *", "Europe/Zurich")
    _enabled = False
    _overlap = Overlap.QUEUE
    _catch_up = CatchUp.ALL
    _catch_up_limit = 3
    _jitter = 1.5

    @staticmethod
    def validate_config(config: list[TaskConfig]) -> None:
        if any(entry.enabled is False for entry in config):
            raise ValueError("never disable this")

    async def execute(self) -> int:
        return 1


class PerVo(PeriodicVoAwareBaseTask):
    """One for each VO."""

    default_schedule = RRuleSchedule("FREQ=DAILY")

    async def execute(self) -> str:
        return self.vo


class FullMoon(TaskScheduleBase):
    """A schedule of one's own."""

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        return IntervalSeconds(2_551_443).next_occurrence(after)


@startup_hook
async def reset(epoch: Epoch, db: Annotated[FileDB, Depends(FileDB.session)]) -> None:
    """A start-up hook keeps its type."""
    await Sweep().schedule(id=f"sweep-{epoch.began:%s}")


@task
async def add(a: int, b: int = 2) -> int:
    """A function without options."""
    return a + b


@task(
    size=Size.SMALL,
    priority=Priority.REALTIME,
    retry_policy=ExponentialBackoff(max_retries=2),
    locks=lambda path: [MutexLock(LockedObjectType.JOB, path)],
)
def lines(
    path: str,
    *,
    limit: int = 10,
    db: FileDB = Depends(FileDB.session),
    where: Annotated[dict[str, str], Depends(settings)] = Depends(),
    own: TaskContext = Depends(),
) -> list[str]:
    """A plain function with dependencies."""
    return [path] * limit


@task(schedule=CronSchedule("0 3 * * *"), start_by=60)
async def nightly() -> None:
    """A periodic one."""
    await lines("/a").schedule()

"""What examples in docstrings mention: tasks, databases and things that authors have anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet import (
    BaseTask,
    CallbackSpawner,
    PeriodicBaseTask,
    Size,
    TaskConfig,
    Unique,
    Workflow,
    context,
)


class SmallTask(BaseTask):
    """Base of those here; it is registered nowhere, as it executes nothing."""

    size = Size.SMALL


@dataclass
class Add(SmallTask):
    a: int
    b: int

    async def execute(self) -> int:
        return self.a + self.b


@dataclass
class RemoveFile(SmallTask):
    storage_element: str
    lfn: str

    async def execute(self) -> int:
        return len(self.lfn)


@dataclass
class SendInvoice(SmallTask):
    number: int
    recipient: str

    async def execute(self) -> int:
        return self.number


@dataclass
class Charge(SmallTask):
    number: int

    async def execute(self) -> None: ...


@dataclass
class SendMail(SmallTask):
    recipient: str

    async def execute(self) -> None: ...


@dataclass
class Refresh(SmallTask):
    customer: str

    unique = Unique.until_start()

    async def execute(self) -> None: ...


@dataclass
class Transfer(SmallTask):
    lfn: str

    async def execute(self) -> None: ...


@dataclass
class Hash(SmallTask):
    part: str

    async def execute(self) -> int:
        return hash(self.part)


@dataclass
class Extract(SmallTask):
    day: str

    async def execute(self) -> list[int]:
        return [1, 2]


@dataclass
class Load(SmallTask):
    rows: list[int]

    async def execute(self) -> int:
        return len(self.rows)


@dataclass
class Sum(SmallTask):
    numbers: list[int]

    async def execute(self) -> int:
        return sum(self.numbers)


@dataclass
class Resize(SmallTask):
    path: str

    async def execute(self) -> None: ...


class Alarm(SmallTask):
    async def execute(self) -> None: ...


class Apologise(Alarm):
    """Of a shop."""


class CleanUp(Alarm):
    """Of a shop, too."""


workflow = Workflow("order")
payment = workflow.step(Charge(7))


@dataclass
class Report(SmallTask):
    async def execute(self) -> int:
        return len(await context().group_results())


@dataclass
class HashAll(SmallTask):
    async def execute(self, spawn: CallbackSpawner) -> str:
        return await spawn([Hash("a"), Hash("b")], Report())


@dataclass
class Submit(SmallTask):
    job: int

    async def execute(self) -> None: ...


class SendReports(PeriodicBaseTask):
    @staticmethod
    def validate_config(config: list[TaskConfig]) -> None:
        assert all(isinstance(entry, TaskConfig) for entry in config)

    async def execute(self) -> None: ...


class SubmitPilots(SendReports):
    """The example of `nonet.TaskConfig`."""


class BaseDB:
    """Base of databases."""

    @classmethod
    def session(cls) -> Iterator[BaseDB]:
        yield cls()


class FileDB(BaseDB):
    """One of files."""

    async def count(self) -> int:
        return 0


class JobDB(BaseDB):
    """One of jobs."""

    async def clean(self) -> int:
        return 0

    async def received_again(self, pending_since_before: datetime) -> Sequence[int]:
        return [1, 2]


class InvoiceDB(BaseDB):
    """One of invoices."""

    async def clean(self) -> int:
        return 0

    async def unpaid(self, before: datetime) -> Sequence[int]:
        return [1, 2]


async def connection() -> AsyncIterator[InvoiceDB]:
    yield InvoiceDB()


@dataclass
class Config:
    """What an application reads from its source."""

    region: str


class ConfigSource:
    """Reads it."""

    @classmethod
    def create(cls) -> ConfigSource:
        return cls()


def next_full_moon(after: datetime) -> datetime:
    return max(after, datetime.now(UTC)) + timedelta(days=29)


async def copy(file: str) -> None:
    """Of one file."""

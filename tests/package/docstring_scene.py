"""What examples in docstrings mention: tasks, databases and things that authors have anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

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


def made(name: str, result: Any = None, **fields: Any) -> Any:
    """A task class with these arguments, which gives this result."""

    async def execute(self: SmallTask) -> Any:
        return result

    body = {"__annotations__": fields, "__module__": __name__, "execute": execute}
    return dataclass(type(name, (SmallTask,), body))


RemoveFile = made("RemoveFile", 7, storage_element=str, lfn=str)
SendInvoice = made("SendInvoice", 7, number=int, recipient=str)
Charge = made("Charge", number=int)
SendMail = made("SendMail", recipient=str)
Transfer = made("Transfer", lfn=str)
Hash = made("Hash", 7, part=str)
Extract = made("Extract", [1, 2], day=str)
Load = made("Load", 2, rows=list[int])
Sum = made("Sum", 3, numbers=list[int])
Resize = made("Resize", path=str)
Submit = made("Submit", job=int)


@dataclass
class Refresh(SmallTask):
    customer: str

    unique = Unique.until_start()

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

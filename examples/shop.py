"""A web shop that only pretends to work, so that the dashboard has all that it can show.

    task-run dev shop.py

Tasks sleep where real ones would call a server. Some fail, and some wait for each other; an order
waits until someone says on its page that it is packed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateIndex, CreateTable

from nonet import (
    BaseLock,
    BaseTask,
    CallbackSpawner,
    ConcurrencyLimiter,
    CronSchedule,
    ExponentialBackoff,
    IntervalSecondsSchedule,
    MutexLock,
    PeriodicBaseTask,
    Priority,
    RateLimiter,
    Size,
    Workflow,
    context,
    failed,
    load_settings,
    register_locked_object_type,
)
from nonet.pipelines import Changes, LeaseMixin, Pipeline, RowDatabase, Rows

CUSTOMER = register_locked_object_type("customer")
PARTNER = register_locked_object_type("partner")


@dataclass
class SendMail(BaseTask):
    """Send a mail."""

    to: str

    priority = Priority.REALTIME
    size = Size.SMALL

    async def execute(self) -> None:
        if "@" not in self.to:
            raise ValueError(f"{self.to} is no address")
        await asyncio.sleep(random.uniform(0.02, 0.3))


@dataclass
class ChargeCard(BaseTask):
    """Charge a customer: one order at a time."""

    customer: str
    order: int

    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [*super().execution_locks, MutexLock(CUSTOMER, self.customer)]

    async def execute(self) -> str:
        await asyncio.sleep(random.uniform(0.5, 2))
        return f"order {self.order} is paid"


@dataclass
class ImportFeed(BaseTask):
    """Import the prices of a partner, at a limited rate. Some partners send nonsense."""

    partner: str

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=3, max_retries=2)
    dlq_eligible = True

    @property
    def execution_locks(self) -> list[BaseLock]:
        locks = super().execution_locks
        return [*locks, RateLimiter(PARTNER, "all", limit=25, window_seconds=60)]

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(0.1, 0.5))
        match self.partner:
            case "acme":
                raise ValueError("line 17: the price is 'on request'")
            case "initech":
                raise TimeoutError("feeds.initech.example did not answer within 30 s")


@dataclass
class ResizeImage(BaseTask):
    """Resize an image; two at a time."""

    image: int

    priority = Priority.BACKGROUND

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [*super().execution_locks, ConcurrencyLimiter(PARTNER, "images", limit=2)]

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(1, 3))


@dataclass
class WriteReport(BaseTask):
    """Write a report, slowly, and say how far it is."""

    month: int

    size = Size.LARGE
    priority = Priority.BACKGROUND

    async def execute(self) -> str:
        for page in range(1, 31):
            context().progress(page / 30, f"page {page} of 30")
            await asyncio.sleep(1)
        return f"report-{self.month}.pdf"


@dataclass
class SendNewsletter(BaseTask):
    """Send mails as a group, and count them at the end."""

    number: int

    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> str:
        mails = [SendMail(f"reader-{reader}@example.org") for reader in range(12)]
        return await spawn(mails, CountMails(self.number))


@dataclass
class CountMails(BaseTask):
    """Count the mails of a newsletter."""

    number: int

    size = Size.SMALL

    async def execute(self) -> int:
        return len(await context().group_results())


class SyncStock(PeriodicBaseTask):
    """Read the stock of the warehouse."""

    size = Size.SMALL
    _schedule = IntervalSecondsSchedule(10)

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(1, 4))


class CleanUpBaskets(PeriodicBaseTask):
    """Delete old baskets, at night."""

    size = Size.SMALL
    _schedule = CronSchedule("30 3 * * *")

    async def execute(self) -> None:
        await asyncio.sleep(0.5)


class Base(DeclarativeBase):
    pass


class Parcel(LeaseMixin, Base):
    """A row for each parcel."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(20))


def _warehouse() -> str:
    """Return the URL of the database of parcels; make its table on the first use."""
    url = f"sqlite:///{load_settings().state_dir.absolute() / 'warehouse.db'}"
    engine, table = sa.create_engine(url), Rows(Parcel).table
    with engine.begin() as connection:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))
    engine.dispose()
    return url


warehouse = RowDatabase(_warehouse)


class ShipParcels(Pipeline[Parcel]):
    """Ship what is packed."""

    name = "parcels"
    model = Parcel
    database = warehouse
    workers = 3

    def select(self) -> sa.Select[Any]:
        return sa.select(Parcel).where(Parcel.status == "packed")

    async def process(self, row: Parcel) -> Changes:
        await asyncio.sleep(random.uniform(0.5, 3))
        return Changes(status="shipped").finish()


_seconds = itertools.count()  # since this worker began: it begins with everything


class OpenShop(PeriodicBaseTask):
    """Do the business of a second: submit the other tasks, for two tenants."""

    size = Size.SMALL
    _schedule = IntervalSecondsSchedule(1)

    async def execute(self) -> None:
        second = next(_seconds)
        labels = {"customer": f"c{second % 7}", "vo": ("books", "toys")[second % 2]}
        if second % 40 == 0:
            await SendMail("a reader").schedule(labels=labels)  # it fails
        for number in range(random.randint(1, 4)):
            await SendMail(f"buyer-{second}-{number}@example.org").schedule(labels=labels)
        await ChargeCard(f"c{second % 3}", second).schedule(labels=labels)
        if second % 3 == 0:
            await ResizeImage(second).schedule(labels=labels)
        if second % 5 == 0:
            delay = random.uniform(20, 90)
            await SendMail("me@example.org").schedule(labels=labels, delay=delay)
            await self._order(second)
        if second % 6 == 0:
            await ImportFeed(random.choice(["globex", "hooli", "acme", "initech"])).schedule()
        if second % 15 == 0:
            await SendNewsletter(second // 15).schedule()
            for order in range(8):
                await ChargeCard("c0", 1000 * second + order).schedule()
        if second % 40 == 0:
            await WriteReport(1 + second // 40 % 12).schedule()

    async def _order(self, second: int) -> None:
        """Let a workflow wait for a person, and a parcel for its pipeline."""
        order = Workflow("order")
        paid = order.step(ChargeCard(f"c{second % 3}", second))
        packed = order.event("packed", timeout=60, after=paid)
        order.step(SendMail("buyer@example.org"), after=packed)
        order.step(SendMail("warehouse@example.org"), after=failed(packed))
        await order.submit()
        async with warehouse.sessions() as session:
            session.add(Parcel(status="packed"))
            await session.commit()

"""The tables of this package, and the sessions through which tasks and routes use them.

They share the database of ``NONET_DB_URL`` with Nonet's own tables, so one transaction can commit a
row together with a durable task. ``python -m nonet_example.database`` creates the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Self

from sqlalchemy import NullPool, String, delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nonet import load_settings, register_dependency

PRESENT, REMOVING, REMOVED = "present", "removing", "removed"


class Base(DeclarativeBase):
    """Base of the tables."""


class File(Base):
    """A registered file. Times are in UTC, without a time zone."""

    __tablename__ = "example_files"

    id: Mapped[int] = mapped_column(primary_key=True)
    lfn: Mapped[str] = mapped_column(String(255), unique=True)
    vo: Mapped[str] = mapped_column(String(32))
    storage_element: Mapped[str] = mapped_column(String(64))
    transformation: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    registered: Mapped[datetime]
    asked: Mapped[datetime | None]  # when its removal was requested


class Pilot(Base):
    """A pilot job that was submitted to a computing element and has not ended."""

    __tablename__ = "example_pilots"

    id: Mapped[int] = mapped_column(primary_key=True)
    vo: Mapped[str] = mapped_column(String(32))
    computing_element: Mapped[str] = mapped_column(String(64))


def utc(instant: datetime) -> datetime:
    """Convert a time to the form that the tables store."""
    return instant.astimezone(UTC).replace(tzinfo=None)


class BaseDB:
    """Base of the dependencies of a task, as in ``async def execute(self, db: FileDB)``.

    Attributes:
        sql: the session, in a transaction.
    """

    def __init__(self, sql: AsyncSession) -> None:
        self.sql = sql

    @classmethod
    async def session(cls) -> AsyncIterator[Self]:
        """Open a session for one attempt of a task, or for one request of a route.

        The code after ``yield`` commits when `execute` has returned, before the task counts as
        done. If anything has failed, the exception is raised at the ``yield``, and the transaction
        rolls back. If the commit fails, the attempt fails.
        """
        async with AsyncSession(engine(), expire_on_commit=False) as sql, sql.begin():
            yield cls(sql)


class FileDB(BaseDB):
    """The table of files."""

    async def add(self, lfn: str, vo: str, storage_element: str, transformation: int = 0) -> None:
        """Register a file; a repeated call changes nothing."""
        file = await self.sql.scalar(select(File).where(File.lfn == lfn))
        if file is None:
            self.sql.add(file := File(lfn=lfn))
        if file.state != PRESENT:  # new, or removed earlier
            file.vo, file.storage_element, file.transformation = vo, storage_element, transformation
            file.state, file.registered, file.asked = PRESENT, utc(datetime.now(UTC)), None

    async def find(self, vo: str, lfns: Sequence[str]) -> Sequence[File]:
        """Return those of the named files that belong to a VO and are not removed."""
        wanted = select(File).where(File.vo == vo, File.lfn.in_(lfns), File.state != REMOVED)
        return (await self.sql.scalars(wanted)).all()

    async def of_transformation(self, number: int) -> Sequence[File]:
        """Return the files of a transformation that are not removed."""
        wanted = select(File).where(File.transformation == number, File.state != REMOVED)
        return (await self.sql.scalars(wanted)).all()

    async def registered_before(self, instant: datetime, limit: int) -> Sequence[File]:
        """Return the oldest files whose removal is not requested."""
        wanted = select(File).where(File.state == PRESENT, File.registered < utc(instant))
        return (await self.sql.scalars(wanted.order_by(File.id).limit(limit))).all()

    async def asked_before(self, instant: datetime) -> Sequence[File]:
        """Return the unremoved files whose removal was requested before this time."""
        wanted = select(File).where(File.state == REMOVING, File.asked <= utc(instant))
        return (await self.sql.scalars(wanted)).all()

    def ask_for_removal(self, files: Iterable[File]) -> None:
        """Mark files for removal."""
        for file in files:
            file.state, file.asked = REMOVING, utc(datetime.now(UTC))

    async def removed(self, lfn: str) -> None:
        """Mark a file as removed."""
        await self.sql.execute(update(File).where(File.lfn == lfn).values(state=REMOVED))


class PilotDB(BaseDB):
    """The table of pilots."""

    async def count(self, vo: str, computing_element: str) -> int:
        """Count the pilots of a VO at a computing element."""
        wanted = select(Pilot.id).where(
            Pilot.vo == vo, Pilot.computing_element == computing_element
        )
        return len((await self.sql.scalars(wanted)).all())

    async def add(self, vo: str, computing_element: str) -> int:
        """Insert a pilot, and return its number."""
        pilot = Pilot(vo=vo, computing_element=computing_element)
        self.sql.add(pilot)
        await self.sql.flush()
        return pilot.id

    async def forget(self, number: int) -> None:
        """Delete a pilot that has ended."""
        await self.sql.execute(delete(Pilot).where(Pilot.id == number))


def register() -> None:
    """Register the dependencies of this package: the entry point ``nonet.dependencies``.

    A parameter that is annotated with a subclass of `BaseDB` receives a session of that subclass.
    Nonet calls the function once for each such subclass.
    """
    register_dependency(BaseDB, lambda cls: cls.session)


@cache
def engine() -> AsyncEngine:
    """Create the engine. Each session opens its own connection, so there is no pool to close.

    A busy application needs a pool. In that case make the engine a dependency with
    ``scope="process"``, as in `nonet_example.storage`, and dispose of it after its ``yield``.
    """
    return create_async_engine(load_settings().sql_url(), poolclass=NullPool)


async def create_tables() -> None:
    """Create missing tables. In production, use alembic."""
    load_settings().state_dir.mkdir(parents=True, exist_ok=True)  # SQLite may be in this directory
    async with engine().begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


if __name__ == "__main__":
    asyncio.run(create_tables())

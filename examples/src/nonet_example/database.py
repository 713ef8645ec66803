"""The tables of this package, and how tasks and routes get at them.

They are in the database of ``NONET_DB_URL``, beside those of Nonet: so a row and a durable task can
be committed together. ``python -m nonet_example.database`` makes them.
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
    """A file that we look after. Times are in UTC, without saying so."""

    __tablename__ = "example_files"

    id: Mapped[int] = mapped_column(primary_key=True)
    lfn: Mapped[str] = mapped_column(String(255), unique=True)
    vo: Mapped[str] = mapped_column(String(32))
    storage_element: Mapped[str] = mapped_column(String(64))
    transformation: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    registered: Mapped[datetime]
    asked: Mapped[datetime | None]  # since when it is to be removed


class Pilot(Base):
    """A pilot job that was submitted to a computing element and has not ended."""

    __tablename__ = "example_pilots"

    id: Mapped[int] = mapped_column(primary_key=True)
    vo: Mapped[str] = mapped_column(String(32))
    computing_element: Mapped[str] = mapped_column(String(64))


def utc(instant: datetime) -> datetime:
    """As the tables have it."""
    return instant.astimezone(UTC).replace(tzinfo=None)


class BaseDB:
    """Base of what a task may ask for: ``async def execute(self, db: FileDB)``.

    Attributes:
        sql: the session, in a transaction.
    """

    def __init__(self, sql: AsyncSession) -> None:
        self.sql = sql

    @classmethod
    async def session(cls) -> AsyncIterator[Self]:
        """One for each attempt, or for each request of a route.

        What follows ``yield`` runs when `execute` has returned, before the task counts as done:
        it commits. If anything has failed, that is raised at the ``yield``: it rolls back. A
        commit that fails is a failed attempt.
        """
        async with AsyncSession(engine(), expire_on_commit=False) as sql, sql.begin():
            yield cls(sql)


class FileDB(BaseDB):
    """The files."""

    async def add(self, lfn: str, vo: str, storage_element: str, transformation: int = 0) -> None:
        """Look after a file from now on. To do so again changes nothing."""
        file = await self.sql.scalar(select(File).where(File.lfn == lfn))
        if file is None:
            self.sql.add(file := File(lfn=lfn))
        if file.state != PRESENT:  # new, or removed before
            file.vo, file.storage_element, file.transformation = vo, storage_element, transformation
            file.state, file.registered, file.asked = PRESENT, utc(datetime.now(UTC)), None

    async def find(self, vo: str, lfns: Sequence[str]) -> Sequence[File]:
        """Those of these files that a VO has."""
        wanted = select(File).where(File.vo == vo, File.lfn.in_(lfns), File.state != REMOVED)
        return (await self.sql.scalars(wanted)).all()

    async def of_transformation(self, number: int) -> Sequence[File]:
        """Its files that are not removed yet."""
        wanted = select(File).where(File.transformation == number, File.state != REMOVED)
        return (await self.sql.scalars(wanted)).all()

    async def registered_before(self, instant: datetime, limit: int) -> Sequence[File]:
        """The oldest files that nobody has asked to remove."""
        wanted = select(File).where(File.state == PRESENT, File.registered < utc(instant))
        return (await self.sql.scalars(wanted.order_by(File.id).limit(limit))).all()

    async def asked_before(self, instant: datetime) -> Sequence[File]:
        """Files that are to be removed, and have been since before then."""
        wanted = select(File).where(File.state == REMOVING, File.asked <= utc(instant))
        return (await self.sql.scalars(wanted)).all()

    def ask_for_removal(self, files: Iterable[File]) -> None:
        """From now on they are to be removed."""
        for file in files:
            file.state, file.asked = REMOVING, utc(datetime.now(UTC))

    async def removed(self, lfn: str) -> None:
        """It is gone."""
        await self.sql.execute(update(File).where(File.lfn == lfn).values(state=REMOVED))


class PilotDB(BaseDB):
    """The pilots."""

    async def count(self, vo: str, computing_element: str) -> int:
        """How many a VO has at a computing element."""
        wanted = select(Pilot.id).where(
            Pilot.vo == vo, Pilot.computing_element == computing_element
        )
        return len((await self.sql.scalars(wanted)).all())

    async def add(self, vo: str, computing_element: str) -> int:
        """The number of a new one."""
        pilot = Pilot(vo=vo, computing_element=computing_element)
        self.sql.add(pilot)
        await self.sql.flush()
        return pilot.id

    async def forget(self, number: int) -> None:
        """It has ended."""
        await self.sql.execute(delete(Pilot).where(Pilot.id == number))


def register() -> None:
    """The entry point ``nonet.dependencies``: whoever asks for a `BaseDB` gets its session.

    The function is asked for the dependency of each subclass that a parameter is annotated with.
    """
    register_dependency(BaseDB, lambda cls: cls.session)


@cache
def engine() -> AsyncEngine:
    """Each session opens a connection of its own: nothing is left to close, in any event loop.

    A busy application wants a pool. Then make it a dependency with ``scope="process"``, as
    `nonet_example.storage` is one, and dispose of it behind its ``yield``.
    """
    return create_async_engine(load_settings().sql_url(), poolclass=NullPool)


async def create_tables() -> None:
    """Make what is missing. In production: alembic."""
    load_settings().state_dir.mkdir(parents=True, exist_ok=True)  # where SQLite may be
    async with engine().begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


if __name__ == "__main__":
    asyncio.run(create_tables())

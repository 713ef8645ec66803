"""Tables and pipelines for the tests: fleets have instances, jobs share instances."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nonet.pipelines import Changes, Children, LeaseMixin, Pipeline, RowDatabase, Shared
from nonet.pipelines.loading import Pipelines


class Base(DeclarativeBase):
    """The tables of the tests."""


class Fleet(LeaseMixin, Base):
    """Has instances."""

    __tablename__ = "fleets"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(20), default="new")
    at: Mapped[str | None] = mapped_column(sa.String(40))


class Instance(LeaseMixin, Base):
    """Belongs to a fleet; jobs share it."""

    __tablename__ = "instances"
    id: Mapped[int] = mapped_column(primary_key=True)
    fleet_id: Mapped[int | None] = mapped_column(index=True)
    status: Mapped[str] = mapped_column(sa.String(20), default="new")


class Job(LeaseMixin, Base):
    """Runs on an instance."""

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    instance_id: Mapped[int | None] = mapped_column(index=True)
    status: Mapped[str] = mapped_column(sa.String(20), default="new")


class Event(Base):
    """What happened."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(sa.String(40))
    at: Mapped[datetime | None]


class Fleets(Pipeline[Fleet]):
    """Leases a fleet with all of its instances."""

    name = "fleets"
    model = Fleet
    related = (Children(Instance, Instance.fleet_id),)

    async def process(self, row: Fleet) -> Changes:
        """Finish it."""
        return Changes(status="done").finish()


class Instances(Pipeline[Instance]):
    """Processes instances by themselves."""

    name = "instances"
    model = Instance

    async def process(self, row: Instance) -> Changes:
        """Finish it."""
        return Changes(status="done").finish()


class Jobs(Pipeline[Job]):
    """Leases a job with its instance."""

    name = "jobs"
    model = Job
    related = (Shared(Instance, Job.instance_id),)

    async def process(self, row: Job) -> Changes:
        """Finish it."""
        return Changes(status="done").finish()


def on(database: RowDatabase, *classes: type[Pipeline[Any]], **attributes: Any) -> Pipelines:
    """The pipelines on a database, with other attributes."""
    given = {"database": database, "__module__": __name__, **attributes}
    return Pipelines(type(cls.__name__, (cls,), dict(given)) for cls in classes)

"""A pipeline for the tests of ``task-run pipelines``, on the database ``ROWS_URL``."""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nonet.pipelines import Changes, LeaseMixin, Pipeline, RowDatabase

# A command that gets a variable with this prefix may be preloaded.
database = RowDatabase(lambda: os.environ.get("PROBE_ROWS_URL") or os.environ["ROWS_URL"])


class Base(DeclarativeBase):
    """The tables."""


class Volume(LeaseMixin, Base):
    """A row."""

    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(20), default="new")


class Volumes(Pipeline[Volume]):
    """Creates volumes."""

    name = "volumes"
    model = Volume
    database = database

    async def process(self, row: Volume) -> Changes:
        """Finish it."""
        return Changes(status="done").finish()

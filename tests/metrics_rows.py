"""A pipeline for `metrics_names`, on a SQLite file."""

from __future__ import annotations

import os

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nonet.pipelines import Changes, LeaseMixin, Pipeline, RowDatabase

database = RowDatabase(lambda: os.environ["ROWS_DB_URL"])


class Base(DeclarativeBase):
    """The table."""


class Watched(LeaseMixin, Base):
    """A row."""

    __tablename__ = "watched"
    id: Mapped[int] = mapped_column(primary_key=True)


class WatchedRows(Pipeline[Watched]):
    """Finishes each row."""

    name = "watched"
    model = Watched
    database = database

    async def process(self, row: Watched) -> Changes:
        """Finish it."""
        return Changes().finish()

"""Transfers of files: a pipeline that polls each of them until it has ended.

``task-worker --pipelines transfers`` runs it. A program adds a row to start a transfer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from nonet import Depends, ExponentialBackoff, load_settings
from nonet.pipelines import NOW, Changes, LeaseMixin, Pipeline, RowDatabase
from nonet_example.database import Base

WAITING, RUNNING, DONE = "waiting", "running", "done"
_POLL_SECONDS = 5.0

database = RowDatabase(lambda: load_settings().sql_url())


class Transfer(LeaseMixin, Base):
    """A file that is copied from one storage element to another."""

    __tablename__ = "example_transfers"

    id: Mapped[int] = mapped_column(primary_key=True)
    lfn: Mapped[str] = mapped_column(sa.String(255))
    source: Mapped[str] = mapped_column(sa.String(64))
    target: Mapped[str] = mapped_column(sa.String(64))
    state: Mapped[str] = mapped_column(sa.String(16), default=WAITING)
    ended: Mapped[datetime | None]


class Mover:
    """The service that copies files; this one is quick."""

    async def start(self, number: int, lfn: str, source: str, target: str) -> None:
        """Start a transfer; starting it again changes nothing."""

    async def has_ended(self, number: int) -> bool:
        """Whether a transfer has ended."""
        return True


def mover() -> Mover:
    """Provide the service; tests replace it."""
    return Mover()


class RunTransfers(Pipeline[Transfer]):
    """Starts transfers, and looks at them every few seconds until they have ended."""

    name = "transfers"
    model = Transfer
    database = database
    workers = 20
    retry_policy = ExponentialBackoff(base_delay_seconds=5, max_retries=10, cap=300)

    async def process(self, row: Transfer, mover: Annotated[Mover, Depends(mover)]) -> Changes:
        """Start a transfer, or look whether it has ended."""
        if row.state == WAITING:
            # May happen twice after a crash, so the service gets the number of the row.
            await mover.start(row.id, row.lfn, row.source, row.target)
            return Changes(state=RUNNING).again(_POLL_SECONDS)
        if await mover.has_ended(row.id):
            return Changes(state=DONE, ended=NOW).finish()
        return Changes().again(_POLL_SECONDS)

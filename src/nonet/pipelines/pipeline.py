"""`Pipeline`: the class that authors write to process the rows of a table continuously."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.pipelines.changes import Changes
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.related import Related
from nonet.pipelines.table_keys import key_of, table_of
from nonet.tasks.retry import ExponentialBackoff, RetryPolicyBase

logger = logging.getLogger(__name__)

Row = TypeVar("Row")


class Pipeline(Generic[Row]):
    """Processes the due rows of one table, continuously and each by one worker at a time.

    For each due row the framework leases the row, loads it, calls `process` outside any
    transaction, and applies the returned `Changes` if the lease still holds. Leases are renewed
    while `process` runs; if one is lost, `process` is cancelled and nothing is written.

    Attributes:
        name: unique name, by default that of the class.
        model: the mapped class, with `LeaseMixin` and a primary key of one column.
        database: where its rows are.
        workers: how many rows one process processes at once.
        queue: how many rows one process leases at most, in addition to those in process, at least
            1; None: twice `workers`.
        interval: seconds until a processed row is due again, unless `Changes` says otherwise.
        lease: seconds for which a row is leased; it is renewed at a third of it. The rows of a
            process that was killed are processed again after this time.
        timeout: seconds after which `process` is cancelled and has failed; None: no limit.
        retry_policy: decides when a row is due again after `process` has failed.
        max_attempts: a row becomes a dead letter after this many attempts without a success. An
            attempt whose process died counts if the row ran alone, as it does after such a death.
        related: rows that are leased together with the row: `Children` and `Shared`.
        process_as: a subclass of `RowTask`; each row is then processed by such a task, in a worker
            of its size and under its locks. None: in this process.

    Example:
        class ProvisionVolumes(Pipeline[Volume]):
            model = Volume
            database = database
            workers = 20

            def select(self) -> sa.Select[Any]:
                return sa.select(Volume).where(Volume.status == "creating")

            async def process(self, row: Volume, cloud: Annotated[Cloud, Depends(cloud)]):
                disk = await cloud.create(row.gigabytes)
                return Changes(status="active", disk=disk, active_at=NOW).finish()
    """

    # Modules that are named with --tasks may define pipelines only.
    nonet_component: ClassVar[bool] = True
    name: ClassVar[str] = ""
    model: ClassVar[Any]
    database: ClassVar[RowDatabase]
    workers: ClassVar[int] = 10
    queue: ClassVar[int | None] = None
    interval: ClassVar[float] = 60.0
    lease: ClassVar[float] = 30.0
    timeout: ClassVar[float | None] = None
    retry_policy: ClassVar[RetryPolicyBase] = ExponentialBackoff(
        base_delay_seconds=10, max_retries=8, cap=300
    )
    max_attempts: ClassVar[int] = 10
    related: ClassVar[tuple[Related, ...]] = ()
    process_as: ClassVar[type[Any] | None] = None

    def select(self) -> sa.Select[Any]:
        """Select the rows that are ready to be processed; the framework adds that they are due.

        The oldest due row is processed first. With an ``order_by`` of your own, an index of the
        table must begin with its columns.
        """
        return sa.select(self.model)

    def load(self, key: Any) -> sa.Select[Any]:
        """Select a leased row for `process`. Override it to load relationships too.

        Example:
            def load(self, key: int) -> sa.Select[Any]:
                return super().load(key).options(selectinload(Volume.disks))
        """
        return sa.select(self.model).where(key_of(table_of(self.model)) == key)

    def needs_related(self, row: Row) -> bool:
        """Whether the rows in `related` must be leased to process this row."""
        return True

    # Authors declare dependencies as further parameters.
    process: Any
    """Process a row; a coroutine function, which the author defines.

    The row is detached: it has the columns and relationships that `load` selects, and changes of it
    are refused. Further parameters are injected like those of ``execute``. It may run again after
    a crash, so effects outside of the database must be safe to repeat.

    Returns:
        `Changes`, or None for no changes.
    """

    async def apply(self, session: AsyncSession, row: Row, changes: Changes) -> None:
        """Execute further statements in the transaction that applies the changes.

        It is called after the lease was checked and the changes were written. The transaction may
        be repeated after a conflict or an outage, so do nothing else here.
        """

    async def on_stale(self, row: Row, changes: Changes | None) -> None:
        """Revert or report what `process` did outside of the database: its changes are void.

        By default this logs a warning. Another worker may have begun to process the row.

        Args:
            changes: what `process` returned; None: it was cancelled.
        """
        key = getattr(row, str(key_of(table_of(self.model)).key), None)
        logger.warning("row result discarded, its lease was lost: pipeline=%s key=%s", self, key)

    def __str__(self) -> str:
        return self.name

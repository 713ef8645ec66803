"""`Pipeline`: the class that authors write to process the rows of a table continuously."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import RegistrationError
from nonet.pipelines.changes import Changes
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.keys import is_leading, key_of, table_of
from nonet.pipelines.related import Related
from nonet.tasks.retry import ExponentialBackoff, RetryPolicyBase

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

_NAME_LENGTH = 60
_NAME_CHARACTERS = "letters, digits, '.', '_' and '-'"


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
        queue: how many rows one process leases at most, in addition to those in process; None:
            twice `workers`.
        interval: seconds until a processed row is due again, unless `Changes` says otherwise.
        lease: seconds for which a row is leased; it is renewed at a third of it. The rows of a
            process that was killed are processed again after this time.
        timeout: seconds after which `process` is cancelled and has failed; None: no limit.
        retry_policy: decides when a row is due again after `process` has failed.
        max_attempts: a row becomes a dead letter after this many attempts without a success,
            including those during which the process died.
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

    @classmethod
    def check(cls) -> None:
        """Check the attributes of a subclass, and name it after its class.

        Raises:
            RegistrationError: something is missing or cannot work.
        """
        cls.name = cls.name or cls.__name__
        for problem in _problems(cls):
            raise RegistrationError(f"pipeline {cls.name} ({cls.__module__}): {problem}")
        for related in cls.related:
            related.check(cls.model)


def _problems(cls: type[Pipeline[Any]]) -> Any:
    """Yield what is wrong with a pipeline class; later checks rely on earlier ones."""
    fits = cls.name.replace(".", "").replace("_", "").replace("-", "").isalnum()
    if not (fits and cls.name.isascii() and len(cls.name) <= _NAME_LENGTH):
        yield f"name must have 1 to {_NAME_LENGTH} {_NAME_CHARACTERS}"
    try:
        table = table_of(cls.model)
    except (AttributeError, NoInspectionAvailable, AssertionError):
        yield "model is missing: name the mapped class whose rows it processes"
        return
    if "lease_token" not in table.c:
        yield f"table {table.name} has no lease columns: add LeaseMixin to {cls.model.__name__}"
    if len(table.primary_key) != 1:
        yield f"table {table.name} must have a primary key of one column"
    if not isinstance(getattr(cls, "database", None), RowDatabase):
        yield "database is missing: name a RowDatabase"
    if not inspect.iscoroutinefunction(getattr(cls, "process", None)):
        yield "process is missing: write `async def process(self, row)`; with process_as too"
    for name in ("workers", "max_attempts"):
        if not (isinstance(getattr(cls, name), int) and getattr(cls, name) >= 1):
            yield f"{name}={getattr(cls, name)!r} must be an integer of at least 1"
    if not (cls.lease >= 1 and cls.lease < math.inf):
        yield f"lease={cls.lease!r} must be 1 second or more"
    if not cls.interval >= 0:
        yield f"interval={cls.interval!r} must be 0 seconds or more"
    if cls.process_as is not None and not _is_row_task(cls.process_as):
        yield "process_as must be a subclass of nonet.pipelines.RowTask"
    if cls.timeout is not None and not cls.timeout > 0:
        yield f"timeout={cls.timeout!r} must be more than 0 seconds"
    order = order_of(cls().select(), table)
    if not is_leading(table, order):
        shown = ", ".join(str(column) for column in order)
        yield (
            f"no index of table {table.name} begins with {shown}, the order of select(): a fetch "
            "would sort the whole table. Add an index, or order by another column"
        )


def _is_row_task(cls: object) -> bool:
    from nonet.pipelines.row_task import RowTask  # it imports this module

    return inspect.isclass(cls) and issubclass(cls, RowTask)


def order_of(select: sa.Select[Any], table: sa.Table) -> list[Any]:
    """The order of a select, by default by ``due_at``; then by the primary key."""
    given = list(select._order_by_clauses)  # SQLAlchemy has no public way to read it
    order = given or [table.c.due_at]
    is_keyed = any(getattr(column, "key", None) == key_of(table).key for column in order)
    return order if given or is_keyed else [*order, key_of(table)]

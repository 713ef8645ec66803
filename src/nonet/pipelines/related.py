"""Rows that a pipeline leases together with its main row: `Children` and `Shared`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import RegistrationError
from nonet.pipelines.table_keys import column_of, is_leading, key_of, table_of


@dataclass(frozen=True)
class Children:
    """All rows of another table that point to the main row: all of them are leased, or none.

    Args:
        model: mapped class of the children, with `LeaseMixin`.
        by: its indexed column that holds the key of the main row.
        where: a condition that selects some of them; None: all.

    Example:
        class DeleteFleets(Pipeline[Fleet]):
            related = (Children(Instance, Instance.fleet_id),)
    """

    model: Any
    by: Any
    where: Any = None

    def condition(self, main: Any, key: Any) -> sa.ColumnElement[bool]:
        """Select the related rows of the main row with this key."""
        found = column_of(table_of(self.model), self.by) == key
        return found if self.where is None else sa.and_(found, self.where)

    def is_of(self, main: Any) -> sa.ColumnElement[bool]:
        """Join a related row to a main row, an alias of whose table is `main`."""
        joined = column_of(table_of(self.model), self.by) == key_of(main)
        return joined if self.where is None else sa.and_(joined, self.where)

    def goes_first(self, main: Any) -> sa.ColumnElement[bool]:
        """Whether a waiting main row goes before a related row that is due itself."""
        waits = table_of(self.model).c.waiting_since
        return sa.or_(waits.is_(None), main.c.waiting_since < waits)

    def check(self, main: Any) -> None:
        """Raises `RegistrationError` if it cannot be used for a mapped class."""
        _check(self, table_of(self.model))


@dataclass(frozen=True)
class Shared:
    """The row of another table to which the main row points; one main row leases it at a time.

    Args:
        model: mapped class of the shared row, with `LeaseMixin`.
        by: indexed column of the main table that holds its key; NULL: the row needs none.

    Example:
        class RunJobs(Pipeline[Job]):
            related = (Shared(Instance, Job.instance_id),)
    """

    model: Any
    by: Any

    def condition(self, main: Any, key: Any) -> sa.ColumnElement[bool]:
        """Select the related row of the main row with this key."""
        table = table_of(main)
        pointer = sa.select(column_of(table, self.by)).where(key_of(table) == key)
        found: sa.ColumnElement[bool] = key_of(table_of(self.model)) == pointer.scalar_subquery()
        return found

    def is_of(self, main: Any) -> sa.ColumnElement[bool]:
        """Join a related row to a main row, an alias of whose table is `main`."""
        joined: sa.ColumnElement[bool] = key_of(table_of(self.model)) == column_of(main, self.by)
        return joined

    def goes_first(self, main: Any) -> sa.ColumnElement[bool]:
        """Whether a waiting main row goes before a related row that is due itself."""
        own = table_of(self.model).c
        first: sa.ColumnElement[bool] = main.c.waiting_since < sa.func.coalesce(
            own.waiting_since, own.due_at
        )
        return first

    def check(self, main: Any) -> None:
        """Raises `RegistrationError` if it cannot be used for a mapped class."""
        _check(self, table_of(main))


Related = Children | Shared


def _check(related: Related, table: sa.Table) -> None:
    name = f"{type(related).__name__}({getattr(related.model, '__name__', related.model)}, …)"
    theirs = table_of(related.model)
    if "lease_token" not in theirs.c:
        raise RegistrationError(
            f"{name}: table {theirs.name} has no lease columns: add LeaseMixin to its class"
        )
    if (column := column_of(table, related.by)) is None:
        raise RegistrationError(f"{name}: {related.by} is no column of table {table.name}")
    if not is_leading(table, [column]):
        raise RegistrationError(
            f"{name}: no index of table {table.name} begins with {column.name}: write "
            "mapped_column(…, index=True), and create the index in a migration"
        )

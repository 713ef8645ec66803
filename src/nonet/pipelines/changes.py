"""What `Pipeline.process` returns: `Changes`, the updates that are applied if the lease holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Self

import sqlalchemy as sa

from nonet.pipelines.columns import LEASE_COLUMNS
from nonet.tasks.task import BaseTask


class _Now:
    """Stands for the time of the apply, see `NOW`."""

    def __repr__(self) -> str:
        return "NOW"


NOW: Final = _Now()
"""In `Changes`: the time at which they are applied, the same instant in all rows of one apply.

It is in UTC, for a column of type ``DateTime``.
"""


class Changes:
    """The result of processing a row: what to write, and when the row is due again.

    Everything is written in one transaction, and only if the lease still holds. Tasks and hints go
    out after its commit. Without `again` or `finish` the row is due again after the pipeline's
    ``interval``.

    Args:
        values: new values of the row by column; `NOW` is the time of the apply.

    Raises:
        ValueError: a value is for a column of `LeaseMixin`.

    Example:
        return (
            Changes(status="active", activated_at=NOW)
            .insert(Event, {"volume_id": row.id, "text": "created", "at": NOW})
            .finish()
        )
    """

    def __init__(self, **values: Any) -> None:
        if refused := LEASE_COLUMNS.intersection(values):
            raise ValueError(
                f"Changes: pipelines write {', '.join(sorted(refused))} themselves; call again() "
                "or finish() to say when the row is due"
            )
        self.values: dict[str, Any] = values
        self.updates: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.inserts: list[tuple[Any, dict[str, Any]]] = []
        self.touches: list[tuple[Any, tuple[Any, ...]]] = []
        self.tasks: list[BaseTask] = []
        # Seconds until the row is due again; None: the interval of the pipeline.
        self.due_in: float | None = None
        self.is_finished: bool = False

    def again(self, seconds: float | timedelta) -> Self:
        """Make the row due again after this time, in seconds.

        Raises:
            ValueError: it is negative.
        """
        due_in = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not due_in >= 0:
            raise ValueError(f"Changes.again: {seconds!r} must be 0 seconds or more")
        self.due_in, self.is_finished = due_in, False
        return self

    def finish(self) -> Self:
        """Set ``due_at`` to NULL: the row is not due again until it is touched."""
        self.due_in, self.is_finished = None, True
        return self

    def update(self, model: Any, ids: Any, values: Mapping[str, Any]) -> Self:
        """Update other rows, such as the related ones.

        Args:
            model: a mapped class.
            ids: a primary key, or several.
            values: new values by column; `NOW` is the time of the apply.
        """
        self.updates.append((model, _several(ids), dict(values)))
        return self

    def insert(self, model: Any, *rows: Mapping[str, Any]) -> Self:
        """Insert rows, such as events, into the table of a mapped class."""
        self.inserts += [(model, dict(row)) for row in rows]
        return self

    def touch(self, model: Any, ids: Any) -> Self:
        """Make rows of a table with lease columns due now, and hint their pipelines.

        Args:
            model: a mapped class with `LeaseMixin`.
            ids: a primary key, or several.
        """
        self.touches.append((model, _several(ids)))
        return self

    def submit(self, *tasks: BaseTask) -> Self:
        """Submit tasks if the changes were applied.

        Durable tasks are part of the transaction if they are stored in the same database. Others
        are submitted right after its commit; a process that dies in between loses them.
        """
        self.tasks += tasks
        return self


def _several(ids: Any) -> tuple[Any, ...]:
    is_one = isinstance(ids, str | bytes) or not isinstance(ids, Iterable)
    return (ids,) if is_one else tuple(ids)


def with_now(model: Any, values: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Replace `NOW` by a time, in UTC; for columns without a time zone it has none."""
    columns = sa.inspect(model).columns
    found = dict(values)
    for name in (name for name, value in values.items() if value is NOW):
        kind = columns[name].type if name in columns else None
        is_naive = isinstance(kind, sa.DateTime) and not kind.timezone
        found[name] = now.replace(tzinfo=None) if is_naive else now
    return found


def statements(changes: Changes, now: datetime) -> Sequence[sa.Insert | sa.Update]:
    """The statements for rows other than the main one."""
    made: list[sa.Insert | sa.Update] = []
    touches = [(model, ids, {"due_at": now}) for model, ids in changes.touches]
    for model, ids, values in [*changes.updates, *touches]:
        mapper = sa.inspect(model)
        key = mapper.primary_key[0]
        in_order = sorted(ids)  # transactions that lock rows in the same order do not deadlock
        update = sa.update(model).where(key.in_(in_order)).values(with_now(model, values, now))
        made.append(update.execution_options(synchronize_session=False))
    made += [sa.insert(model).values(with_now(model, row, now)) for model, row in changes.inserts]
    return made

"""Check the definition of a pipeline: `check`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import NoInspectionAvailable

from nonet.base.errors import RegistrationError
from nonet.pipelines.columns import LEASE_COLUMNS
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Children, Shared
from nonet.pipelines.table_keys import is_leading, order_of, table_of
from nonet.tasks.retry import RetryPolicyBase

_NAME_LENGTH = 60
_NAME_CHARACTERS = "letters, digits, '.', '_' and '-'"
# About 30 years: a date in SQL can be that much later.
_MOST_SECONDS = 1e9


def check(cls: type[Pipeline[Any]]) -> None:
    """Check the attributes of a pipeline class, and name the pipeline after the class.

    Raises:
        RegistrationError: something is missing or cannot work.
    """
    cls.name = cls.name or cls.__name__
    where = f"pipeline {cls.name} ({cls.__module__})"
    try:
        problem = next(_problems(cls), None)
    except Exception as error:  # the author's code: __init__, select() or an odd attribute
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RegistrationError(f"{where}: its definition fails: {reason}") from error
    if problem is not None:
        raise RegistrationError(f"{where}: {problem}")


def _problems(cls: type[Pipeline[Any]]) -> Iterator[str]:
    """Yield the mistakes in a pipeline class. Use the first: later checks rely on earlier ones."""
    name: Any = cls.name
    plain = name.replace(".", "").replace("_", "").replace("-", "") if type(name) is str else ""
    if not (plain.isalnum() and name.isascii() and len(name) <= _NAME_LENGTH):
        yield f"name must have 1 to {_NAME_LENGTH} {_NAME_CHARACTERS}"
    try:
        table = table_of(cls.model)
    except (AttributeError, NoInspectionAvailable, AssertionError):
        yield "model is missing: name the mapped class whose rows it processes"
        return
    if LEASE_COLUMNS - set(table.c.keys()):
        yield f"table {table.name} has no lease columns: add LeaseMixin to {cls.model.__name__}"
    if len(table.primary_key) != 1:
        yield f"table {table.name} must have a primary key of one column"
    if not isinstance(getattr(cls, "database", None), RowDatabase):
        yield "database is missing: name a RowDatabase"
    yield from _of_attributes(cls)
    yield from _of_methods(cls)
    yield from _of_select(cls, table)
    yield from _of_related(cls)


def _of_attributes(cls: type[Pipeline[Any]]) -> Iterator[str]:
    for name in ("workers", "max_attempts", "queue"):
        value = getattr(cls, name)
        is_default = name == "queue" and value is None
        if not (is_default or (type(value) is int and value >= 1)):
            yield f"{name}={value!r} must be an integer of at least 1"
    if not _is_seconds(cls.lease, 1):
        yield f"lease={cls.lease!r} must be 1 second or more, and a number"
    if not _is_seconds(cls.interval, 0):
        yield f"interval={cls.interval!r} must be 0 seconds or more, and a number"
    if cls.timeout is not None and not (_is_seconds(cls.timeout, 0) and cls.timeout > 0):
        yield f"timeout={cls.timeout!r} must be more than 0 seconds, or None for no limit"
    if not isinstance(cls.retry_policy, RetryPolicyBase):
        yield f"retry_policy={cls.retry_policy!r} must be a retry policy: ExponentialBackoff()"
    if cls.process_as is not None and not _is_row_task(cls.process_as):
        yield "process_as must be a subclass of nonet.pipelines.RowTask"


def _is_seconds(value: Any, least: float) -> bool:
    is_number = type(value) in (int, float) and math.isfinite(value)
    return is_number and least <= value <= _MOST_SECONDS


def _is_row_task(cls: object) -> bool:
    from nonet.pipelines.row_task import RowTask  # it imports `check`

    return inspect.isclass(cls) and issubclass(cls, RowTask)


def _of_methods(cls: type[Pipeline[Any]]) -> Iterator[str]:
    if not inspect.iscoroutinefunction(getattr(cls, "process", None)):
        yield "process is missing: write `async def process(self, row)`; with process_as too"
    for name in ("apply", "on_stale"):
        if not inspect.iscoroutinefunction(getattr(cls, name)):
            yield f"{name} must be a coroutine function: write `async def {name}`"
    for name in ("select", "load", "needs_related"):
        method = getattr(cls, name)
        if inspect.iscoroutinefunction(method) or not callable(method):
            yield f"{name} must be a plain method: write `def {name}`"
    first = next(iter(inspect.signature(cls().process).parameters.values()), None)
    if first is None or first.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        yield "process has no parameter for the row: write `async def process(self, row)`"


def _of_select(cls: type[Pipeline[Any]], table: sa.Table) -> Iterator[str]:
    made: Any = cls().select()
    if not isinstance(made, sa.Select):
        yield f"select() returned {made!r:.60}: return sqlalchemy.select({cls.model.__name__})"
        return
    # SQLAlchemy has no public way to read these.
    if not any(table in each._from_objects for each in made.get_final_froms()):
        yield f"select() does not select from table {table.name}"
    bounds = (made._limit_clause, made._offset_clause, made._fetch_clause)
    if any(bound is not None for bound in bounds):
        yield "select() has a limit or an offset: remove it, because a fetch sets its own limit"
    if made._distinct or made._group_by_clauses:
        yield "select() has DISTINCT or GROUP BY, whose rows cannot be leased: use a subquery"
    order = order_of(made, table)
    if not is_leading(table, order):
        shown = ", ".join(str(column) for column in order)
        yield (
            f"no index of table {table.name} begins with {shown}, the order of select(): a fetch "
            "would sort the whole table. Add an index, or order by another column"
        )


def _of_related(cls: type[Pipeline[Any]]) -> Iterator[str]:
    related: Any = cls.related
    if not (isinstance(related, tuple) and all(isinstance(r, Children | Shared) for r in related)):
        yield f"related={related!r:.60} must be a tuple of Children and Shared: (Shared(…),)"
        return
    for each in related:
        try:
            each.check(cls.model)
        except RegistrationError as error:
            yield str(error)
        except (NoInspectionAvailable, AssertionError):
            yield f"related={each!r:.60}: its model is no mapped class"

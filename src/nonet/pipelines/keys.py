"""Primary keys and indexes of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import NotFoundError


def table_of(model: Any) -> sa.Table:
    """The table of a mapped class."""
    table = sa.inspect(model).local_table
    assert isinstance(table, sa.Table)
    return table


def key_of(table: Any) -> sa.ColumnElement[Any]:
    """The primary key column of a table or of an alias of it."""
    found: sa.ColumnElement[Any] = next(iter(table.primary_key))
    return found


def key_from_text(table: Any, text: str) -> Any:
    """Convert a primary key that was written as text.

    Raises:
        NotFoundError: no row can have it.
    """
    kind = key_of(table).type.python_type
    try:
        return text if kind is str else kind(text)
    except ValueError:
        raise NotFoundError(
            f"table {table.name} has no row {text!r}: its keys are of type {kind.__name__}"
        ) from None


def column_of(table: Any, attribute: Any) -> Any:
    """The column of a table, or of an alias of it, that a mapped attribute stands for; or None."""
    element = getattr(attribute, "__clause_element__", lambda: attribute)()
    return next((column for column in table.c if column.name == element.name), None)


def is_leading(table: sa.Table, columns: Sequence[Any]) -> bool:
    """Whether an index of a table begins with these columns, in this order and direction."""
    return serving_index(table, columns) is not None


def serving_index(table: sa.Table, columns: Sequence[Any]) -> str | None:
    """Name of the index of a table that begins with these columns, in order and direction."""
    wanted = [_spelt(column) for column in columns]
    keys: list[tuple[Any, Iterable[Any]]] = [("PRIMARY", table.primary_key.columns)]
    keys += [(index.name, index.expressions) for index in table.indexes]
    unique = (each for each in table.constraints if isinstance(each, sa.UniqueConstraint))
    keys += [(each.name, each.columns) for each in unique]
    for name, key in keys:
        spelt = [_spelt(column) for column in key]
        backwards = [(column, not is_descending) for column, is_descending in spelt]
        if wanted in (spelt[: len(wanted)], backwards[: len(wanted)]):
            return str(name)
    return None


def _spelt(expression: Any) -> tuple[str, bool]:
    """Name of a column in an order, and whether it is descending."""
    is_descending = False
    while isinstance(expression, sa.UnaryExpression):
        is_descending ^= expression.modifier is sa.sql.operators.desc_op
        expression = expression.element
    return str(getattr(expression, "name", expression)), is_descending

"""Primary keys and indexes of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from nonet.base.errors import NotFoundError

_DIRECTIONS = (sa.sql.operators.asc_op, sa.sql.operators.desc_op)


def table_of(model: Any) -> sa.Table:
    """The table of a mapped class."""
    table = sa.inspect(model).local_table
    assert isinstance(table, sa.Table)
    return table


def key_of(table: Any) -> sa.ColumnElement[Any]:
    """The primary key column of a table or of an alias of it."""
    found: sa.ColumnElement[Any] = next(iter(table.primary_key))
    return found


def text_of_key(key: Any) -> str:
    """A primary key as text: bytes in hexadecimal digits, others as `str` writes them."""
    return key.hex() if isinstance(key, bytes) else str(key)


def key_from_text(table: Any, text: str) -> Any:
    """Convert a primary key that `text_of_key`, or a user, wrote as text.

    Raises:
        NotFoundError: no row can have it.
    """
    kind = key_of(table).type.python_type
    try:
        return bytes.fromhex(text) if kind is bytes else TypeAdapter(kind).validate_strings(text)
    except ValueError:
        raise NotFoundError(
            f"table {table.name} has no row {text!r}: its keys are of type {kind.__name__}"
        ) from None


def column_of(table: Any, attribute: Any) -> Any:
    """The column of a table, or of an alias of it, that a mapped attribute stands for; or None."""
    element = getattr(attribute, "__clause_element__", lambda: attribute)()
    name = getattr(element, "name", None)
    return next((column for column in table.c if column.name == name), None)


def is_leading(table: sa.Table, columns: Sequence[Any]) -> bool:
    """Whether an index of a table begins with these columns, in this order and direction."""
    return serving_index(table, columns) is not None


def serving_index(table: sa.Table, columns: Sequence[Any]) -> str | None:
    """Name of the index of a table that begins with these columns, in order and direction."""
    wanted = [_spelt(table, column) for column in columns]
    keys: list[tuple[Any, Iterable[Any]]] = [("PRIMARY", table.primary_key.columns)]
    keys += [(index.name, index.expressions) for index in table.indexes]
    unique = (each for each in table.constraints if isinstance(each, sa.UniqueConstraint))
    keys += [(each.name, each.columns) for each in unique]
    for name, key in keys:
        spelt = [_spelt(table, column) for column in key]
        backwards = [(column, not is_descending) for column, is_descending in spelt]
        if wanted in (spelt[: len(wanted)], backwards[: len(wanted)]):
            return str(name)
    return None


def _spelt(table: sa.Table, expression: Any) -> tuple[str, bool]:
    """Name of a column in an order, and whether it is descending; else the expression as SQL."""
    is_descending, column = False, expression
    while isinstance(column, sa.UnaryExpression) and column.modifier in _DIRECTIONS:
        is_descending ^= column.modifier is sa.sql.operators.desc_op
        column = column.element
    own = table.c.get(getattr(column, "name", ""))
    if own is None or not own.shares_lineage(column):
        return str(expression), False
    return own.name, is_descending


def order_of(select: sa.Select[Any], table: sa.Table) -> list[Any]:
    """The order of a select, by default by ``due_at``; then by the primary key."""
    given = list(select._order_by_clauses)  # SQLAlchemy has no public way to read it
    order = given or [table.c.due_at]
    is_keyed = any(getattr(column, "key", None) == key_of(table).key for column in order)
    return order if given or is_keyed else [*order, key_of(table)]

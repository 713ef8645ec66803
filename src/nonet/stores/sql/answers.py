"""Turns what a database or its driver raises into errors of Nonet."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError, StatementError

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError, masked
from nonet.base.synchronous import sleep, timeout

ANSWER_SECONDS = 10.0  # for one operation, including the connection

# MySQL: no such table, unknown column. PostgreSQL: undefined_table, undefined_column.
_SCHEMA_CODES = {1146, 1054, "42P01", "42703"}
# MySQL and MariaDB: deadlock. PostgreSQL: deadlock_detected, serialization_failure.
_DEADLOCK_CODES = {1213, "40P01", "40001"}
_DEADLOCK_PAUSES = (0.02, 0.1, 0.5)

_Answer = TypeVar("_Answer")


@asynccontextmanager
async def answering(url: str, seconds: float = ANSWER_SECONDS) -> AsyncIterator[None]:
    """Translate what a database or its driver raises inside the block.

    Args:
        url: the database; messages show it without its password.
        seconds: after this time a silent server counts as unreachable.

    Raises:
        ServerUnreachableError: the server refused, broke the connection, or did not answer in time.
        ConfigurationError: tables or columns are missing.
        NonetError: the database refuses the values of a statement.
    """
    try:
        async with timeout(seconds):
            yield
    except DBAPIError as error:
        if _lacks_schema(error):
            brief = "lacks the tables of this version: run 'task-run db upgrade'"
            raise _about(url, ConfigurationError, brief) from error
        if isinstance(error, DataError):
            raise _refused(url, error.orig) from error
        raise _unreachable(url, one_line(error.orig)) from error
    except StatementError as error:
        raise _refused(url, error.orig or error) from error
    except TimeoutError as error:
        reason = one_line(error) or f"no answer within {seconds:g} s"
        raise _unreachable(url, reason) from error
    except (OSError, SQLAlchemyError) as error:
        raise _unreachable(url, one_line(error)) from error


async def again_after_deadlock(transaction: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Run a transaction, and repeat it if the database aborts it because of a deadlock."""
    for longest_pause in _DEADLOCK_PAUSES:
        try:
            return await transaction()
        except ServerUnreachableError as error:
            if not _is_after_deadlock(error):
                raise
        await sleep(random.uniform(0, longest_pause))
    return await transaction()


def one_line(error: BaseException | None) -> str:
    """The first line of a driver's message, without the number that MySQL puts before it."""
    if error is None:
        return "no reason given"
    text = str(error.args[1]) if len(error.args) == 2 else str(error)
    return text.strip().partition("\n")[0][:300]


def _lacks_schema(error: DBAPIError) -> bool:
    cause = error.orig
    if cause is None:
        return False
    is_sqlite = str(cause).startswith(("no such table", "no such column"))
    return is_sqlite or bool(codes(cause) & _SCHEMA_CODES)


def _is_after_deadlock(error: NonetError) -> bool:
    return isinstance(error.__cause__, DBAPIError) and is_deadlock(error.__cause__)


def is_deadlock(error: DBAPIError) -> bool:
    """Whether the database aborted the transaction because of a conflict with another one."""
    return error.orig is not None and bool(_DEADLOCK_CODES & codes(error.orig))


def codes(cause: BaseException) -> set[Any]:
    """The error codes in an exception of a driver: a number of MySQL, or the SQLSTATE."""
    return {getattr(cause, "sqlstate", None), *cause.args[:1]}


def _refused(url: str, error: BaseException | None) -> NonetError:
    return _about(url, NonetError, f"refuses the values: {one_line(error)}")


def _unreachable(url: str, reason: str) -> NonetError:
    return _about(url, ServerUnreachableError, f"cannot be used: {reason}", reason)


def _about(url: str, kind: type[NonetError], problem: str, brief: str = "") -> NonetError:
    error = kind(f"database {masked(url)} {problem}")
    error.brief = brief or problem
    return error

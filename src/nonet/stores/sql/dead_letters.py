"""The dead letters of a namespace in SQL: tasks that failed for good."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from nonet.base.errors import ConflictError, NotFoundError
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.rules.letters import Cluster, DeadLetter, LetterFilter, NewDeadLetter, Status
from nonet.stores.connection.unreadable import readable
from nonet.stores.sql.answers import ANSWER_SECONDS
from nonet.stores.sql.clusters import clusters
from nonet.stores.sql.database import MYSQL, Database
from nonet.stores.sql.letters import clauses, columns, dlq_tasks, identity, letter_of, storable

# Rows that one statement reads or deletes, so that other transactions do not wait for long.
_PAGE_ROWS = 500


class DeadLetters:
    """The dead letters of one namespace.

    A SQLite database is created with the first letter and migrated at its first use; a server needs
    ``task-run db upgrade``. Every method raises `ServerUnreachableError` when the database does not
    answer, and `ConfigurationError` when its tables are missing. After an outage the object works
    again as soon as the database does.

    Example:
        >>> async def oldest(url: str) -> DeadLetter:
        ...     letters = DeadLetters(url, "nonet")
        ...     try:
        ...         return (await letters.list(status=Status.PENDING))[-1]
        ...     finally:
        ...         await letters.close()

    Args:
        database: an open database, or a URL to open, see `Database`.
        namespace: namespace of the tasks; several may share a database.
        cipher: decrypts letters of encrypted tasks.
        answer_seconds: after this time a silent database counts as unreachable.

    Raises:
        ConfigurationError: the URL is wrong or its driver is not installed.
    """

    def __init__(
        self,
        database: str | Database,
        namespace: str,
        cipher: Cipher = NO_KEYS,
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        if isinstance(database, str):
            database = Database(database, answer_seconds=answer_seconds)
        self._database = database
        self.namespace = namespace
        self._cipher = cipher
        self._own = dlq_tasks.c.namespace == namespace

    async def add(self, letter: NewDeadLetter) -> int:
        """Store a letter and return its row id. Repeated calls return the same id."""
        row = dlq_tasks.c
        same = sa.and_(row.task_id == identity(letter.task_id), row.generation == letter.generation)
        try:
            async with self._database.transaction() as connection:
                values = {**columns(letter, self._cipher), "namespace": self.namespace}
                key = await _inserted(connection, values)
                return int(key[0])
        except _AlreadyStored:
            async with self._database.transaction() as connection:
                stored = await connection.execute(sa.select(row.id).where(self._own, same))
                return int(stored.scalar_one())

    async def add_many(self, letters: Sequence[NewDeadLetter]) -> None:
        """Store letters in one transaction; leave those that exist as they are."""
        own = {"namespace": self.namespace}
        rows = [{**columns(letter, self._cipher), **own} for letter in letters]
        if not rows:
            return
        async with self._database.transaction() as connection:
            await connection.execute(_insertion(connection.dialect), rows)

    async def list(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        every_namespace: bool = False,
        **filters: Any,
    ) -> builtins.list[DeadLetter]:
        """The newest ``limit`` letters that fit all filters, newest first.

        Args:
            before: only rows with a lower number, to read the next page.
            every_namespace: include the letters of other namespaces.
            filters: fields of `LetterFilter`.
        """
        query = sa.select(*(c for c in dlq_tasks.c if c.name not in ("task_args", "traceback")))
        selection = LetterFilter(**filters)
        if not every_namespace:
            selection = await self.narrowed(selection)
            query = query.where(self._own)
        query = query.where(*clauses(selection))
        if before is not None:
            query = query.where(dlq_tasks.c.id < before)
        rows = await self._database.rows(query.order_by(dlq_tasks.c.id.desc()).limit(limit))
        parse = partial(letter_of, cipher=self._cipher, task_args=b"")
        entries = ((f"{row.id}", row) for row in rows)
        return readable("dlq_tasks", "DISCARD", entries, lambda _, row: parse(row))

    async def clusters(self, selection: LetterFilter) -> builtins.list[Cluster]:
        """Letters that pass a filter, grouped by class, exception and location; newest first.

        They are counted by an index. A filter by reason or task has to read all rows instead.
        """
        return await clusters(self._database, self.namespace, selection)

    async def narrowed(self, selection: LetterFilter) -> LetterFilter:
        """Select the same letters by what is indexed: the fingerprints of a class or error."""
        if (selection.task_class is None and selection.error is None) or selection.task_id:
            return selection
        found = await self.clusters(dataclasses.replace(selection, reason=None))
        marks = tuple(cluster.fingerprint for cluster in found)
        return dataclasses.replace(selection, task_class=None, error=None, fingerprints=marks)

    async def measure(self, selection: LetterFilter) -> tuple[int, int]:
        """How many letters pass a filter now, and the number of the highest row; 0: none.

        With that number as `LetterFilter.up_to`, the filter ignores letters that are added later.
        """
        narrow = await self.narrowed(selection)
        row = dlq_tasks.c.id
        query = sa.select(sa.func.count(), sa.func.max(row)).select_from(dlq_tasks)
        found = await self._database.rows(query.where(self._own, *clauses(narrow)))
        number, last = found[0] if found else (0, None)
        return number, last or 0

    async def annotate(self, row_id: int, note: str) -> None:
        """Write a note about a letter, in place of an earlier one.

        Args:
            note: at most 1000 characters; longer ones are cut.

        Raises:
            NotFoundError: no such row.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        async with self._database.transaction() as connection:
            await self._read(connection, row_id)
            await connection.execute(self._update(row_id).values(note=storable(note, 4000)[:1000]))

    async def get(self, row_id: int) -> DeadLetter:
        """The whole letter.

        Raises:
            NotFoundError: no such row.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        async with self._database.transaction() as connection:
            return await self._read(connection, row_id)

    async def claim(self, letter: DeadLetter, repeat: str, resubmissions: int) -> None:
        """Record that a letter is about to be submitted again. Of several callers, one succeeds.

        The letter stays ``PENDING`` until `dispatch`: if the caller dies in between, it is unknown
        whether the task was submitted.

        Args:
            letter: the letter as it was read.
            repeat: id of the task that repeats it.
            resubmissions: how many repeats there were before.

        Raises:
            NotFoundError: no such row.
            ConflictError: another process changed the letter since it was read.
        """
        values = {
            "status": Status.PENDING,
            "resubmitted_as": repeat,
            "resubmissions": resubmissions,
        }
        async with self._database.transaction() as connection:
            # Compare and set. The update locks the row, so the read after it sees the winner.
            claimed = await connection.execute(
                self._update(letter.id)
                .where(
                    dlq_tasks.c.status == letter.status,
                    dlq_tasks.c.resubmissions == letter.resubmissions,
                    dlq_tasks.c.resubmitted_as.is_not_distinct_from(letter.resubmitted_as),
                    dlq_tasks.c.task_id == letter.task_id,
                    dlq_tasks.c.generation == letter.generation,
                )
                .values(values)
            )
            if claimed.rowcount == 0:
                now = await self._read(connection, letter.id)
                raise ConflictError(f"{_state(now)}: another process changed it meanwhile")

    async def dispatch(self, row_id: int, repeat: str) -> None:
        """Record that the repeat of a claimed letter was submitted.

        Raises:
            NotFoundError: no such row.
            ConflictError: the letter is claimed for another task.
        """
        pending = dlq_tasks.c.status == Status.PENDING
        if not await self._advance(row_id, repeat, pending, status=Status.DISPATCHED):
            letter = await self.get(row_id)
            if letter.resubmitted_as != repeat:
                raise ConflictError(f"{_state(letter)}; it is not claimed for task {repeat}")

    async def release(self, letter: DeadLetter, repeat: str) -> None:
        """Undo `claim` because ``repeat`` was not submitted, unless the letter changed meanwhile.

        Args:
            letter: the letter as it was read before the claim.
        """
        await self._advance(
            letter.id,
            repeat,
            dlq_tasks.c.status == Status.PENDING,
            status=letter.status,
            resubmitted_as=letter.resubmitted_as,
            resubmissions=letter.resubmissions,
        )

    async def mark_failed(self, row_id: int, repeat: str) -> bool:
        """Record that the repeat of a letter died as well; it has a letter of its own.

        Returns:
            False if the row is gone, holds another letter now, or has another repeat.
        """
        return await self._advance(
            row_id, repeat, dlq_tasks.c.status != Status.FAILED, status=Status.FAILED
        )

    async def _advance(
        self, row_id: int, repeat: str, still: sa.ColumnElement[bool], **values: Any
    ) -> bool:
        """Change a row if `repeat` is its last repeat and the condition `still` holds."""
        is_its = dlq_tasks.c.resubmitted_as == identity(repeat)
        async with self._database.transaction() as connection:
            changed = await connection.execute(
                self._update(row_id).where(is_its, still).values(values)
            )
            return changed.rowcount > 0

    async def discard(self, row_id: int, *, only: LetterFilter | None = None) -> None:
        """Delete a letter.

        Args:
            only: delete it only if it still passes this filter.

        Raises:
            NotFoundError: no such row.
            ConflictError: it does not pass `only`.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        fits = clauses(only) if only else []
        async with self._database.transaction() as connection:
            gone = await connection.execute(
                sa.delete(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own, *fits)
            )
            if gone.rowcount == 0:
                letter = await self._read(connection, row_id)
                raise ConflictError(f"{_state(letter)}: it no longer matches the selection")

    async def withdraw(self, task_ids: Sequence[str], since: int) -> None:
        """Delete the letters of tasks that will run again by other means: all of them, or none.

        Args:
            since: the first generation (µs) of these tasks; earlier tasks with the same ids keep
                their letters.

        Raises:
            ConflictError: a letter was submitted again.
        """
        if self._database.is_missing:
            return
        async with self._database.transaction() as connection:
            for start in range(0, len(task_ids), _PAGE_ROWS):
                ids = [identity(id) for id in task_ids[start : start + _PAGE_ROWS]]
                row = dlq_tasks.c
                named = sa.and_(row.task_id.in_(ids), row.generation >= since, self._own)
                await connection.execute(
                    sa.delete(dlq_tasks).where(named, row.status == Status.PENDING)
                )
                left = (await connection.execute(sa.select(dlq_tasks).where(named))).first()
                if left is not None:
                    letter = letter_of(left, self._cipher)
                    raise ConflictError(
                        f"{_state(letter)}. To run its task {letter.task_id} in its workflow "
                        f"again, too, discard it first: task-run dlq discard {letter.id}"
                    )

    async def pages(self, selection: LetterFilter) -> AsyncIterator[builtins.list[int]]:
        """Row ids of the letters that pass a filter, oldest first, some hundred at a time.

        Letters that are added meanwhile are left out. Otherwise a caller who resubmits each letter
        would never finish if the tasks die again.
        """
        if self._database.is_missing:
            return
        async with self._database.transaction() as connection:
            end = await connection.scalar(sa.select(sa.func.max(dlq_tasks.c.id)))
        if selection.up_to is not None:
            end = min(end or 0, selection.up_to)
        last: int | None = 0
        while last is not None and last < (end or 0):
            rows, last = await self._page(selection, last, end)
            if rows:
                yield rows

    async def _page(
        self, selection: LetterFilter, last: int, end: int
    ) -> tuple[builtins.list[int], int | None]:
        """The matching ids among the next rows up to `end`, and the last id read; None: no more.

        Each statement reads a bounded range of ids, however few rows match.
        """
        row = dlq_tasks.c.id
        async with self._database.transaction() as connection:
            first = await connection.scalar(sa.select(sa.func.min(row)).where(row > last))
            if first is None:
                return [], None
            last = min(first + _PAGE_ROWS - 1, end)
            query = sa.select(row).where(row.between(first, last), self._own, *clauses(selection))
            return list((await connection.scalars(query.order_by(row))).all()), last

    async def purge(self, selection: LetterFilter) -> AsyncIterator[int]:
        """Delete the letters that pass a filter, oldest first, some hundred at a time.

        Each batch is a transaction of its own, which locks only its rows. Yields the number of
        letters that each batch deleted.
        """
        async for rows in self.pages(selection):
            async with self._database.transaction() as connection:
                gone = await connection.execute(
                    # Filter again: another process may have changed a letter meanwhile.
                    sa.delete(dlq_tasks).where(
                        dlq_tasks.c.id.in_(rows), self._own, *clauses(selection)
                    )
                )
            yield gone.rowcount

    async def count(self) -> dict[Status, int]:
        """The number of letters in each status, including zeros."""
        query = sa.select(dlq_tasks.c.status, sa.func.count()).where(self._own)
        query = query.group_by(dlq_tasks.c.status)
        found = {Status(status): number for status, number in await self._database.rows(query)}
        return {status: found.get(status, 0) for status in Status}

    def _update(self, row_id: int) -> sa.Update:
        return sa.update(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own)

    async def _read(self, connection: AsyncConnection, row_id: int) -> DeadLetter:
        query = sa.select(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own)
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise await self._missing(connection, row_id)
        return letter_of(row, self._cipher)

    async def _missing(self, connection: AsyncConnection, row_id: int) -> NotFoundError:
        """Why this namespace does not have the row, and what to do."""
        whose = await connection.scalar(
            sa.select(dlq_tasks.c.namespace).where(dlq_tasks.c.id == row_id)
        )
        if whose is None:
            return _no_such_row(row_id)
        return NotFoundError(
            f"dead letter {row_id} belongs to namespace {whose}, not to {self.namespace}: "
            f"use --namespace {whose}"
        )

    async def close(self) -> None:
        """Close all connections. Call this before the event loop ends."""
        await self._database.close()


class _AlreadyStored(Exception):
    """The namespace has a row for this task and generation, the only unique constraint."""


async def _inserted(connection: AsyncConnection, values: Mapping[str, Any]) -> Any:
    """Insert a row and return its primary key."""
    try:
        return (await connection.execute(sa.insert(dlq_tasks).values(values))).inserted_primary_key
    except IntegrityError as error:
        raise _AlreadyStored from error


def _insertion(dialect: sa.Dialect) -> sa.Insert:
    """Insert rows; leave those that exist as they are."""
    if dialect.name in MYSQL:
        made = mysql.insert(dlq_tasks)
        return made.on_duplicate_key_update(task_id=made.inserted.task_id)
    insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    return insert(dlq_tasks).on_conflict_do_nothing(
        index_elements=["namespace", "task_id", "generation"]
    )


def _no_such_row(row_id: int) -> NotFoundError:
    return NotFoundError(f"no dead letter {row_id}: 'task-run dlq list' shows those that exist")


def _state(letter: DeadLetter) -> str:
    again = "resubmission begun" if letter.status is Status.PENDING else "resubmitted"
    repeated = f" ({again} as task {letter.resubmitted_as})" if letter.resubmitted_as else ""
    return f"dead letter {letter.id} is {letter.status}{repeated}"
